"""What figures for a paper have in common: letters, widths, and files that are written whole."""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from repgraph import files
from repgraph.errors import UsageError

# Also told apart by people who see red and green as one (Okabe and Ito's colours).
INK, SOFT, BLUE, ORANGE = "#222222", "#666666", "#0072b2", "#d55e00"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    # What a person's matplotlibrc may have otherwise: letters that LaTeX sets, white ones, a dark page, one cut to fit.
    "text.usetex": False,
    "text.color": "black",
    "axes.labelcolor": "black",
    "axes.titlecolor": "auto",
    "xtick.color": "black",
    "ytick.color": "black",
    "xtick.labelcolor": "inherit",
    "ytick.labelcolor": "inherit",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.grid": False,
    "savefig.facecolor": "auto",
    "savefig.bbox": None,
    "savefig.transparent": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # letters stay letters, which many publishers ask for
    "svg.hashsalt": "repgraph",  # the same figure is the same file
}
_ALONE = threading.RLock()  # matplotlib has one style for all threads
TALLEST = 200  # inches: of a page of PDF
SIDE, PIXELS = 2**16, 2**28  # what matplotlib draws, and about a GiB of it
_NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


@contextmanager
def style(scale: float = 1.0) -> Iterator[None]:
    """The letters and lines of a paper, for all that is drawn and saved inside; ``scale`` is for the letters."""
    letters = {name: value * scale for name, value in _STYLE.items() if name.endswith("size")}
    with _ALONE, matplotlib.rc_context(_STYLE | letters):
        yield


def scale(width: float) -> float:
    """How large letters are in a figure of so many inches: smaller where it is narrow.

    >>> scale(6.9), round(scale(4.8), 2)
    (1.0, 0.75)
    """
    return min(1.0, max(0.75, width / 6.9))


def blank(width: float, height: float, **more: Any) -> Figure:
    """An empty figure of so many inches."""
    chart = Figure(figsize=(width, height), **more)
    FigureCanvasAgg(chart)
    return chart


def check_size(width: float, height: float, dpi: float) -> None:
    """Refuse a figure of so many inches that no one could print, or that would fill the memory.

    >>> check_size(7, 900, 300)
    Traceback (most recent call last):
    repgraph.errors.UsageError: the figure would be 7 x 900 inches, 2100 x 270000 pixels; ...
    """
    across, down = round(width * dpi), round(height * dpi)
    if height > TALLEST or max(across, down) >= SIDE or across * down > PIXELS:
        raise UsageError(
            f"the figure would be {width:.3g} x {height:.3g} inches, {across} x {down} pixels; "
            "give a smaller --width or --dpi, fewer images, or images that are not as long"
        )


def ending(path: Path) -> str:
    """The kind of file that a path's ending names: png, svg or pdf.

    >>> ending(Path("nodes.PDF"))
    'pdf'
    >>> ending(Path("nodes.gif"))
    Traceback (most recent call last):
    repgraph.errors.UsageError: nodes.gif: figures are written as .svg, .pdf, .png; give the file such an ending
    """
    found = path.suffix.lower().removeprefix(".")
    if found not in _NO_DATE:
        raise UsageError(
            f"{path}: figures are written as {', '.join(f'.{kind}' for kind in _NO_DATE)}; give the file such an ending"
        )
    return found


def save(chart: Figure, path: Path, dpi: float) -> Path:
    """Write a figure in the kind that the path's ending says; ``dpi`` is for its pixels."""
    width, height = chart.get_size_inches()
    check_size(width, height, dpi)
    kind, buffer = ending(path), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for letters that the font has not
        chart.savefig(buffer, format=kind, dpi=dpi, metadata=_NO_DATE[kind])
    return files.write(path, buffer.getvalue())
