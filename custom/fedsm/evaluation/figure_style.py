"""The style of figures: colours that colour-blind people can tell apart, one per site; SVG and PNG."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fedsm.core.errors import UserError
from fedsm.core.private_files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette without black, the strong ones first.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800")
INK = "#22272e"  # in the SVG it becomes the page's text colour, dark or light
MARKERS, DASHES = "osD^vPX", ("-", "--", ":", "-.")
HEAT = "cividis"
_RC = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.titlecolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12,
    "axes.axisbelow": True, "lines.linewidth": 1.4, "svg.fonttype": "none", "svg.hashsalt": "fedsm",
    "figure.facecolor": "none",
    "axes.facecolor": "none", "savefig.facecolor": "none",
}  # fmt: skip


def load_matplotlib() -> Any:
    """matplotlib, with every text shown as it is: a `$` in the name of a site does not start a formula.

    matplotlib reads the setting when it creates a text, for legends and ticks quite late, so it is set for the process.

    Raises:
        UserError: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as e:
        raise UserError("figures need matplotlib", remedy="pip install 'fedsm[report]'") from e
    matplotlib.rcParams["text.parse_math"] = False
    return matplotlib


def site_colours(sites: Sequence[str]) -> dict[str, str]:
    """Site -> colour, the same in every figure of a report."""
    return {site: PALETTE[i % len(PALETTE)] for i, site in enumerate(sites)}


def new_figure(width: float = 4.6, height: float = 3.0, rows: int = 1) -> tuple[Figure, Any]:
    """A figure and its axes, one below the other, in the report's style. Width and height are in inches."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    return figure, (axes[0] if rows == 1 else list(axes))


def add_legend(figure: Figure, *axes: Any, columns: int = 3) -> None:
    """A legend below the figure, where it hides no line; every name appears once."""
    known: dict[str, Any] = {}
    for one in axes:
        known |= {label: handle for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    figure.legend(
        known.values(), known, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=8
    )


class Plates:
    """Writes each figure as PNG and returns the HTML that shows it inline.

    Args:
        folder: where the PNG files go; made with the first of them.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.names: list[str] = []

    def draw(self, figure: Any, name: str, caption: str) -> Markup:
        """A matplotlib figure, as inline SVG."""
        matplotlib = load_matplotlib()
        picture = io.StringIO()
        with matplotlib.rc_context(_RC | {"svg.hashsalt": name}):
            figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
            figure.savefig(self._path(name), dpi=160, facecolor="white")
        svg = picture.getvalue()
        svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
        width, height = (f"{v * 96:.0f}" for v in figure.get_size_inches())
        svg = re.sub(
            r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
            rf'<svg \1 width="{width}" height="{height}" role="img">',
            svg,
            count=1,
        )
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
        # Ids are unique within a figure, but several figures share a page.
        svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{self._id(name)}-", svg)
        return self._figure(Markup(svg), caption)

    def picture(self, image: Any, name: str, caption: str, alt: str) -> Markup:
        """A PIL image, as inline PNG."""
        data = io.BytesIO()
        image.save(data, "PNG")
        self._path(name).write_bytes(data.getvalue())
        source = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
        tag = Markup('<img src="{}" width="{}" height="{}" alt="{}">').format(source, image.width, image.height, alt)
        return self._figure(tag, caption)

    def _path(self, name: str) -> Path:
        self.names.append(f"{self._id(name)}.png")
        return new_file(self._folder / self.names[-1])

    @staticmethod
    def _id(name: str) -> str:
        return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")

    @staticmethod
    def _figure(content: Markup, caption: str) -> Markup:
        return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(content, caption)
