"""The report: results from the run's folder, and what a study of its weights and images adds."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from fedsm.evaluation import figures as draw
from fedsm.evaluation import report_tables as tables
from fedsm.evaluation.figure_style import Plates, site_colours
from fedsm.evaluation.markdown import selector_text, volumes_as_images
from fedsm.evaluation.metrics import VOLUME_METRICS
from fedsm.evaluation.overlays import overlay_sheet
from fedsm.evaluation.page import Section, absent, figures, glossary, page, paragraph
from fedsm.evaluation.report_fair import below_local, comparisons
from fedsm.evaluation.runs import Run
from fedsm.evaluation.study import Study

_PATIENTS = "patient-images"  # the names of files with images of patients start with this
_WORDS = {
    "site": "A hospital, or a folder of images that plays one. Its images stay there.",
    "round": "Every site trains the models on its own images; the server makes the next models from the results.",
    "track": "One network and the way it is trained, at the sites and on the server. FedSM has three: global, personal"
    " and selector.",
    "global": "The model that all sites train together; the server averages their results.",
    "personal": "A site's own model.",
    "SoftPull": "How the server makes the next personal models: each is pulled towards those of the other sites.",
    "lam": "How much of its own result a personal model keeps in SoftPull. 1: everything, so sites do not learn from"
    " each other; 1 / number of sites: plain averaging.",
    "selector": "Decides which model segments an image: it says how likely the image is to come from each site.",
    "gamma": "How sure the selector must be. If its largest probability is above gamma, that site's personal model"
    " segments the image, else the global one. Chosen on the validation images.",
    "super model": "Global model, personal models and selector together: Algorithm 2 of Xu et al., CVPR 2022.",
    "client average": "The mean over sites of each site's mean: every site counts the same (client avg).",
    "all images": "The mean over all images of all sites: every image counts the same, so large sites count more.",
    "worst site": "The site with the lowest score of a row, and that score. The spread over sites is the standard"
    " deviation (n - 1) of the sites' scores: an average hides a hospital that loses.",
    "paired comparison": "Two models on the same images. How hard an image is falls out of the difference, so a small"
    " gain can be told from chance.",
    "Dice": "Overlap of prediction and truth, from 0 to 1, for each image and label at threshold 0.5. Two empty masks"
    " count 1.",
    "IoU": "Intersection over union: as Dice, but stricter.",
    "HD95": "95 % Hausdorff distance: how far the outlines are apart, in pixels of the file or millimetres of a volume."
    " Smaller is better. Two empty masks count 0; a missed or invented object counts the image's diagonal.",
    "NSD": "Normalized surface Dice of whole volumes: the share of both surfaces that is within a tolerance (the task's"
    " surface_tolerance) of the other one.",
    "ECE": "Expected calibration error: how far the selector's confidence is from its accuracy. 0 is perfect.",
}


class Report:
    """A report on one or several runs, side by side.

    Args:
        runs: the runs.
        studies: run's name -> its study.
        plates: takes the figures.
    """

    def __init__(self, runs: list[Run], studies: dict[str, Study], plates: Plates):
        self._runs = [run for run in runs if not run.is_centralized]
        self._all, self._studies, self._plates = runs, studies, plates
        self._sites = list(dict.fromkeys(site for run in runs for site in run.sites))
        self._colours = site_colours(self._sites)
        self._centralized = [run for run in runs if run.is_centralized]

    def html(self) -> str:
        """The page."""
        tasks = ", ".join(dict.fromkeys(run.results["task"] for run in self._all))
        methods = ", ".join(dict.fromkeys(run.results["method"] for run in self._all))
        sections = [
            self._notes(), self._summary(), self._training(), self._gamma(), self._selection(), self._selector(),
            self._map(), self._surface(), self._overlays(), self._conduct(), self._costs(),
        ]  # fmt: skip
        runs = "1 run" if len(self._all) == 1 else f"{len(self._all)} runs"
        subtitle = f"{runs}, {len(self._sites)} sites. Not a medical device: for research only."
        patients = any(study.overlays for study in self._studies.values())
        return page(f"FedSM report: {methods} on {tasks}", subtitle, sections, patients)

    def _summary(self) -> Section:
        parts = [tables.settings_table(self._all), tables.dice_table(self._all, self._sites), *below_local(self._all)]
        parts += comparisons(self._all, self._studies, self._sites)
        without: dict[str, list[str]] = {}
        for run in self._all:
            if evaluation := self._studies[run.name].evaluation:
                parts.append(tables.interval_table(run.name, evaluation))
                if volumes := volumes_as_images(evaluation):
                    parts.append(tables.interval_table(f"{run.name}, whole volumes", volumes, VOLUME_METRICS))
            else:
                without.setdefault(self._studies[run.name].absent, []).append(run.name)
        parts += [absent(f"intervals of {', '.join(names)}: {reason}") for reason, names in without.items()]
        return Section("Scores", parts)

    def _training(self) -> Section:
        intro = paragraph("Top: validation score of the models after each round. Bottom: training loss.")
        drawn = [
            self._draw(
                draw.curves(run, track, self._colours, self._centralized),
                "curves",
                run,
                track,
                caption=f"track {track}",
            )
            for run in self._runs
            for track in draw.tracks_of(run)
        ]
        return Section("Training", [intro, figures(drawn)])

    def _gamma(self) -> Section:
        swept = [run for run in self._runs if run.results["gamma_sweep"]]
        drawn = [
            self._draw(
                draw.gamma_sweep(run.results["gamma_sweep"], run.results.get("hard_gamma", run.results["gamma"])),
                "gamma",
                run,
                caption="Dice at every gamma",
            )
            for run in swept
        ]
        missing = absent("no run has a selector with a threshold")
        return Section("Gamma", [figures(drawn) if drawn else missing])

    def _selection(self) -> Section:
        items = []
        for run in self._all:
            test = run.results["test"]
            if frequency := test.get("selection_frequency"):
                figure = draw.heat_map(frequency, "images of", "model that was used")
                items.append(self._draw(figure, "selection", run, caption="share of test images a model was used for"))
            if candidates := test["candidates"]:
                figure = draw.heat_map(candidates, "images of", "model", digits=3)
                items.append(self._draw(figure, "candidates", run, caption="test Dice of every model on every site"))
            if pull := run.results.get("tracks", {}).get("personal", {}).get("pull"):
                rows = {site: {other: row.get(other, math.nan) for other in pull} for site, row in pull.items()}
                figure = draw.heat_map(rows, "personal model of", "is pulled towards")
                items.append(self._draw(figure, "pull", run, caption="share of each site in what pulls another"))
        return Section("Models and sites", [figures(items)])

    def _selector(self) -> Section:
        items, parts = [], []
        for run in self._runs:
            if run.results["selector"] == "none":
                continue
            evaluation = self._studies[run.name].evaluation
            counts = (evaluation or {}).get("confusion") or run.results["test"].get("first_choice")
            if counts:
                names = {site: {m.removeprefix("personal."): n for m, n in row.items()} for site, row in counts.items()}
                figure = draw.heat_map(names, "images of", "the selector's first choice", digits=0, top=None)
                items.append(self._draw(figure, "confusion", run, caption="confusion, test images"))
            if evaluation and evaluation["reliability"]:
                found = evaluation["reliability"]
                caption = f"reliability: {selector_text(evaluation)}"
                items.append(self._draw(draw.reliability_diagram(found), "reliability", run, caption=caption))
            else:
                parts.append(absent(f"reliability of {run.name}: {self._studies[run.name].absent}"))
        return Section("Selector", [figures(items), *parts] if items or parts else [absent("no run has a selector")])

    def _map(self) -> Section:
        items = []
        for run in self._runs:
            study = self._studies[run.name]
            if study.points:
                figure = draw.scatter(study.points, study.tested, self._colours)
                items.append(
                    self._draw(figure, "tsne", run, caption="t-SNE of the selector's features; test images filled")
                )
        return Section("Feature map", [figures(items)] if items else [self._why("no run has a selector")])

    def _surface(self) -> Section:
        names = [run.name for run in self._all]
        keys = list(dict.fromkeys(key for name in names for key in self._studies[name].surfaces))
        items = []
        for site, part in keys:
            losses = {
                (name, title): (self._studies[name].steps, values)
                for name in names
                for title, values in self._studies[name].surfaces.get((site, part), {}).items()
            }
            shown = [name for name in names if any(name == run for run, _ in losses)]
            figure = draw.surface(losses, self._colours[site], shown)
            items.append(self._plates.draw(figure, f"surface_{site}_{part}", f"{site}, {part} images"))
        intro = paragraph(
            "Dice loss along 10 random directions of unit length from the trained weights: mean and range. All models"
            " are moved along the same directions. Where the curve is flat, small changes of the weights cost little."
        )
        return Section("Loss surface", [intro, figures(items)] if items else [self._why("no weights")])

    def _overlays(self) -> Section:
        items = []
        for run in self._all:
            for site, shown in self._studies[run.name].overlays.items():
                sheet = overlay_sheet(shown, list(run.results["settings"]["task"]["labels"]))
                items.append(
                    self._plates.picture(sheet, f"{_PATIENTS}_{run.name}_{site}", self._caption(run, site), site)
                )
        intro = paragraph("The best, the median and the worst test image of each site. These are images of patients:"
                         " share this file as you would share them.")  # fmt: skip
        return Section("Overlays", [intro, figures(items, wide=True)] if items else [self._why("no images")])

    def _costs(self) -> Section:
        if not self._runs:
            return Section("Cost", [absent("a centralized run sends nothing and has no rounds")])
        items = [
            self._draw(draw.costs(run), "costs", run, caption="seconds and bytes of each round") for run in self._runs
        ]
        parts = [tables.cost_table(self._runs), figures(items)]
        for run in self._runs:
            if failures := tables.failure_table(run):
                parts += [
                    failures,
                    figures([self._draw(draw.attendance(run), "attendance", run, caption="sites that answered")]),
                ]
        if len(parts) == 2:
            parts.append(paragraph("Every site that was asked answered in every round."))
        return Section("Cost", parts)

    def _conduct(self) -> Section:
        if not self._runs:
            return Section("Conduct", [absent("a centralized run has no updates")])
        intro = paragraph(
            "How each site's updates compare with those of the others. A cosine near that of the other sites is usual;"
            " one far below them, round after round, is a site that learns something else: other labels, damaged"
            " images, or an attack. Networks that are a site's own (personal) are pulled towards the others and train"
            " away from them again, so their cosines are low at every site. What to do: look at the site's images and"
            " labels with it (`fedsm data check`). The setting `quarantine` leaves a site out for some rounds,"
            " `fedsm forget` for good."
        )
        parts = [intro]
        for run in self._runs:
            tracks = list(dict.fromkeys(track for row in run.history() for track in row.get("conduct", {})))
            drawn = [
                self._draw(draw.conduct(run, track, self._colours), "conduct", run, track, caption=f"track {track}")
                for track in tracks
            ]
            shown = [tables.quarantine_table(run), tables.conduct_table(run), tables.updates_table(run)]
            parts += [figures(drawn)] if drawn else []
            parts += [table for table in shown if table]
        return Section("Conduct", parts)

    def _notes(self) -> Section:
        intro = paragraph(
            "Scores compares the models on test images that no model was trained on. Training shows how the models got"
            " there; Gamma, Models and sites, Selector and Feature map show how the super model chooses a model for an"
            " image. Conduct compares the sites' updates, and lists warnings. Cost says what a round took, and which"
            " sites were missing."
        )
        return Section("How to read it", [intro, glossary(_WORDS)])

    def _why(self, otherwise: str) -> Markup:
        reasons = [s.absent for s in self._studies.values() if s.absent]
        return absent(reasons[0] if reasons else otherwise)

    def _draw(self, figure: Any, kind: str, run: Run, *more: str, caption: str) -> Markup:
        return self._plates.draw(figure, "_".join([kind, run.name, *more]), self._caption(run, caption))

    def _caption(self, run: Run, text: str) -> str:
        return f"{run.name}: {text}" if len(self._all) > 1 else text
