"""Backbones: timm models, dilated to an output stride, that return the maps of their last stages."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import FeatureDictNet
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn

from repgraph.errors import UsageError, nearest
from repgraph.layers.checks import check_int
from repgraph.layers.pointwise import Fusible
from repgraph.ops.backends import direct
from repgraph.ops.normalised import normalised_relu
from repgraph.ops.product import fits

STRIDES = (8, 16, 32)
# Options that let transformers of a fixed image size accept any size; their names differ between models.
_ANY_SIZE: tuple[dict[str, Any], ...] = (
    {"dynamic_img_size": True, "dynamic_img_pad": True},
    {"strict_img_size": False},
    {},
)
_NO_POOLING = (nn.Identity, type(None))  # in a block without anti-aliasing


class Backbone(Fusible):
    """A timm model without its classifier, as the encoder of a segmentation network.

    Weights are random, and nothing is downloaded; :func:`repgraph.models.rgnet` loads weights.

    Args:
        name: a timm model with feature maps, such as "resnet50" or "convnext_tiny".
        output_stride: pixels of the image per position of the last map: 8, 16 or 32 where the model supports it.
        maps: number of maps to return, from the last stages.
        caffe_style: put the stride of a ResNet stage on its first 1 x 1 convolution, as Caffe's ResNets do, and not on
            the 3 x 3. Weights of one style do not work in the other.

    Attributes:
        body: the timm model; parameters keep their names.
        channels, strides: of each map; a stride is in pixels of the image.
        multiple: images are zero-padded on the right and below to a multiple of this, and the maps cropped.

    Shape:
        - Input: (B, 3, H, W)
        - Output: the maps (B, C, h, w); by default two, for a ResNet those of ``layer3`` and ``layer4``
    """

    def __init__(
        self, name: str = "resnet50", *, output_stride: int = 8, maps: int = 2, caffe_style: bool = False
    ) -> None:
        super().__init__()
        self.name = check_timm_name(name)
        self.output_stride = check_int("output_stride", output_stride)
        self.caffe_style = caffe_style
        options, self.multiple = _find_options(name, output_stride, check_int("maps", maps))
        body: Any = timm.create_model(name, **options)
        if caffe_style:
            to_caffe_style(body, name)
        self.body = body
        self.channels: tuple[int, ...] = tuple(body.feature_info.channels())
        self.strides: tuple[int, ...] = tuple(body.feature_info.reduction())
        self._channels_last_output = str(getattr(self.body, "output_fmt", "")).endswith("NHWC")

    def normalized(self) -> Iterator[tuple[nn.Module, str, nn.Module, str]]:
        """Yield the pairs of timm's ResNets."""
        for module in self.body.modules():
            if isinstance(module, Bottleneck | BasicBlock | FeatureDictNet):
                for number in (1, 2, 3):
                    if hasattr(module, f"conv{number}") and hasattr(module, f"bn{number}"):
                        yield module, f"conv{number}", module, f"bn{number}"
                shortcut = getattr(module, "downsample", None)
                if isinstance(shortcut, nn.Sequential) and len(shortcut) > 1:
                    yield shortcut, str(len(shortcut) - 2), shortcut, str(len(shortcut) - 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        height, width = x.shape[2:]
        if self.multiple > 1:
            x = F.pad(x, (0, -width % self.multiple, 0, -height % self.multiple))
        maps = tuple(y.permute(0, 3, 1, 2) if self._channels_last_output else y for y in self.body(x))
        if self.multiple == 1:
            return maps
        sizes = ((-(-y.shape[2] * height // x.shape[2]), -(-y.shape[3] * width // x.shape[3])) for y in maps)
        return tuple(y[:, :, :rows, :columns] for y, (rows, columns) in zip(maps, sizes, strict=True))


def check_timm_name(name: Any) -> str:
    """Return the name if timm has a model of that name."""
    if not isinstance(name, str) or not timm.is_model(name):
        hint = nearest(name, timm.list_models(), "; see timm.list_models()")
        raise UsageError(f"timm {timm.__version__} has no model {name!r}{hint}")
    model, _, tag = name.partition(".")
    if tag and name not in (known := timm.list_models(f"{model}.*", pretrained=True)):
        raise UsageError(f"timm {timm.__version__} has no weights {name!r}{nearest(name, known)}")
    return name


@cache  # the search takes longer than building a small model
def _find_options(name: str, output_stride: int, maps: int) -> tuple[dict[str, Any], int]:
    """Return options for timm that give the output stride, and the multiple to which image sides have to be padded."""
    cfg = timm.get_pretrained_cfg(name)
    sizes = _ANY_SIZE if cfg is not None and cfg.fixed_input_size else ({},)
    strides, features = set(), {"features_only": True, "out_indices": tuple(range(-maps, 0))}
    for stride, size_options in itertools.product((output_stride, None, *STRIDES), sizes):  # None: the model's own
        options = {**features, **size_options, "output_stride": stride}
        try:
            body = create_without_data(name, **options)
        except (TypeError, AssertionError, ValueError, RuntimeError, IndexError, NotImplementedError):
            continue  # what timm's models raise for options that they do not support
        reduction = body.feature_info.reduction()[-1]
        if stride not in (None, reduction):  # some models ignore the option
            continue
        strides.add(reduction)
        if reduction == output_stride and (multiple := _size_multiple(body.eval())) is not None:
            return options, multiple
    if output_stride in strides:
        raise UsageError(f"{name!r} takes images of one size only; choose another backbone")
    if not strides:
        raise UsageError(f"{name!r} has fewer than {maps} feature maps in timm; choose another backbone")
    supported = " or ".join(map(str, sorted(strides)))
    raise UsageError(f"output_stride is {output_stride}; timm's {name!r} supports {supported}")


def create_without_data(name: str, **options: Any) -> Any:
    """Create a timm model on the meta device, which is fast."""
    try:
        with torch.device("meta"):
            return timm.create_model(name, **options)
    except RuntimeError:  # older versions of timm read values while building
        return timm.create_model(name, **options)


def _size_multiple(body: nn.Module) -> int | None:
    """Return the smallest multiple to which image sides have to be padded, found by trial."""
    device = next(body.parameters()).device
    for multiple in (1, 32, 64, 128, 224, 256):
        sizes = ((1, 1), (7, 13), (33, 40)) if multiple == 1 else ((multiple, multiple), (multiple, 2 * multiple))
        try:
            with torch.no_grad(), device:
                for size in sizes:
                    body(torch.zeros(1, 3, *size))
        except (AssertionError, RuntimeError, ValueError):
            continue
        return multiple
    return None


def to_caffe_style(body: nn.Module, name: str) -> None:
    """Move the strides of a ResNet of timm or torchvision to the first 1 x 1 convolutions of its stages, in place."""
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        first: Any = getattr(body, stage, [None])[0]
        shortcut = getattr(first, "downsample", None)
        plain = isinstance(shortcut, nn.Sequential) and isinstance(shortcut[0], nn.Conv2d)
        if type(first).__name__ != "Bottleneck" or not plain or not isinstance(getattr(first, "aa", None), _NO_POOLING):
            raise UsageError(f"{name!r} does not support Caffe's style (caffe_style); use 'resnet50', for example")
        first.conv1.stride, first.conv2.stride = first.conv2.stride, (1, 1)
        # In timm the first block has the dilation of the previous stage, which is right for a stride on the 3 x 3.
        dilation = getattr(first, "dilation", 1)
        first.conv2.dilation = first.conv2.padding = (dilation, dilation)


class NormRelu(BatchNormAct2d):
    """Batch normalization and ReLU; in training on CUDA, one kernel for each pass over the map."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and direct(x) and fits(x) and x.shape[1] < x.numel() < 2**31):
            return super().forward(x)
        self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        running = self.running_mean, self.running_var
        return normalised_relu(x, self.weight, self.bias, running, self.eps, self.momentum)


def fuse_norm_relu(model: nn.Module) -> None:
    """Replace each batch normalization before a ReLU in ResNets of timm by a :class:`NormRelu`, in place."""
    for module in model.modules():
        if not isinstance(module, Bottleneck | BasicBlock | FeatureDictNet):
            continue
        for number in (1, 2) if isinstance(module, Bottleneck) else (1,):
            norm: Any = getattr(module, f"bn{number}", None)
            act = getattr(module, f"act{number}", None)
            between = getattr(module, "drop_block", None)
            plain = type(norm) is nn.BatchNorm2d and type(act) is nn.ReLU and isinstance(between, _NO_POOLING)
            if plain and norm.affine and norm.track_running_stats and norm.momentum is not None:
                fused = NormRelu(norm.num_features, eps=norm.eps, momentum=norm.momentum).train(norm.training)
                fused._parameters, fused._buffers = norm._parameters, norm._buffers
                setattr(module, f"bn{number}", fused)
                setattr(module, f"act{number}", nn.Identity())


default_cfgs = generate_default_cfgs({"repgraph_small": {}})  # timm looks it up here; there are no weights


class SmallEncoder(nn.Module):
    """A small encoder for small images on a CPU, with maps of strides 2 and 4: "repgraph_small" in timm's registry."""

    def __init__(self, in_chans: int = 3) -> None:
        super().__init__()
        self.stage1 = _conv_block(in_chans, 24, stride=2)
        self.stage2 = nn.Sequential(_conv_block(24, 48, stride=2), _conv_block(48, 64), _conv_block(64, 64))
        first, second = dict(num_chs=24, reduction=2, module="stage1"), dict(num_chs=64, reduction=4, module="stage2")
        self.feature_info = [first, second]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.stage2(self.stage1(x))


def _conv_block(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


@register_model
def repgraph_small(pretrained: bool = False, **options: Any) -> nn.Module:
    return build_model_with_cfg(
        SmallEncoder,
        "repgraph_small",
        pretrained,
        feature_cfg=dict(out_indices=(0, 1)),
        kwargs_filter=("num_classes", "global_pool", "output_stride"),  # type: ignore[arg-type]  # not supported
        **options,
    )
