"""The page of a privacy audit, for a data protection officer: see `page.py` for its style. Everything is escaped."""

from __future__ import annotations

import math

from markupsafe import Markup

from fedsm.core.tables import html_table
from fedsm.evaluation.membership import CALIBRATED, LOSS
from fedsm.evaluation.page import Section, absent, bullets, details, glossary, page, paragraph, warning
from fedsm.evaluation.site_report import OWN
from fedsm.selectors.inference import GLOBAL

_WHEN = {"register": "once, before round 1", "deliver": "once, after the last round"}
_ROWS = {OWN: "its personal model", GLOBAL: "the global model"}
_ATTACKS = {LOSS: "by its loss", CALIBRATED: "compared"}
_MEANINGLESS = 20.0  # e^20: odds of half a billion
_GLOSSARY = {
    "membership inference": "An attack that asks: was this image among those the model was trained on? Whoever can"
    " answer has learnt something about a patient, for example that he or she was treated at this hospital.",
    "AUC": "How often the attack is right. Show it one image that the model was trained on and one that it was not: the"
    " AUC is the share of such pairs in which it names the right one. 0.5 is tossing a coin, 1.0 is always right.",
    "interval": "The true value lies in it with about 95 % confidence, given how few patients there are. If all of it"
    " is above 0.5, the model remembers its training images; if it holds 0.5, these images do not show that it does.",
    "by its loss": "The attack looks how wrong the model is about an image: models are less wrong about what they have"
    " seen. Whoever has the model and the image with its outline can do this.",
    "compared": "A stronger attack: an image may be easy for every model. So it looks whether this model is better at"
    " it than models of other sites, which have not seen it.",
    "epsilon": "A promise that holds against every attack (differential privacy): whatever somebody believed about one"
    " image before, the odds change at most by the factor e^epsilon. Small is good: 1 is strong, 8 is weak, above 20 it"
    " promises nothing. No epsilon means no such promise.",
}


def audit_page(content: dict) -> str:
    """The HTML, from the content of privacy_audit.json."""
    run = content["run"]
    subtitle = (
        f"{run['method']} for {run['task']}: {run['rounds']} rounds, {len(run['sites'])} sites, run {run['run_id']}"
    )
    sections = [_summary(content), _attacks(content), _left(content), _epsilon(content), _learn(content), _notes()]
    return page("Privacy audit", subtitle, sections, patients=False)


def remembered(content: dict) -> list[tuple[str, str, str, dict]]:
    """Site, row, attack and interval of every attack whose whole interval is above 0.5."""
    return [entry for entry in _all(content) if (entry[3]["low"] or 0) > 0.5]


def in_words(interval: dict) -> str:
    """What an AUC means for somebody who is no statistician."""
    if interval["low"] is None:
        return "too few patients to tell"
    if interval["low"] > 0.5:
        return "better than chance"
    return "no better than chance shown"


def _all(content: dict) -> list[tuple[str, str, str, dict]]:
    return [
        (site, row, attack, model[attack])
        for site, found in content["attacks"].items()
        for row, model in found["models"].items()
        for attack in _ATTACKS
        if model[attack]
    ]


def _summary(content: dict) -> Section:
    found, told = _all(content), remembered(content)
    parts = [
        paragraph(
            "No image left a site in this run. What left is listed below: numbers made from images. This page says what"
            " they can reveal about patients, and measures one thing that they may: whether the trained models tell"
            " which images they were trained on."
        )
    ]
    if not found:
        parts.append(absent("the attacks: they need the sites' images (--data, or a federated audit)"))
    elif told:
        site, row, attack, worst = max(told, key=lambda entry: entry[3]["auc"])
        parts += [
            warning(
                f"{len(told)} of {len(found)} attacks tell training images from others better than chance. The worst:"
                f" at {site}, with {_ROWS[row]}, an attacker who is shown one training image and one other image names"
                f" the training image {worst['auc']:.0%} of the time (a coin: 50%)"
            ),
            paragraph(
                "Who gets such a model can find out about a patient's image, better than by guessing, whether it was"
                " used. Treat the model as you treat data about these patients, or train again with less to remember:"
                " fewer rounds, more images, or differential privacy."
            ),
            paragraph(
                "By chance alone, about one of 40 attacks on models that remember nothing looks like this. Attacks that"
                " agree, at several sites or of both kinds, say more than a single one."
            ),
        ]
    else:
        parts.append(
            paragraph(
                f"None of {len(found)} attacks told training images from others better than chance could. This is no"
                " proof that nobody can: better attacks may exist, and few patients make wide intervals."
            )
        )
    parts += [warning(f"not attacked: {site} ({reason})") for site, reason in content["missing"].items()]
    return Section("Summary", parts)


