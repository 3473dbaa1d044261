"""Labels of images of any size: whole or in overlapping windows, at several scales, flipped, in bounded memory.

A map of class probabilities can be much larger than the image, so it is computed tile by tile, from all windows that
overlap a tile: tiles do not change the result.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from repgraph.constants import MEAN, STD, Precision
from repgraph.data.transforms import normalise
from repgraph.errors import UsageError
from repgraph.inference.network import device_and_dtype, not_finite
from repgraph.layers.modes import evaluation_mode
from repgraph.recipes import AnyRecipe, Recipe, Test, explain
from repgraph.recipes.schema import Positive

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
CHUNK = 2**26  # bytes of temporary maps when probabilities are resized
Span = tuple[int, int]  # start and stop
Tiles = tuple[list[Span], list[Span]]  # rows and columns of a grid


class Settings(Test):
    """Settings of :func:`predict`: those of :class:`~repgraph.recipes.Test`, batch size, precision and memory."""

    batch: Positive = 4  # windows that run through the network at once
    precision: Precision = "fp32"  # "bf16" and "fp16" under autocast
    memory: Positive = 2 * 2**30  # bytes for maps of probabilities in mode "slide"; see docs/large-images.md

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(explain(error, Settings)) from None

    @classmethod
    def from_recipe(cls, recipe: AnyRecipe | None, **changes: Any) -> "Settings":
        """Return the test settings of a recipe, with changes."""
        return cls(**{**(dict(recipe.test) if isinstance(recipe, Recipe) else {}), **changes})

    def autocast(self, device: torch.device) -> torch.autocast:
        dtype = PRECISIONS[self.precision]
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    def __str__(self) -> str:
        parts = ["windows of {} x {}".format(*self.crop) if self.mode == "slide" else "whole images"]
        parts.append(f"scale{'s' * (len(self.scales) > 1)} " + " ".join(f"{scale:g}" for scale in self.scales))
        return ", ".join([*parts, *(["flipped"] if self.flip else []), self.precision])


def predict(
    model: nn.Module, image: Tensor, settings: Settings | None = None, *, output: str = "labels", **changes: Any
) -> Tensor:
    """Return the label of every pixel of an image, (H, W) on the CPU: uint8, or int16 for more than 256 classes.

    Args:
        model: Network with logits (B, K, H, W) of its input's size. It runs in evaluation mode, on its device.
        image: (3, H, W) uint8 RGB, which is normalized with the network's ``mean`` and ``std`` (ImageNet's by default),
            or floating point and already normalized.
        settings: Windows, scales, flip, batch size, precision and memory.
        output: "labels", or "probabilities" for the mean probabilities (K, H, W).
        changes: Fields of :class:`Settings` to change.

    >>> net = nn.Conv2d(3, 2, 1)
    >>> predict(net, torch.zeros(3, 50, 70, dtype=torch.uint8), mode="slide", crop=32, scales=(0.5, 1.0)).shape
    torch.Size([50, 70])
    """
    check_image(image)
    if output not in ("labels", "probabilities"):
        raise UsageError(f"output is {output!r}; expected labels or probabilities")
    result: Tensor | None = None
    with evaluation_mode(model):
        settings = Settings(**{**dict(settings or Settings()), **changes})
        prediction = _Prediction(model, image.as_subclass(Tensor), settings)
        for rows, columns in itertools.product(*prediction.tiles()):
            part = prediction.tile(rows, columns)  # [K, h, w]
            if not torch.isfinite(part.sum()):
                raise not_finite("logits", settings.precision)
            if output == "labels":
                part = part.argmax(0).to(torch.uint8 if len(part) <= 256 else torch.int16)
            if result is None:
                result = torch.empty((*part.shape[:-2], *image.shape[1:]), dtype=part.dtype)
            result[..., slice(*rows), slice(*columns)] = part
            del part  # before the next tile is computed
    assert result is not None
    return result


def check_image(image: Tensor) -> None:
    """Raise an error unless the image is a tensor (3, H, W) of uint8 or floating point."""
    given = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
    if not isinstance(image, Tensor) or image.dim() != 3 or len(image) != 3 or 0 in image.shape:
        raise UsageError(f"image is {given}; expected a tensor (3, height, width)")
    if not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise UsageError(f"image is {given}; expected uint8 or floating point")


def length(span: Span) -> int:
    return span[1] - span[0]


@dataclass(frozen=True)
class Taps:
    """Bilinear resizing of parts of an axis: output i is the sum over t of ``weight[i, t] * source[index[i, t]]``."""

    index: Tensor  # [outputs, taps] int64
    weight: Tensor  # [outputs, taps] float64

    def source_span(self, span: Span) -> Span:
        """Return the part of the source that a part of the output depends on."""
        return int(self.index[span[0], 0]), int(self.index[span[1] - 1].max()) + 1

    def resize(self, source: Tensor, dim: int, span: Span) -> Tensor:
        """Return the part ``span`` of the output along ``dim``, from the part of the source that it depends on."""
        index = (self.index[slice(*span)] - self.index[span[0], 0]).to(source.device)
        weight = self.weight[slice(*span)].to(source.device, source.dtype)
        shape = [1] * source.dim()
        shape[dim] = -1
        result = source.index_select(dim, index[:, 0]).mul_(weight[:, 0].view(shape))
        for tap in range(1, index.shape[1]):
            result += source.index_select(dim, index[:, tap]).mul_(weight[:, tap].view(shape))
        return result


@lru_cache(maxsize=64)
def resize_taps(size: int, new_size: int, *, antialias: bool) -> Taps:
    """Return the taps that resize an axis as ``interpolate(mode="bilinear", align_corners=False)`` does."""
    ratio = size / new_size
    reach = max(1.0, ratio) if antialias else 1.0
    center = (torch.arange(new_size, dtype=torch.float64) + 0.5) * ratio  # pixel j covers j to j + 1
    first = (center - reach + 0.5).floor().clamp(min=0)
    index = first[:, None] + torch.arange(min(size, 2 * int(reach + 1) + 1))  # [outputs, taps]
    weight = (1 - (index + 0.5 - center[:, None]).abs() / reach).clamp(min=0) * (index < size)
    weight /= weight.sum(1, keepdim=True)
    used = int((weight > 0).any(0).nonzero().max()) + 1
    index = torch.where(weight > 0, index, index[:, :1]).long()[:, :used]  # taps without weight read the first pixel
    return Taps(index, weight[:, :used])


@dataclass(frozen=True)
class Axis:
    """One axis of an image, resized from ``size`` to ``new_size`` and covered by windows, which may be longer."""

    size: int
    new_size: int
    window: int
    step: int  # between windows; the last one ends with the axis

    @property
    def forward(self) -> Taps:
        """Resizes the image to this scale."""
        return resize_taps(self.size, self.new_size, antialias=True)

    @property
    def backward(self) -> Taps:
        """Resizes probabilities to the image's size."""
        return resize_taps(self.new_size, self.size, antialias=False)

    @cached_property
    def windows(self) -> list[Span]:
        last = max(0, self.new_size - self.window)
        starts = [min(i * self.step, last) for i in range(math.ceil(last / self.step) + 1)]
        return [(start, min(start + self.window, self.new_size)) for start in starts]

    @cached_property
    def share(self) -> Tensor:
        """One over the number of windows at each position, float64."""
        count = torch.zeros(self.new_size, dtype=torch.float64)
        for start, stop in self.windows:
            count[start:stop] += 1
        return 1 / count

    def covering(self, span: Span) -> list[Span]:
        """Return the windows that overlap a span of the resized axis."""
        return [(start, stop) for start, stop in self.windows if start < span[1] and stop > span[0]]


