"""What a recipe for Mask R-CNN says: typed sections whose values are checked when they are made."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from repgraph.recipes.sections import LONGEST_SIDE, Descent, Images, Train, check, not_negative, positive

Context = Literal["repgraph", "paper", "simple", "non_local", "dual", "none"]


@dataclass(frozen=True)
class DetectionModel:
    """The network: the arguments of :func:`repgraph.models.mask_rcnn`; the number of classes comes from the data.

    - ``weights`` is where it starts: a file of a ResNet or of a whole detector, "torchvision:NAME", "timm:NAME" or
      "pretrained" (which may download), or "none" for random numbers. Empty means that it has to be said.
    - ``new_predictors`` leaves out the last layers of a whole detector's weights, for other classes.
    - ``where`` has the number of layers for each stage; empty is one before the last block of res4.
    - ``norm`` is that of the ResNet; inserted layers have batch normalisation of their own, as ``train.norm`` says.
    - Of several ``min_size`` one is drawn for each image in training; the last is that of tests.
    - ``caffe_style`` says where a ResNet's strides are; "auto" is as the file with its weights says.
    """

    backbone: str = "resnet50"
    weights: str = ""
    new_predictors: bool = False
    context: Context = "repgraph"
    where: dict[str, int] = field(default_factory=dict)
    context_options: dict[str, Any] = field(default_factory=dict)
    norm: Literal["frozen", "batch"] = "frozen"
    trainable_stages: int = 3
    min_size: tuple[int, ...] = (800,)
    max_size: int = 1333
    caffe_style: Literal["auto", "yes", "no"] = "auto"

    def __post_init__(self) -> None:
        check(bool(self.backbone), "model.backbone", self.backbone, "the name of a ResNet, such as resnet50,")
        check(0 <= self.trainable_stages <= 5, "model.trainable_stages", self.trainable_stages, "a number from 0 to 5")
        good = len(self.min_size) > 0 and all(1 < side <= LONGEST_SIDE for side in self.min_size)
        check(good, "model.min_size", self.min_size, f"one number above 1 and up to {LONGEST_SIDE}, or several")
        good = 1 < self.max_size <= LONGEST_SIDE  # of sides of 1 pixel, rounding may leave none
        check(good, "model.max_size", self.max_size, f"a number above 1 and up to {LONGEST_SIDE}")


@dataclass(frozen=True)
class DetectionData(Images):
    """The images, with annotations in COCO's format; see :class:`~repgraph.recipes.sections.Images`.

    ``by_orientation``: a batch has either wide images or high ones, so that less of it is padding.
    """

    name: str = "coco"
    by_orientation: bool = True


@dataclass(frozen=True)
class DetectionOptim(Descent):
    """SGD whose rate grows for ``warmup`` iterations, from ``warmup_factor`` of it, and later falls in steps.

    ``steps`` are shares of all iterations, after each of which the rate is multiplied by ``gamma``. What else there is:
    :class:`~repgraph.recipes.sections.Descent`.
    """

    lr: float = 0.02
    warmup: int = 500
    warmup_factor: float = 0.001
    steps: tuple[float, ...] = (2 / 3, 8 / 9)
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "optim", "gamma")
        not_negative(self, "optim", "warmup")
        check(0 <= self.warmup_factor <= 1, "optim.warmup_factor", self.warmup_factor, "a number from 0 to 1")
        check(all(0 < s <= 1 for s in self.steps), "optim.steps", self.steps, "shares of the iterations, up to 1,")


@dataclass(frozen=True)
class DetectionTest:
    """What counts as found: the least score, the overlap above which the weaker of two goes, the most in an image."""

    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    detections: int = 100

    def __post_init__(self) -> None:
        for name in ("score_threshold", "nms_threshold"):
            value = getattr(self, name)
            check(0 <= value <= 1, f"test.{name}", value, "a number from 0 to 1")
        positive(self, "test", "detections")


@dataclass(frozen=True)
class DetectionRecipe:
    """All that decides what is learned, and what came of it elsewhere (``description``)."""

    task: ClassVar[str] = "detection"

    name: str
    data: DetectionData = DetectionData()
    model: DetectionModel = DetectionModel()
    optim: DetectionOptim = DetectionOptim()
    train: Train = field(default_factory=Train)
    test: DetectionTest = DetectionTest()
    description: str = ""

    def rate(self, iteration: int) -> float:
        """The factor on all rates at an iteration.

        >>> recipe = DetectionRecipe("mine", train=Train(iterations=90_000))
        >>> [round(recipe.rate(iteration), 4) for iteration in (0, 250, 500, 60_000, 80_000)]
        [0.001, 0.5005, 1.0, 0.1, 0.01]
        """
        optim, total = self.optim, self.train.iterations
        passed = sum(iteration >= round(share * total) for share in optim.steps)
        warm = 1.0
        if iteration < optim.warmup:
            warm = optim.warmup_factor + (1 - optim.warmup_factor) * iteration / optim.warmup
        return warm * optim.gamma**passed
