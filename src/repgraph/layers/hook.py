"""The hooks that apply inserted layers.

A hook knows the path of its layer from the block and not the layer: with the block it may be copied, pickled or
replicated, and finds the copy's own layer.
"""

from typing import Any

import torch.fx
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Hook:
    """A hook of a block that applies the layer at ``path``, the names that lead there from the block."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        # Kept for another reason too: loading a pickled handle keeps new hooks from getting its number.
        self.handle: RemovableHandle | None = None

    def attach(self, block: nn.Module) -> None:
        raise NotImplementedError

    def detach(self) -> None:
        if self.handle is not None:
            self.handle.remove()

    def layer(self, block: nn.Module) -> nn.Module:
        for name in self.path:
            block = getattr(block, name)
        return block

    def holder(self, block: nn.Module) -> nn.Module:
        """The module whose child the layer is."""
        return block.get_submodule(".".join(self.path[:-1]))

    def apply(self, block: nn.Module, x: Any) -> Any:
        layer = self.layer(block)
        if isinstance(x, torch.fx.Proxy):
            # The layer decides by its input's shape and device, which a symbolic trace has not got: one node for it.
            return x.tracer.create_proxy("call_module", x.tracer.path_of_module(layer), (x,), {})  # type: ignore[attr-defined]
        if not isinstance(x, Tensor):
            raise TypeError(
                f"the layer inserted into a {type(block).__name__} gets a {type(x).__name__}; it needs one tensor "
                "(B, C, H, W): this network cannot take a layer here"
            )
        return layer(x)


class Before(Hook):
    """Applies the layer to the block's first argument, before the block's other hooks see it."""

    def attach(self, block: nn.Module) -> None:
        self.handle = block.register_forward_pre_hook(self, prepend=True)

    def __call__(self, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.apply(block, args[0] if args else None), *args[1:])


class After(Hook):
    """Applies the layer to the block's result."""

    def attach(self, block: nn.Module) -> None:
        self.handle = block.register_forward_hook(self)

    def __call__(self, block: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        return self.apply(block, result)


def of(block: nn.Module) -> Hook | None:
    """The hook that inserts a layer at a block, if there is one."""
    hooks = (*block._forward_pre_hooks.values(), *block._forward_hooks.values())
    for hook in hooks:
        if isinstance(hook, Hook):
            return hook
    return None