class View(NamedTuple):
    """The image at one scale."""

    rows: Axis
    columns: Axis

    @property
    def is_resized(self) -> bool:
        return any(axis.size != axis.new_size for axis in self)


def make_views(
    size: tuple[int, int], scales: Sequence[float], crop: tuple[int, int] | None, stride: float
) -> list[View]:
    """Return the image at each scale; without ``crop``, the whole image is one window."""
    views = []
    for scale in scales:
        new_size = [max(1, round(side * scale)) for side in size]
        window = crop or new_size
        steps = [max(1, math.ceil(round(side * stride, 6))) for side in window]
        views.append(View(*map(Axis, size, new_size, window, steps)))
    return views


def make_tiles(views: Sequence[View], pixels: int) -> Tiles:
    """Split the image into tiles whose maps have at most ``pixels`` pixels, with little overlap of their windows.

    A tile has a map of its own size, and one of its size at the largest other scale. It is not smaller than a window.
    """
    height, width = (axis.size for axis in views[0])
    # The smallest window of all scales, in pixels of the image.
    least_h, least_w = (
        min(axis.window * axis.size / axis.new_size for axis in axes) for axes in zip(*views, strict=True)
    )
    scale = max((axis.new_size / axis.size for view in views if view.is_resized for axis in view), default=0.0)
    rows, columns = (np.arange(1.0, 1 + math.ceil(most)) for most in (height / least_h, width / least_w))
    h, w = np.ceil(height / rows)[:, None], np.ceil(width / columns)  # sizes of tiles
    # A tile of h x w pixels depends on at most (scale * h + 3) x (scale * w + 3) pixels of another scale.
    fits = h * w + (scale * h + 3) * (scale * w + 3) <= pixels
    fits[-1, -1] = True  # the smallest tiles
    area_of_windows = (height + rows[:, None] * least_h) * (width + columns * least_w)
    row, column = divmod(int(np.where(fits, area_of_windows, np.inf).argmin()), len(columns))
    return _split(height, row + 1), _split(width, column + 1)


