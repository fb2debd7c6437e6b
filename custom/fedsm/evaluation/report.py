"""Puts the report together: what a run's folder tells, and what a study of weights and images adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsm.evaluation import figures as draw
from fedsm.evaluation import report_tables as tables
from fedsm.evaluation.figure_style import Plates, site_colours
from fedsm.evaluation.overlays import overlay_sheet
from fedsm.evaluation.page import Section, absent, figures, heading, page, paragraph
from fedsm.evaluation.runs import Run
from fedsm.evaluation.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
            self._summary(), self._training(), self._gamma(), self._selection(), self._selector(), self._map(),
            self._surface(), self._overlays(), self._costs(), self._notes(),
        ]  # fmt: skip
        runs = "1 run" if len(self._all) == 1 else f"{len(self._all)} runs"
        subtitle = f"{runs}, {len(self._sites)} sites. Not a medical device: for research only."
        return page(f"FedSM report: {methods} on {tasks}", subtitle, sections)

    def _summary(self) -> Section:
        parts = [tables.settings_table(self._all), tables.dice_table(self._all, self._sites)]
        without: dict[str, list[str]] = {}
        for run in self._all:
            if evaluation := self._studies[run.name].evaluation:
                parts.append(tables.interval_table(run.name, evaluation))
            else:
                without.setdefault(self._studies[run.name].absent, []).append(run.name)
        parts += [absent(f"intervals of {', '.join(names)}: {reason}") for reason, names in without.items()]
        return Section("Scores", parts)

    def _training(self) -> Section:
        told = paragraph("Above the validation score of the model that a round made, below the loss of training it.")
        drawn = [
            self._draw(draw.curves(run, track, self._colours, self._centralized), "curves", run, track, caption=track)
            for run in self._runs
            for track in draw.tracks_of(run)
        ]
        return Section("Training", [told, figures(drawn)])

    def _gamma(self) -> Section:
        swept = [run for run in self._runs if run.results["gamma_sweep"]]
        drawn = [
            self._draw(
                draw.gamma_sweep(run.results["gamma_sweep"], run.results["gamma"]), "gamma", run, caption="gamma"
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
                caption = f"reliability: accuracy {found['accuracy']:.3f}, ECE {found['ece']:.3f}"
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
        told = paragraph(
            "Dice loss along 10 random directions of unit length from the trained weights: mean and range. All models"
            " are moved along the same directions. A flat valley forgives small differences between sites."
        )
        return Section("Loss surface", [told, figures(items)] if items else [self._why("no weights")])

    def _overlays(self) -> Section:
        items = []
        for run in self._all:
            for site, shown in self._studies[run.name].overlays.items():
                sheet = overlay_sheet(shown, list(run.results["settings"]["task"]["labels"]))
                items.append(self._plates.picture(sheet, f"overlays_{run.name}_{site}", self._caption(run, site), site))
        told = paragraph("The best, the median and the worst test image of each site. These are images of patients:"
                         " share this file as you would share them.")  # fmt: skip
        return Section("Overlays", [told, figures(items, wide=True)] if items else [self._why("no images")])

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
                    figures([self._draw(draw.attendance(run), "attendance", run, caption="who answered")]),
                ]
        if len(parts) == 2:
            parts.append(paragraph("Every site answered in every round."))
        parts += [conduct for run in self._runs if (conduct := tables.conduct_table(run))]
        return Section("Cost", parts)

    def _notes(self) -> Section:
        words = [
            "Dice: per image and label at threshold 0.5; an empty truth with an empty prediction counts 1. Client avg:"
            " mean over sites of the site's mean. Global: mean over all images.",
            "IoU as Dice. HD95: 95 % Hausdorff distance, in pixels of the file or millimetres of a volume; two empty"
            " masks count 0, a missed or invented object the image's diagonal.",
            "The super model is Algorithm 2 of Xu et al., CVPR 2022: the selector's first choice if it is surer than"
            " gamma, else the global model.",
        ]
        return Section("How to read it", [heading("Words"), *map(paragraph, words)])

    def _why(self, otherwise: str) -> str:
        reasons = [s.absent for s in self._studies.values() if s.absent]
        return absent(reasons[0] if reasons else otherwise)

    def _draw(self, figure: Figure, kind: str, run: Run, *more: str, caption: str) -> str:
        return self._plates.draw(figure, "_".join([kind, run.name, *more]), self._caption(run, caption))

    def _caption(self, run: Run, text: str) -> str:
        return f"{run.name}: {text}" if len(self._all) > 1 else text
