"""A very small encoder for small pictures on a CPU: it sees little at a time, and learns from nothing in a minute.

It stands in timm's registry as ``"repgraph_small"``: :class:`~repgraph.models.Backbone` and recipes know it by name
like any other. Its output stride is 4.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

SEES = 23  # pixels along each side of the square that a position of the last map depends on
_WIDTHS = (24, 48, 64)
default_cfgs = generate_default_cfgs({"repgraph_small": {}})  # timm asks for it: there are no weights


class Small(nn.Module):
    """Four 3 x 3 convolutions with batch normalisation and ReLU; the first two have stride 2.

    The maps have strides 2 and 4. A position of the last one sees 3 + 2 * 2 + 2 * 4 * 2 = 23 pixels along each side.
    (The 3 x 3 convolution of a head makes it 31.)
    """

    def __init__(self, in_chans: int = 3, output_stride: int = 4) -> None:
        super().__init__()
        if output_stride != 4:
            raise ValueError(f"output_stride is {output_stride}; this network has 4")
        first, second, last = _WIDTHS
        self.stage1 = _block(in_chans, first, stride=2)
        self.stage2 = nn.Sequential(_block(first, second, stride=2), _block(second, last), _block(last, last))
        self.feature_info = [
            dict(num_chs=first, reduction=2, module="stage1"),
            dict(num_chs=last, reduction=4, module="stage2"),
        ]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.stage2(self.stage1(x))


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


@register_model
def repgraph_small(pretrained: bool = False, **options: Any) -> nn.Module:
    """The encoder, as timm makes it; there are no weights to load."""
    return build_model_with_cfg(
        Small,
        "repgraph_small",
        pretrained,
        feature_cfg=dict(out_indices=(0, 1)),
        kwargs_filter=("num_classes", "global_pool"),  # type: ignore[arg-type]  # those of classifiers
        **options,
    )