def _split(size: int, parts: int) -> list[Span]:
    return list(itertools.pairwise(size * part // parts for part in range(parts + 1)))


class _Prediction:
    """A network, an image and settings."""

    def __init__(self, model: nn.Module, image: Tensor, settings: Settings) -> None:
        self.model, self.image, self.settings = model, image, settings
        self.device, self.dtype = device_and_dtype(model, image)
        given = getattr(model, "mean", MEAN), getattr(model, "std", STD)
        self.mean, self.std = (torch.as_tensor(each).flatten().tolist() for each in given)
        self.crop = settings.crop if settings.mode == "slide" else None
        self.views = make_views((image.shape[1], image.shape[2]), settings.scales, self.crop, settings.stride)

    def tiles(self) -> Tiles:
        """Return tiles whose maps fit into memory; without windows, the whole image."""
        if self.crop is None:
            return [(0, self.image.shape[1])], [(0, self.image.shape[2])]
        classes = getattr(self.model, "classes", None)
        if not isinstance(classes, int):
            classes = self.logits(torch.zeros(1, 3, *self.crop, device=self.device, dtype=self.dtype)).shape[1]
        return make_tiles(self.views, self.settings.memory // (classes * max(4, self.dtype.itemsize)))

    def tile(self, rows: Span, columns: Span) -> Tensor:
        """Return the mean probabilities (K, h, w) of a tile."""
        total: Tensor | None = None
        for view in self.views:
            source = view.rows.backward.source_span(rows), view.columns.backward.source_span(columns)
            mean = None if view.is_resized else total  # of this scale; at scale 1, added to the total directly
            for y, x, found in self.windows(view, *source):
                if mean is None:
                    mean = found.new_zeros(len(found), *map(length, source))
                to_rows, from_rows = _overlap(source[0], y)
                to_columns, from_columns = _overlap(source[1], x)
                mean[:, to_rows, to_columns] += found[:, from_rows, from_columns]
            assert mean is not None
            if not view.is_resized:
                total = mean
                continue
            if total is None:
                total = mean.new_zeros(len(mean), length(rows), length(columns))
            largest = max(total.shape[1], mean.shape[1]) * max(total.shape[2], mean.shape[2])
            step = max(1, CHUNK // (3 * largest * mean.element_size()))  # classes at a time: temporary maps stay small
            for sums, part in zip(total.split(step), mean.split(step), strict=True):
                part = view.rows.backward.resize(part, 1, rows)
                sums += view.columns.backward.resize(part, 2, columns)
        assert total is not None
        return total.div_(len(self.views))

    def windows(self, view: View, rows: Span, columns: Span) -> Iterator[tuple[Span, Span, Tensor]]:
        """Yield the windows in a part of the resized image: rows, columns, and probabilities / number of windows."""
        windows = list(itertools.product(view.rows.covering(rows), view.columns.covering(columns)))
        size = self.settings.batch
        for batch in (windows[first : first + size] for first in range(0, len(windows), size)):
            inputs = torch.stack([self.window_input(view, *window) for window in batch])
            for (y, x), found in zip(batch, self.probabilities(inputs), strict=True):
                weight = view.rows.share[slice(*y), None] * view.columns.share[slice(*x)]  # [h, w]
                found = found[:, : length(y), : length(x)]
                yield y, x, found.mul_(weight.to(found.device, found.dtype))

    def window_input(self, view: View, rows: Span, columns: Span) -> Tensor:
        """Return a window (3, h, w) of the resized image, normalized; beyond the image it is 0, the mean color."""
        source_rows, source_columns = view.rows.forward.source_span(rows), view.columns.forward.source_span(columns)
        source = self.image[:, slice(*source_rows), slice(*source_columns)].to(self.device)
        if source.is_floating_point():
            source = source.to(torch.promote_types(self.dtype, torch.float32))
        else:
            source = normalise(source, self.mean, self.std)
        source = view.rows.forward.resize(source, 1, rows)
        source = view.columns.forward.resize(source, 2, columns)
        padding = (0, view.columns.window - length(columns), 0, view.rows.window - length(rows))
        return nn.functional.pad(source, padding).to(self.dtype)

    def probabilities(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield the probabilities (K, H, W) of each input, averaged with its mirror image if ``flip`` is set."""
        flip = self.settings.flip
        if flip:
            inputs = torch.stack([inputs, inputs.flip(-1)], 1).flatten(0, 1)  # each followed by its mirror image
        maps = (
            logits.softmax(0, dtype=torch.promote_types(logits.dtype, torch.float32))
            for part in inputs.split(self.settings.batch)
            for logits in self.logits(part)
        )
        for found in maps:
            yield found.add_(next(maps).flip(-1)).div_(2) if flip else found

    def logits(self, inputs: Tensor) -> Tensor:
        """Return logits (N, K, H, W) of inputs (N, 3, H, W)."""
        with self.settings.autocast(self.device):
            logits = self.model(inputs)
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if given != (len(inputs), *given[1:2], *inputs.shape[-2:]):
            raise UsageError(f"the network returns {given} for {tuple(inputs.shape)}; expected logits of the same size")
        return logits


def _overlap(span: Span, other: Span) -> tuple[slice, slice]:
    """Return where two spans overlap, as a slice of each."""
    low, high = max(span[0], other[0]), min(span[1], other[1])
    return slice(low - span[0], high - span[0]), slice(low - other[0], high - other[0])