def _attacks(content: dict) -> Section:
    rows = []
    for site, row, attack, value in _all(content):
        losses = content["attacks"][site]["models"][row]
        between = "-" if value["low"] is None else f"{value['low']:.2f} - {value['high']:.2f}"
        means = f"{losses['member_loss']:.3f} / {losses['other_loss']:.3f}"
        cells = [site, _ROWS[row], _ATTACKS[attack], f"{value['auc']:.2f}", between, _strip(value)]
        rows.append([*cells, in_words(value), means])
    head = ["site", "model", "attack", "AUC", "95 % interval", "0 - 0.5 - 1", "in words", "loss: training / test"]
    intro = paragraph(
        "Each site attacked the models with its own images: those that trained them, and its test images, which"
        " no model has seen. An AUC that is visibly above 0.5 means that the model gives away who was in the training"
        " data: whether that makes it personal data is a legal question, to which this figure is evidence."
    )
    if not rows:
        return Section("Who was in the training data?", [intro, absent("no site was attacked")])
    sizes = [
        [
            site, *(f"{found[part]['images']} ({found[part]['patients']})" for part in ("members", "others")),
            str(found["references"]),
        ]
        for site, found in content["attacks"].items()
    ]  # fmt: skip
    counted = ["site", "training images (patients)", "test images (patients)", "models to compare with"]
    tables = [html_table(head, rows, "Membership inference"), html_table(counted, sizes, "What it rests on")]
    return Section("Who was in the training data?", [intro, *tables])


def _left(content: dict) -> Section:
    sent = [
        [
            entry["track"], entry["what"], _WHEN.get(entry["phase"], f"in each of {entry['rounds']} rounds"),
            f"{entry['tensors']}", f"{entry['values']:,}", _size(entry["bytes"]),
        ]
        for entry in content["sent"]
    ]  # fmt: skip
    sites = [
        [
            site, str(n["images"].get("train", "-")), str(n["rounds"]),
            "-" if n["merged"] is None else str(n["merged"]), _size(n["up_bytes"]), _size(n["down_bytes"]),
        ]
        for site, n in content["sites"].items()
    ]  # fmt: skip
    shapes = [
        [entry["track"], entry["phase"], name, " x ".join(map(str, shape)) or "one number"]
        for entry in content["sent"]
        for name, shape in entry["shapes"].items()
    ]
    filters = ", ".join(content["filters"]) or "none"
    asked = f"Privacy filters in the job: {filters}. What a site filters by itself is not recorded: ask the site."
    sizes = ["network", "what", "when", "tensors", "numbers", "size each time"]
    totals = ["site", "training images", "rounds answered", "updates merged", "sent in all", "received in all"]
    return Section(
        "What left each site",
        [
            html_table(sizes, sent, "Tensors from each site"),
            html_table(totals, sites, "Totals"),
            paragraph("Beside these tensors, each site told:"),
            bullets(content["told"]),
            paragraph(asked),
            details("The shape of every tensor", html_table(["network", "phase", "name", "shape"], shapes, "Shapes")),
        ],
    )  # fmt: skip


def _epsilon(content: dict) -> Section:
    rows = [
        [site, entry["of"], f"{entry['epsilon']:.4g}", "-" if entry["delta"] is None else f"{entry['delta']:g}",
         _odds(entry["epsilon"])]
        for site, entries in content["privacy"].items()
        for entry in entries
    ]  # fmt: skip
    parts: list[Markup] = []
    if rows:
        parts.append(html_table(["site", "of", "epsilon", "delta", "in words"], rows, "Differential privacy"))
    without = [site for site in content["run"]["sites"] if site not in content["privacy"]]
    if without:
        parts.append(
            paragraph(
                f"No differential privacy: {', '.join(without)}. There is then no mathematical bound on what can be"
                " learnt about one image; what was measured above is all that is known."
            )
        )
    return Section("Epsilon", parts)


def _learn(content: dict) -> Section:
    names = {
        "server": "The server and its operator saw",
        "sites": "Each other site got",
        "readers": "Whoever gets the super model and the results has",
    }
    parts: list[Markup] = []
    for key, title in names.items():
        parts += [Markup("<h3>{}</h3>").format(title), bullets(content["learn"][key])]
    return Section("What others could learn", parts)


def _notes() -> Section:
    return Section("How to read it", [glossary(_GLOSSARY)])


def _odds(epsilon: float) -> str:
    if epsilon > _MEANINGLESS:
        return "so large that it promises nothing"
    return f"odds about one image change at most {math.exp(epsilon):.3g} times"


def _size(count: int) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _strip(value: dict) -> Markup:
    """A small picture of an interval between 0 and 1, with a mark at 0.5."""
    x = 10 + 140 * value["auc"]
    low, high = (10 + 140 * (value[key] if value[key] is not None else value["auc"]) for key in ("low", "high"))
    colour = "#d55e00" if (value["low"] or 0) > 0.5 else "var(--link)"
    return Markup(
        '<svg width="160" height="16" viewBox="0 0 160 16" role="img" aria-label="AUC {:.2f}">'
        '<g style="stroke: var(--line)"><path d="M10 8H150M10 4V12M150 4V12"/></g>'
        '<path d="M80 1V15" style="stroke: var(--quiet); stroke-dasharray: 2 2"/>'
        '<path d="M{:.1f} 8H{:.1f}" style="stroke: {}; stroke-width: 4"/>'
        '<circle cx="{:.1f}" cy="8" r="4" style="fill: {}"/></svg>'
    ).format(value["auc"], low, high, colour, x, colour)
