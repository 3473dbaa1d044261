"""Backbones: image networks of timm, dilated to an output stride, that give the maps of their last two stages."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import options
from repgraph.models import small  # noqa: F401 - it joins timm's models

STRIDES = (8, 16, 32)
# What transformers are asked for, that else take one size of image only; timm's networks differ in the name.
_ANY_SIZE: tuple[dict[str, Any], ...] = (
    {"dynamic_img_size": True, "dynamic_img_pad": True},
    {"strict_img_size": False},
    {},
)
_MULTIPLES = (1, 32, 64, 128, 224, 256)


class Backbone(nn.Module):
    """An image network of timm without its classifier, as the encoder of a segmentation network.

    The network is new: its weights are random, and nothing is downloaded. :func:`repgraph.models.rgnet` loads weights.

    Args:
        name: of a model of timm that has features, such as "resnet50" or "convnext_tiny".
        output_stride: pixels of the image for each position of the last map; 8, 16 or 32 where the model supports it.
        caffe_style: a ResNet as Caffe's were: the stride of a stage is on the first 1 x 1 convolution, not on the
            3 x 3. Weights of one style are not for the other. Dilated, all 3 x 3 convolutions of a stage have its
            dilation; in timm's style the first keeps that of the stage before. In either style the maps of a dilated
            ResNet, subsampled, are thus those of the network that is not dilated.

    Attributes:
        body: timm's network, with the names of its parameters.
        channels: of the two maps.
        multiple: of how many pixels the sides of an image have to be for this network; others are padded with zeros on
            the right and below, and the maps cut. 1 for ResNets and most convolutional networks: nothing is padded.

    Example:
        >>> backbone = Backbone("resnet18", output_stride=8)
        >>> stage4, stage5 = backbone(torch.randn(1, 3, 65, 97))
        >>> stage4.shape, stage5.shape
        (torch.Size([1, 256, 9, 13]), torch.Size([1, 512, 9, 13]))
    """

    def __init__(self, name: str = "resnet50", *, output_stride: int = 8, caffe_style: bool = False) -> None:
        super().__init__()
        self.name = known(name)
        self.output_stride = options.whole("output_stride", output_stride)
        self.caffe_style = caffe_style
        way = _way(name, output_stride)
        self.body: Any = _create(name, way.options)
        if caffe_style:
            _to_caffe_style(self.body, name)
        self.channels: tuple[int, int] = tuple(self.body.feature_info.channels())
        self.channels_at_end = str(getattr(self.body, "output_fmt", "")).endswith("NHWC")
        self.multiple = way.multiple or 1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The maps of the last two stages, from images (B, 3, H, W).

        In a ResNet these are the outputs of ``layer3`` and ``layer4``, the paper's stages 4 and 5.
        """
        height, width = x.shape[2:]
        if self.multiple > 1:
            x = F.pad(x, (0, -width % self.multiple, 0, -height % self.multiple))
        stage4, stage5 = self.body(x)
        return self._cut(stage4, height, width, x), self._cut(stage5, height, width, x)

    def _cut(self, y: Tensor, height: int, width: int, padded: Tensor) -> Tensor:
        """The part of a map that shows the image and not what was padded."""
        if self.channels_at_end:
            y = y.permute(0, 3, 1, 2)
        if self.multiple > 1:
            rows = -(-y.shape[2] * height // padded.shape[2])
            y = y[:, :, :rows, : -(-y.shape[3] * width // padded.shape[3])]
        return y

    def extra_repr(self) -> str:
        style = {"caffe_style": True} if self.caffe_style else {}
        return f"{self.name!r}, {options.given(output_stride=self.output_stride, **style)}"


def known(name: Any) -> str:
    """The name of a model of timm; an error names the nearest if there is none."""
    if not isinstance(name, str) or not timm.is_model(name):
        close = difflib.get_close_matches(str(name), timm.list_models(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "timm.list_models() has the names"
        raise UsageError(f"timm {timm.__version__} has no model {name!r}; {hint}")
    return name


@dataclass(frozen=True)
class _Way:
    """How to make a network: what to ask timm for, and the multiple of pixels that it then takes."""

    options: dict[str, Any]
    stride: int
    multiple: int | None  # None: it takes one size of image only


def _way(name: str, output_stride: int) -> _Way:
    """The way to that output stride, or an error that says which ones there are."""
    ways = []
    for asked in (output_stride, None):
        for way in _ways(name, asked):
            if way.stride == output_stride and way.multiple is not None:
                return way
            ways.append(way)
    if any(way.stride == output_stride for way in ways):
        raise UsageError(f"{name!r} takes images of one size only; choose a backbone that takes any")
    ways += [way for stride in STRIDES if stride != output_stride for way in _ways(name, stride)]
    if not ways:
        raise UsageError(f"{name!r} has no maps of features in timm, or only one; choose another backbone")
    strides = " or ".join(str(stride) for stride in sorted({way.stride for way in ways}))
    raise UsageError(f"output_stride is {output_stride}; timm's {name!r} supports {strides}")


def _ways(name: str, output_stride: int | None) -> Iterator[_Way]:
    """The ways in which timm makes a network when it is asked for an output stride, or not asked (None).

    They are tried on networks without data, which take little time.
    """
    cfg = timm.get_pretrained_cfg(name)
    wanted: dict[str, Any] = {} if output_stride is None else {"output_stride": output_stride}
    for more in _ANY_SIZE if cfg is not None and cfg.fixed_input_size else ({},):
        try:
            body = _sketch(name, {**wanted, **more})
        except (TypeError, AssertionError, ValueError, RuntimeError, IndexError, NotImplementedError):
            continue  # the ways in which timm's networks refuse options that they do not have
        stride = body.feature_info.reduction()[-1]
        if output_stride in (None, stride):  # some do not refuse what they do not know
            yield _Way({**wanted, **more}, stride, _multiple(body.eval()))


def _sketch(name: str, asked: dict[str, Any]) -> Any:
    """A network to try things with: without data, but where an older timm reads numbers while it builds."""
    try:
        with torch.device("meta"):
            return _create(name, asked)
    except RuntimeError:
        return _create(name, asked)


def _create(name: str, asked: dict[str, Any]) -> Any:
    return timm.create_model(name, features_only=True, out_indices=(-2, -1), **asked)


def _multiple(body: nn.Module) -> int | None:
    """The least multiple to which the sides of images have to be padded, found by trying."""
    device = next(body.parameters()).device
    for multiple in _MULTIPLES:
        sizes = ((1, 1), (7, 13), (33, 40)) if multiple == 1 else ((multiple, multiple), (multiple, 2 * multiple))
        try:
            with torch.no_grad(), device:
                for size in sizes:
                    body(torch.zeros(1, 3, *size))
        except (AssertionError, RuntimeError, ValueError):
            continue  # too small for it, or odd
        return multiple
    return None


def _to_caffe_style(body: nn.Module, name: str) -> None:
    """Move the strides of a dilated ResNet to the first 1 x 1 convolutions, in place."""
    stages = [getattr(body, f"layer{index}", None) for index in (1, 2, 3, 4)]
    for stage in stages:
        first = stage[0] if isinstance(stage, nn.Sequential) else None
        if type(first) is not Bottleneck or not _plain_shortcut(first):
            raise UsageError(
                f"caffe_style is for ResNets of bottlenecks with plain shortcuts, such as 'resnet50'; not for {name!r}"
            )
        first.conv1.stride, first.conv2.stride = first.conv2.stride, (1, 1)
        # timm gives the first block the dilation of the stage before, which goes with a stride on the 3 x 3.
        first.conv2.dilation = first.conv2.padding = (first.dilation, first.dilation)


def _plain_shortcut(block: Bottleneck) -> bool:
    shortcut = block.downsample
    return (
        isinstance(block.aa, nn.Identity)
        and isinstance(shortcut, nn.Sequential)
        and isinstance(shortcut[0], nn.Conv2d)
        and shortcut[0].kernel_size == (1, 1)
    )
