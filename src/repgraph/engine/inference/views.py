"""An image at one scale: how it is resized, where its windows lie, and the way back."""

from dataclasses import dataclass

from repgraph.engine.inference import resample
from repgraph.engine.inference.resample import Span, Taps
from repgraph.engine.inference.settings import Settings
from repgraph.engine.inference.windows import Axis


@dataclass(frozen=True)
class Side:
    """One side of an image at one scale: ``there`` resizes the image, ``back`` the probabilities."""

    there: Taps
    back: Taps
    axis: Axis

    def windows(self, span: Span) -> tuple[int, ...]:
        """Where the windows begin that a part of the image's own side depends on."""
        return self.axis.covering(*self.back.needs(span))


@dataclass(frozen=True)
class View:
    """Both sides of an image at one scale."""

    rows: Side
    columns: Side

    @property
    def identity(self) -> bool:
        return self.rows.back.identity and self.columns.back.identity

    @property
    def window(self) -> tuple[int, int]:
        return self.rows.axis.window, self.columns.axis.window


def views(height: int, width: int, settings: Settings) -> list[View]:
    """The image at every scale; a whole image is one window of its own size."""
    found = []
    for scale in settings.scales:
        sides = []
        for place, size in enumerate((height, width)):
            new = max(1, round(size * scale))
            if settings.mode == "whole":
                axis = Axis(new, new, new)
            else:
                assert isinstance(settings.crop, tuple)
                window = settings.crop[place]
                axis = Axis(new, window, settings.step(window))
            there, back = resample.make(size, new, smooth=True), resample.make(new, size, smooth=False)
            sides.append(Side(there, back, axis))
        found.append(View(*sides))
    return found
