"""Predictions of many images, as label files and overlays in a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from repgraph.data.labels import Labels
from repgraph.engine.inference import Settings, predict
from repgraph.engine.inference.memory import explained
from repgraph.engine.prediction.encoding import label_image, write_png
from repgraph.engine.prediction.inputs import Source
from repgraph.engine.prediction.work import Move, Outcome, Progress, keep_inputs, over
from repgraph.pictures.overlay import OPACITY, overlay

LABELS, OVERLAYS = "labels", "overlays"
SIDE = 4096  # overlays of larger images are shrunk to it


@dataclass(frozen=True)
class Style:
    """What is written: label files, without a palette if ``plain``, and overlays unless their opacity is None."""

    plain: bool = False
    opacity: float | None = OPACITY
    legend: bool = True
    side: int = SIDE


def predict_files(
    model: nn.Module,
    jobs: Sequence[Source],
    labels: Labels,
    out: Path,
    settings: Settings,
    *,
    read: Callable[[Source], Tensor],
    style: Style = Style(),  # noqa: B008 (it is frozen)
    workers: int = 2,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Predict every image; label files go to ``out/labels``, overlays to ``out/overlays``.

    An image that cannot be read, or is too large for the device, is told (``say``) and left out; all others are done.
    What cannot be written ends it all: files that were written are whole, no other is left. ``workers`` threads read
    ahead, and as many write.
    """
    keep_inputs(jobs, lambda job: [out / folder / f"{job.name}.png" for folder in (LABELS, OVERLAYS)])

    def work(job: Source, image: Tensor, move: Move) -> Tensor:
        with explained(settings, f"{job.path} ({image.shape[2]} x {image.shape[1]} pixels): "):
            return predict(model, image, settings, progress=lambda windows, of: move(windows / of))

    def write(job: Source, image: Tensor, classes: Tensor) -> list[Path]:
        written = [write_png(out / LABELS / f"{job.name}.png", label_image(classes, labels, plain=style.plain))]
        if style.opacity is not None:
            picture = overlay(
                image.permute(1, 2, 0).numpy(), classes, labels, style.opacity, legend=style.legend, side=style.side
            )
            written.append(write_png(out / OVERLAYS / f"{job.name}.png", picture))
        return written

    return over(jobs, read, work, write, workers=workers, progress=progress, say=say)
