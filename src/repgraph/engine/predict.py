"""Predictions of many images, as label files and overlays in a folder."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from repgraph.data.labels import DataError, Labels
from repgraph.engine.ahead import ahead
from repgraph.engine.inference import Settings, predict
from repgraph.engine.inference.memory import NotEnoughMemory, explained
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.prediction.encoding import label_image, write_png
from repgraph.engine.prediction.inputs import Source
from repgraph.errors import UsageError
from repgraph.pictures.overlay import OPACITY, overlay

LABELS, OVERLAYS = "labels", "overlays"
SIDE = 4096  # overlays of larger images are shrunk to it

Progress = Callable[[float, int], None]  # images done, images in all


@dataclass(frozen=True)
class Style:
    """What is written: label files, without a palette if ``plain``, and overlays unless their opacity is None."""

    plain: bool = False
    opacity: float | None = OPACITY
    legend: bool = True
    side: int = SIDE


@dataclass
class Outcome:
    """The files written, and the images that could not be predicted with the reason for each."""

    written: list[Path] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)


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
    _keep_inputs(jobs, out)
    outcome = Outcome()
    writer = _Writer(workers)
    try:
        for done, (job, image) in enumerate(_images(jobs, read, workers)):

            def move(windows: int, of: int, done: int = done) -> None:
                if progress:
                    progress(done + windows / of, len(jobs))

            try:
                if isinstance(image, DataError):
                    raise image
                with explained(settings, f"{job.path} ({image.shape[2]} x {image.shape[1]} pixels): "):
                    classes = predict(model, image, settings, progress=move)
            except NotFinite as error:
                raise NotFinite(f"{job.path}: {error}") from error
            except (DataError, NotEnoughMemory) as error:
                outcome.failed.append((job.path, str(error)))
                say(str(error))
                continue
            writer.submit(_write, job, image, classes, labels, out, style)
    finally:
        outcome.written += writer.finish()
    return outcome


def _keep_inputs(jobs: Sequence[Source], out: Path) -> None:
    """Refuse to write over an image that is to be read."""
    inputs = {job.path.resolve() for job in jobs}
    for job in jobs:
        for folder in (LABELS, OVERLAYS):
            path = out / folder / f"{job.name}.png"
            if path.resolve() in inputs:
                raise UsageError(f"{path} is an input and would be written over; give another --out")


def _images(
    jobs: Sequence[Source], read: Callable[[Source], Tensor], workers: int
) -> Iterator[tuple[Source, Tensor | DataError]]:
    def try_to(job: Source) -> tuple[Source, Tensor | DataError]:
        try:
            return job, read(job)
        except DataError as error:
            return job, error

    return ahead(try_to, jobs, workers)


def _write(job: Source, image: Tensor, classes: Tensor, labels: Labels, out: Path, style: Style) -> list[Path]:
    written = [write_png(out / LABELS / f"{job.name}.png", label_image(classes, labels, plain=style.plain))]
    if style.opacity is not None:
        picture = overlay(
            image.permute(1, 2, 0).numpy(), classes, labels, style.opacity, legend=style.legend, side=style.side
        )
        written.append(write_png(out / OVERLAYS / f"{job.name}.png", picture))
    return written


class _Writer:
    """Writes in threads, few files behind; an error comes out at the next file, or at the end."""

    def __init__(self, workers: int) -> None:
        self.most = max(1, workers)
        self.pool = ThreadPoolExecutor(self.most, thread_name_prefix="repgraph-write")
        self.waiting: list[Future[list[Path]]] = []
        self.written: list[Path] = []

    def submit(self, write: Callable[..., list[Path]], *arguments: object) -> None:
        self.waiting.append(self.pool.submit(write, *arguments))
        while len(self.waiting) > self.most or (self.waiting and self.waiting[0].done()):
            self.written += self.waiting.pop(0).result()

    def finish(self) -> list[Path]:
        self.pool.shutdown(wait=True)
        while self.waiting:
            self.written += self.waiting.pop(0).result()
        return self.written
