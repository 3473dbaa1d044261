"""RepGraph: long-range context from a few representative nodes (Yu et al., ECCV 2020)."""

# No imports here, not even typing: Ctrl-C prints a traceback until the command line has installed its handler.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from repgraph.acceleration import accelerate
    from repgraph.layers import (
        BottleneckRepGraph,
        DANetHead,
        DeformableAttention,
        DualAttention,
        NonLocal,
        PyramidRepGraph,
        SimpleRepGraph,
        fuse,
        insert,
        inserted,
        param_groups,
        reach,
        remove,
        stages,
    )
    from repgraph.ops import multi_scale_deformable_attention, representative_attention

__version__ = "0.2.0"
__all__ = [
    "BottleneckRepGraph", "DANetHead", "DeformableAttention", "DualAttention", "NonLocal", "PyramidRepGraph",
    "SimpleRepGraph", "__version__", "accelerate", "fuse", "insert", "inserted", "multi_scale_deformable_attention",
    "param_groups", "reach", "remove", "representative_attention", "stages",
]  # fmt: skip
_ORIGIN = dict.fromkeys(("multi_scale_deformable_attention", "representative_attention"), "repgraph.ops")
_ORIGIN |= {"accelerate": "repgraph.acceleration"}  # the others are in repgraph.layers
_MODULES = ("data", "evaluation", "inference", "layers", "models", "ops", "recipes", "train", "visualize")


def __getattr__(name: str) -> "Any":
    """Import a public name or a subpackage at first use: ``repgraph --help`` does not import torch."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"repgraph.{name}")
    if name in __all__:
        value = globals()[name] = getattr(importlib.import_module(_ORIGIN.get(name, "repgraph.layers")), name)
        return value
    raise AttributeError(f"module 'repgraph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
