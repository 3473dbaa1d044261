"""The labels of one image: its windows at every scale through the network, their probabilities averaged."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.engine.inference import network, tiles
from repgraph.engine.inference.resample import Span
from repgraph.engine.inference.settings import Settings
from repgraph.engine.inference.tiles import Tile
from repgraph.engine.inference.views import Side, View, views
from repgraph.errors import UsageError

CHUNK = 2**26  # bytes of temporary maps when probabilities are resized

Progress = Callable[[int, int], None]  # windows done, windows in all


def predict(
    model: nn.Module,
    image: Tensor,
    settings: Settings | None = None,
    *,
    output: str = "labels",
    progress: Progress | None = None,
    **changes: Any,
) -> Tensor:
    """The label of every pixel of an image, (H, W), on the CPU: uint8, or int16 for more than 256 classes.

    ``image`` is (3, H, W): uint8 RGB, which is normalised with the network's ``mean`` and ``std`` (ImageNet's where it
    has none), or floating and normalised already. With ``output="probabilities"`` the result is (K, H, W) floating.
    ``changes`` are fields of :class:`~repgraph.engine.inference.Settings`, alone or instead of those in ``settings``.
    ``progress(done, total)`` is called after each batch of windows.

    The network gives logits (B, K, H, W) of its input's size. It runs where its parameters are, in evaluation mode, and
    is afterwards in the mode it was in.

    >>> net = nn.Conv2d(3, 2, 1)
    >>> predict(net, torch.zeros(3, 50, 70, dtype=torch.uint8), mode="slide", crop=32, scales=(0.5, 1.0)).shape
    torch.Size([50, 70])
    """
    if not isinstance(image, Tensor) or image.dim() != 3 or len(image) != 3 or 0 in image.shape:
        raise UsageError(f"image has {_told(image)}; a tensor (3, height, width) is needed")
    if not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise UsageError(f"image has dtype {image.dtype}; uint8 RGB is needed, or floating and normalised values")
    if output not in ("labels", "probabilities"):
        raise UsageError(f"output is {output!r}; choose labels or probabilities")
    settings = (settings or Settings()).changed(**changes)
    with network.evaluating(model):
        return _Run(model, image.as_subclass(Tensor), settings, progress).all(output == "probabilities")


def predict_alike(model: nn.Module, images: Tensor, settings: Settings) -> Tensor:
    """The labels (n, H, W) of uint8 images (n, 3, H, W) that go through the network together, whole and at scale 1.

    They are those of :func:`predict` but for rounding: a product of several images may be computed in another order.
    """
    if settings.mode != "whole" or settings.scales != (1.0,):
        raise ValueError(f"mode is {settings.mode!r} and scales are {settings.scales}; images go alone then")
    with network.evaluating(model):
        run = _Run(model, images[0], settings, None)
        inputs = run.normalised(images.to(run.device)).to(run.dtype)
        parts = settings.changed(batch=max(settings.batch, 2 * len(images)))
        found = [_finite(each, settings).argmax(0) for each in network.probabilities(model, inputs, parts)]
        classes = network.classes_of(model, settings, (run.height, run.width), inputs)
        return torch.stack(found).to(_narrow(classes)).cpu()


class _Run:
    """One image on its way through one network."""

    def __init__(self, model: nn.Module, image: Tensor, settings: Settings, progress: Progress | None) -> None:
        self.model, self.image, self.settings, self.progress = model, image, settings, progress
        self.device, self.dtype = network.home(model, image)
        self.height, self.width = image.shape[-2:]
        self.views = views(self.height, self.width, settings)
        self.done = self.total = 0
        given = {name: getattr(model, name, None) for name in ("mean", "std")}
        self.statistics: dict[str, Any] = {name: _triple(value) for name, value in given.items() if value is not None}

    def all(self, probabilities: bool) -> Tensor:
        parts = [Tile((0, self.height), (0, self.width))]
        result: Tensor | None = None
        if self.settings.mode == "slide":
            like = torch.empty(0, device=self.device, dtype=self.dtype)
            classes = network.classes_of(self.model, self.settings, self.views[0].window, like)
            pixels = self.settings.memory // (classes * max(4, self.dtype.itemsize))
            parts = tiles.tiles(self.views, self.height, self.width, pixels)
        self.total = tiles.windows(self.views, parts)
        for part in parts:
            found = _finite(self.tile(part), self.settings)  # [K, h, w]
            if result is None:
                size = (self.height, self.width)
                shape, dtype = ((len(found), *size), found.dtype) if probabilities else (size, _narrow(len(found)))
                result = torch.empty(shape, dtype=dtype)
            found = found if probabilities else found.argmax(0).to(result.dtype)
            result[..., slice(*part.rows), slice(*part.columns)] = found
            del found  # before the next one is made
        assert result is not None
        return result

    def tile(self, part: Tile) -> Tensor:
        """The mean probabilities of a part of the image, (K, h, w)."""
        total: Tensor | None = None
        for view in self.views:
            rows, columns = view.rows.back.needs(part.rows), view.columns.back.needs(part.columns)
            scaled = None if total is None or not view.identity else total
            for window, found in self.windows(view, rows, columns):
                shape = rows[1] - rows[0], columns[1] - columns[0]
                if scaled is None and window == (rows[0], columns[0]) and found.shape[1:] == shape:
                    scaled = found  # one window is all there is
                    continue
                if scaled is None:
                    scaled = found.new_zeros(len(found), *shape)
                _add(scaled, found, window, (rows, columns))
            assert scaled is not None
            if view.identity:
                total = scaled
            else:
                total = scaled.new_zeros(len(scaled), *part.shape) if total is None else total
                _add_resized(total, scaled, view, part, (rows, columns))
            del scaled
        assert total is not None
        return total

    def windows(self, view: View, rows: Span, columns: Span) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """The windows that see these rows and columns: where they begin, and their share of the mean there."""
        starts = [(y, x) for y in view.rows.axis.covering(*rows) for x in view.columns.axis.covering(*columns)]
        batch = self.settings.batch
        for i in range(0, len(starts), batch):
            chosen = starts[i : i + batch]
            inputs = torch.stack([self.input(view, *start) for start in chosen])
            for (y, x), found in zip(chosen, network.probabilities(self.model, inputs, self.settings), strict=True):
                yield (y, x), self.shared(view, y, x, found)
            self.done += len(chosen)
            if self.progress:
                self.progress(self.done, self.total)

    def input(self, view: View, y: int, x: int) -> Tensor:
        """One window (3, h, w) of the resized image, normalised; beyond the image it is the mean, 0."""
        (rows, source_rows), (columns, source_columns) = _inside(view.rows, y), _inside(view.columns, x)
        source = self.image[:, slice(*source_rows), slice(*source_columns)].to(self.device)
        source = self.normalised(source)
        source = view.rows.there.apply(source, 1, rows, source_rows[0])
        source = view.columns.there.apply(source, 2, columns, source_columns[0])
        if source.shape[-2:] == view.window:
            return source.to(self.dtype)
        padded = source.new_zeros(3, *view.window)
        padded[:, : source.shape[1], : source.shape[2]] = source
        return padded.to(self.dtype)

    def normalised(self, source: Tensor) -> Tensor:
        if source.is_floating_point():
            return source.to(torch.promote_types(self.dtype, torch.float32))
        from repgraph.data.transforms import normalise  # brings in torchvision, which the options do without

        return normalise(source, **self.statistics)

    def shared(self, view: View, y: int, x: int, found: Tensor) -> Tensor:
        """The part of a window that lies on the image, each pixel times its weight in the mean."""
        shares = []
        for side, start in ((view.rows, y), (view.columns, x)):
            share = side.axis.share(start, min(start + side.axis.window, side.axis.size))
            shares.append(share.to(found.device, found.dtype))
        rows, columns = shares[0] / len(self.views), shares[1]
        return found[:, : len(rows), : len(columns)].mul_(rows[:, None] * columns)


def _finite(found: Tensor, settings: Settings) -> Tensor:
    """Probabilities, if no logit was other than finite."""
    if torch.isfinite(found.sum()):
        return found
    low = settings.precision
    helps = "" if low == "fp32" else f", or {low} is too narrow for them: try precision fp32"
    raise network.NotFinite(f"the network's logits are not finite: its weights or the image are not{helps}")


def _narrow(classes: int) -> torch.dtype:
    return torch.uint8 if classes <= 256 else torch.int16


def _add(total: Tensor, found: Tensor, window: tuple[int, int], place: tuple[Span, Span]) -> None:
    """Add what a window found to the map of ``place``, where they meet."""
    into, out_of = [], []
    for start, length, (low, high) in zip(window, found.shape[-2:], place, strict=True):
        first, last = max(start, low), min(start + length, high)
        into.append(slice(first - low, last - low))
        out_of.append(slice(first - start, last - start))
    total[:, into[0], into[1]] += found[:, out_of[0], out_of[1]]


def _add_resized(total: Tensor, scaled: Tensor, view: View, part: Tile, place: tuple[Span, Span]) -> None:
    """Add a map of another scale; few classes at a time, so that what is made on the way stays small."""
    (rows, columns), (height, width) = place, part.shape
    longest = max(height, scaled.shape[1]) * max(width, scaled.shape[2])
    step = max(1, CHUNK // (3 * longest * scaled.element_size()))
    for i in range(0, len(scaled), step):
        maps = view.rows.back.apply(scaled[i : i + step], 1, part.rows, rows[0])
        total[i : i + step] += view.columns.back.apply(maps, 2, part.columns, columns[0])


def _inside(side: Side, start: int) -> tuple[Span, Span]:
    """The part of the resized side that a window sees, and the part of the image's own side it comes from."""
    span = start, min(start + side.axis.window, side.axis.size)
    return span, side.there.needs(span)


def _triple(given: Any) -> tuple[float, ...]:
    return tuple(given.flatten().tolist() if isinstance(given, Tensor) else given)


def _told(image: Any) -> str:
    return f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else f"type {type(image).__name__}"
