"""What `fedsm onboard` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsm.core.tables import plain_table
from fedsm.core.text import printable
from fedsm.evaluation.bootstrap import LEVEL
from fedsm.evaluation.markdown import interval_text
from fedsm.evaluation.metrics import DICE
from fedsm.evaluation.paired_table import difference_text, p_text
from fedsm.selectors.inference import GLOBAL
from fedsm.selectors.policy import in_words

if TYPE_CHECKING:
    from app_fedsm.cli.onboard_document import ModelDice, Onboarding

_FEW = 10  # patients: a bootstrap interval of fewer is too narrow


def describe(found: Onboarding) -> str:
    """The answer for a person."""
    masks = f"{found.labelled} files with masks ({found.patients} patients)" if found.labelled else "no masks"
    parts = [f"{printable(found.site)}: {found.images} images or slices, {masks}; selector {found.selector}"]
    if found.sites and any(like.nearest is not None for like in found.sites.values()):
        parts.append(_likeness(found))
    if found.between_sites:
        between = found.between_sites
        parts.append(
            f"The known sites are {between.low:.1f} to {between.high:.1f} apart (median {between.median:.1f})."
        )
    parts += [text for text in (_foreign(found), _advice(found), _dice(found)) if text]
    parts += [f"Not known: {text}." for text in found.unknown]
    if found.start:
        parts.append(f"model to start from: {found.start}")
    return "\n\n".join(parts)


def _likeness(found: Onboarding) -> str:
    ordered = sorted(found.sites.items(), key=lambda item: -(item[1].nearest or 0))
    rows = [[site, _number(like.distance, 1), _percent(like.nearest), _percent(like.share)] for site, like in ordered]
    return plain_table(["resembles", "distance of the means", "images nearest to it", "share in a start"], rows)


def _foreign(found: Onboarding) -> str:
    if found.distance is None:
        return ""
    d = found.distance
    text = (
        f"Distance of an image to the nearest site (1 is usual for that site's own images): median {d.median:.2f}, 90 %"
        f" of them from {d.low:.2f} to {d.high:.2f}."
    )
    if found.foreign is not None:
        known = [value for value in found.foreign_at_sites.values() if value is not None]
        at_sites = f" (at the sites that took part: {_percent(min(known))} to {_percent(max(known))})" if known else ""
        beyond = f"farther than delta ({in_words(found.delta)})"
        text += f"\nForeign, {beyond}: {_percent(found.foreign)} of the images{at_sites}."
    return text


def _advice(found: Onboarding) -> str:
    if found.recommended is None:
        return "Which model to use cannot be told: there is neither a selector nor a global model."
    taken: dict[str, int] = {str(model): count for model, count in found.used.items()}
    if found.recommended == GLOBAL:
        text = f"Use the global model: the super model takes it for {taken[GLOBAL]} of {found.images} images."
    else:
        counts = sorted(taken.items(), key=lambda item: -item[1])
        used = ", ".join(f"{model} for {count}" for model, count in counts)
        text = f"Use the super model. Of {found.images} images it takes {used}."
    return text + "".join(f"\n  {command}" for command in found.commands.values())


def _dice(found: Onboarding) -> str:
    if not found.dice:
        return ""
    rows = [[_title(model, found), *_cells(value)] for model, value in found.dice.items()]
    table = plain_table(["Dice, labelled images", "mean", f"minus {found.recommended or '-'}", "p (Wilcoxon)"], rows)
    text = f"{table}\n\n{LEVEL:.0%} intervals, bootstrap by patient; differences on the same images."
    better = [model for model, value in found.dice.items() if _is_better(value)]
    if better:
        text += f" Better than the recommended model on these images: {', '.join(better)}."
    return text + (" These are few patients." if (found.patients or 0) < _FEW else "")


def _is_better(value: ModelDice) -> bool:
    """Whether the whole interval of the difference is above 0."""
    return value.minus_chosen is not None and (value.minus_chosen.low or 0) > 0


def _title(model: str, found: Onboarding) -> str:
    return f"{model} (recommended)" if model == found.recommended else model


def _cells(value: ModelDice) -> list[str]:
    minus = value.minus_chosen
    mean = interval_text(value.model_dump(), DICE)
    if minus is None:
        return [mean, "", ""]
    return [mean, difference_text(minus.model_dump()), "-" if minus.p is None else p_text(minus.p)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
