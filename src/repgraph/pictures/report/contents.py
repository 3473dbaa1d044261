"""What a page about runs shows, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from repgraph.pictures.curves import Points


@dataclass(frozen=True)
class Session:
    """One attempt at a run: when it began, after which iteration, by what command, and what came of it."""

    started: str
    start: int
    command: str
    outcome: str


@dataclass(frozen=True)
class Run:
    """A run. ``name`` is unlike that of any other on the page.

    ``facts`` are a line of the summary each, by what they are about; ``series`` the columns of its log, over
    iterations; ``settings`` those of its recipe by their full names, and ``usual`` those of the recipe of that name, if
    there is one; ``notes`` what was found amiss.
    """

    name: str
    facts: Mapping[str, str]
    series: Mapping[str, Points]
    settings: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)
    sessions: Sequence[Session] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Scores:
    """What a run's network scored: ``run`` is its number on the page, ``values`` has one for each class, fractions.

    ``confusion`` (K, K) has the pixels of class t that were predicted as p in row t, column p; None for objects.
    ``label`` tells several of one run apart.
    """

    run: int
    about: str  # such as "mIoU 83.7 %"
    values: Sequence[float]
    confusion: np.ndarray | None = None
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """A picture (H, W, 3) of bytes, and what stands below it; ``photo`` is packed with small losses."""

    picture: np.ndarray
    caption: str
    photo: bool = False


@dataclass(frozen=True)
class Shown:
    """One image: panels side by side."""

    name: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Sheet:
    """Images under a title, such as the best ones."""

    title: str
    about: str
    images: Sequence[Shown]


@dataclass(frozen=True)
class Test:
    """The scores of networks on the same images: of each class, and some images.

    ``shares`` has each class's share of the labelled pixels, or nothing; ``colours`` one for each class, or nothing.
    """

    title: str
    about: str
    measure: str  # "IoU", or "AP of masks"
    names: Sequence[str]
    scores: Sequence[Scores]
    colours: Sequence[Sequence[int]] = ()
    shares: Sequence[float] = ()
    sheets: Sequence[Sheet] = ()

    __test__ = False  # not one of pytest's


@dataclass(frozen=True)
class Contents:
    """A whole page. ``notes`` are for all runs, such as why there are no scores; ``links`` are names and addresses."""

    title: str
    runs: Sequence[Run]
    tests: Sequence[Test] = ()
    notes: Sequence[str] = ()
    command: str = ""
    links: Sequence[tuple[str, str]] = ()
