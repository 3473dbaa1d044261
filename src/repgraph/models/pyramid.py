"""The head of a pyramid network: RepGraph over the maps of a backbone that is not dilated."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers.checks import check_int, check_map
from repgraph.layers.pointwise import Pointwise, add_conv_norm
from repgraph.layers.pyramid import PyramidRepGraph
from repgraph.models.context import context_name, make_context
from repgraph.models.heads import initialize, resize

MAPS = 4  # of the backbone, of strides 4, 8, 16 and 32


class PyramidHead(nn.Module):
    """From the maps of a backbone's four stages to class logits at the stride of the first.

    The maps of strides 8, 16 and 32 are projected to equal widths (``laterals``), and each is added to the next finer
    one. The context layer runs at stride 8: ``rounds`` of attention to nodes on the three maps, or another layer on the
    finest of them. Its output is upsampled to stride 4 and added to the first map (``fine``); a 3 x 3 convolution
    (``smooth``), dropout and ``classifier`` (1 x 1) follow.

    Args:
        in_channels: channels of the four maps.
        classes: number of classes.
        channels: channels of the projected maps; half of them at stride 4.
        context, context_options, fusion: the context layer, as in :class:`~repgraph.models.RGNet`. "pyramid" is
            :class:`~repgraph.layers.pyramid.PyramidRepGraph`, "none" a plain feature pyramid (FPN).
        dropout: probability of dropping a channel before the classifier.

    Shape:
        - Input: four maps (B, C_l, H_l, W_l), the finest first
        - Output: (B, classes, H_0, W_0); with ``return_nodes=True`` also nodes and weights of each round.

    Example:
        >>> import torch
        >>> head = PyramidHead((8, 16, 32, 64), 19, channels=32).eval()
        >>> maps = [torch.randn(1, 8 * 2**i, 32 >> i, 48 >> i) for i in range(4)]
        >>> head(maps).shape
        torch.Size([1, 19, 32, 48])
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        classes: int,
        *,
        context: str = "pyramid",
        context_options: Mapping[str, Any] | None = None,
        fusion: str | None = None,
        channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if len(in_channels) != MAPS:
            raise UsageError(f"a pyramid needs a backbone of {MAPS} stages; got {len(in_channels)}")
        first, *coarser = (check_int("in_channels", number) for number in in_channels)
        width = max(1, check_int("channels", channels) // 2)
        self.laterals = nn.ModuleList(initialize(Pointwise(number, channels, bias=False)) for number in coarser)
        self.lateral_norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in coarser)
        context = context_name(context, "pyramid")
        sizes = {"maps": len(coarser)} if context == "pyramid" else {}
        self.context = make_context(context, channels, fusion=fusion, options=context_options, **sizes)
        self.reduce = initialize(Pointwise(self.context.out_channels, width, bias=False))
        self.fine = initialize(Pointwise(first, width, bias=False))
        self.fine_norm = nn.BatchNorm2d(width)
        self.smooth = initialize(nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.smooth_norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = initialize(Pointwise(width, check_int("classes", classes)))

    def forward(self, maps: Sequence[Tensor], return_nodes: bool = False) -> Any:
        first, *coarser = maps
        check_map(first, self.fine.in_channels)
        merged = self.merge(coarser)
        nodes: list[Any] = []
        if not isinstance(self.context, PyramidRepGraph):
            if return_nodes:
                raise UsageError(f"the context layer {type(self.context).__name__} has no nodes on the pyramid's maps")
            x = self.context(merged[0])
        elif return_nodes:
            x, *nodes = self.context(merged, return_nodes=True)
        else:
            x = self.context(merged)
        x = resize(self.reduce(x), first.shape[2:])
        x = add_conv_norm(x, first, self.fine, self.fine_norm, relu=True)
        x = self.classifier(self.dropout(self.act(self.smooth_norm(self.smooth(x)))))
        return (x, *nodes) if return_nodes else x

    def merge(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Project the maps of strides 8, 16 and 32, and add the coarser maps to each."""
        merged: list[Tensor] = []
        for x, lateral, norm in reversed(list(zip(maps, self.laterals, self.lateral_norms, strict=True))):
            above = resize(merged[0], x.shape[2:]) if merged else None
            merged.insert(0, norm(lateral(x)) if above is None else add_conv_norm(above, x, lateral, norm))
        return merged
