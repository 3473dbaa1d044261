"""Many images through a network into files: read ahead, written behind, and what happens when something goes wrong."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from repgraph.data.labels import DataError
from repgraph.engine.ahead import ahead
from repgraph.engine.inference.memory import NotEnoughMemory
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.prediction.inputs import Source
from repgraph.errors import UsageError

Result = TypeVar("Result")
Progress = Callable[[float, int], None]  # images done, images in all
Move = Callable[[float], None]  # the share of an image that is done


@dataclass
class Outcome:
    """The files written, and the images that could not be predicted with the reason for each."""

    written: list[Path] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)


def over(
    jobs: Sequence[Source],
    read: Callable[[Source], Tensor],
    work: Callable[[Source, Tensor, Move], Result],
    write: Callable[[Source, Tensor, Result], list[Path]],
    *,
    workers: int = 2,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """``work`` on every image, and ``write`` what comes of it.

    An image that cannot be read, or is too large for the device, is told (``say``) and left out; all others are done.
    Numbers that are not finite, which come from the network, and what cannot be written end it all. ``workers`` threads
    read ahead, and as many write; ``work`` is done in order, by the caller's thread.
    """
    outcome = Outcome()
    writer = _Writer(workers)
    try:
        for done, (job, image) in enumerate(_images(jobs, read, workers)):

            def move(share: float, done: int = done) -> None:
                if progress:
                    progress(done + share, len(jobs))

            try:
                if isinstance(image, DataError):
                    raise image
                result = work(job, image, move)
            except NotFinite as error:
                raise NotFinite(f"{job.path}: {error}") from error
            except (DataError, NotEnoughMemory) as error:
                outcome.failed.append((job.path, str(error)))
                say(str(error))
                continue
            writer.submit(write, job, image, result)
    finally:
        outcome.written += writer.finish()
    return outcome


def keep_inputs(jobs: Sequence[Source], targets: Callable[[Source], Sequence[Path]]) -> None:
    """Refuse to write over an image that is to be read; ``targets`` are the files that are written for one."""
    inputs = {job.path.resolve() for job in jobs}
    for job in jobs:
        for path in targets(job):
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
