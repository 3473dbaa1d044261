"""The schema of recipes: typed sections for data, model, optimization, training and testing, validated by pydantic.

A recipe determines the result of training. Settings that do not change the result, such as devices and paths
(:data:`RESUMABLE`), may differ when a run is resumed.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from repgraph.constants import SCALES, Precision

RESUMABLE = ("data.root", "data.workers", "data.cache", "train.graph", "train.devices", "train.accelerator")
MAX_SCALE, MAX_SIDE = 16, 2**14


def _as_tuple(value: Any) -> Any:
    """Accept one number for a tuple of one, and a list from JSON."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_pair(value: Any) -> Any:
    """Accept one number for a square."""
    found = _as_tuple(value)
    return found * 2 if isinstance(found, tuple) and len(found) == 1 else found


Name = Annotated[str, Field(pattern=r"^[^./\\\pC][^/\\\pC]{0,199}$")]  # of a folder that is not hidden: runs/NAME
Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Beta, Beta], BeforeValidator(_as_tuple)]
Side = Annotated[int, Field(gt=0, le=MAX_SIDE)]
Crop = Annotated[tuple[Side, Side], BeforeValidator(_as_pair)]  # height, width
Sides = Annotated[tuple[Annotated[int, Field(gt=1, le=MAX_SIDE)], ...], Field(min_length=1), BeforeValidator(_as_tuple)]
Scale = Annotated[float, Field(gt=0, le=MAX_SCALE)]
Scales = Annotated[tuple[Scale, ...], Field(min_length=1), BeforeValidator(_as_tuple)]
Flag = Annotated[bool, Field(strict=False)]  # also "yes" and "off"


class Section(BaseModel):
    """Values cannot be changed in place, are never converted silently, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Images(Section):
    """The data set, for every task."""

    name: str  # see repgraph.data
    root: str = ""
    split: str = "train"
    val_split: str = "val"  # empty: no validation
    options: dict[str, Any] = {}  # keyword arguments of the data set's reader
    flip: Flag = True  # mirror images with probability 1/2
    photometric: float = Field(0.0, ge=0, le=2)  # strength of random brightness, contrast, saturation and hue
    workers: int = Field(-1, ge=-1)  # processes that load images; -1 is one for each core, at most 16
    cache: Flag = False  # keep all decoded images in memory
    limit: NotNegative = 0  # use the first images only; 0 is all
    val_limit: NotNegative = 0
    hold_out: NotNegative = 0  # validate on every n-th image of split, and train on the others


class Data(Images):
    """Images and masks, and their augmentation: random scale, flip and crop."""

    crop: Crop = (512, 512)
    scales: Scales = SCALES


class DetectionData(Images):
    """Images with annotations in COCO's format."""

    name: str = "coco"
    by_orientation: Flag = True  # batches of landscape or portrait images only, which need less padding


class Model(Section):
    """The arguments of :func:`repgraph.models.rgnet`; the number of classes comes from the data."""

    backbone: str = Field("resnet50", min_length=1)
    weights: str = ""  # a file, a run, "timm:NAME", "pretrained" (may download) or "none"; training needs one of them
    decoder: Literal["dilated", "pyramid"] = "dilated"
    output_stride: Positive | None = None  # of the backbone; null is 8, and 32 for a pyramid
    context: str = Field("repgraph", min_length=1)  # see RGNet, or a name given to repgraph.models.register_context
    context_options: dict[str, Any] = {}
    channels: Positive | None = None  # of the head; null is 512, and 256 for a pyramid
    fusion: Literal["auto", "concat", "sum"] = "auto"
    inserted: dict[str, int] = {}
    inserted_options: dict[str, Any] = {}
    auxiliary: Flag = True
    dropout: float = Field(0.1, ge=0, lt=1)


class DetectionModel(Section):
    """The arguments of :func:`repgraph.models.mask_rcnn`; the number of classes comes from the data."""

    backbone: str = Field("resnet50", min_length=1)
    weights: str = ""  # as in Model, or "torchvision:NAME"; of a ResNet or of a whole detector
    new_predictors: Flag = False  # leave out the last layers of a detector's weights, for other classes
    context: Literal["repgraph", "paper", "simple", "non_local", "dual", "none"] = "repgraph"
    where: dict[str, int] = {}  # number of context layers by stage; empty is one before the last block of res4
    context_options: dict[str, Any] = {}
    norm: Literal["frozen", "batch"] = "frozen"  # of the ResNet; inserted layers have batch norms, see Train.norm
    trainable_stages: int = Field(3, ge=0, le=5)
    min_size: Sides = (800,)  # length of the shorter side: one of several at random, the last one in tests
    max_size: int = Field(1333, gt=1, le=MAX_SIDE)
    caffe_style: Literal["auto", "yes", "no"] = "auto"  # where a ResNet has its strides; "auto" follows the weights


class Optimizer(Section):
    """SGD with momentum or AdamW, for every task."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0)
    head: float = Field(1.0, gt=0)  # factor on the rate of all layers except the backbone
    offset: float = Field(1.0, ge=0)  # factor on the rate of the offset convolutions
    layer_decay: float = Field(1.0, gt=0, le=1)  # factor on the rate of a backbone stage for each stage after it
    momentum: float = Field(0.9, ge=0, lt=1)  # of SGD
    betas: Betas = (0.9, 0.999)  # of AdamW
    weight_decay: float = Field(1e-4, ge=0)
    no_decay: Flag = True  # exclude normalization layers and biases from weight decay
    clip: float = Field(0.0, ge=0)  # maximum norm of the gradients; 0 is no limit
    warmup: NotNegative = 0  # iterations in which the rate increases linearly
    warmup_factor: Fraction = 0.001  # of the rate, at the first iteration of the warm-up

    def warm_up(self, iteration: int) -> float:
        """Return the factor on all learning rates; 1 after the warm-up."""
        if iteration >= self.warmup:
            return 1.0
        return self.warmup_factor + (1 - self.warmup_factor) * iteration / self.warmup


class Optim(Optimizer):
    """Polynomial decay of the rate, (1 - iteration / iterations) ** power, and the loss."""

    power: float = Field(0.9, ge=0)
    auxiliary_weight: float = Field(0.4, ge=0)
    ohem: float = Field(0.0, ge=0, lt=1)  # if > 0, learn only from pixels whose true class has a lower probability
    ohem_least: NotNegative = 10_000  # minimum number of such pixels per image, on average
    # Weights of the classes in cross-entropy; empty: equal.
    class_weights: Annotated[tuple[Annotated[float, Field(ge=0)], ...], BeforeValidator(_as_tuple)] = ()


class DetectionOptim(Optimizer):
    """Linear warm-up, then decay by ``gamma`` after each of ``steps``."""

    lr: float = Field(0.02, gt=0)
    warmup: NotNegative = 500
    steps: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], BeforeValidator(_as_tuple)] = (2 / 3, 8 / 9)
    gamma: float = Field(0.1, gt=0)


class Train(Section):
    """Schedule and hardware."""

    batch: int = Field(16, gt=0, le=2**16)  # images per iteration, over all devices
    iterations: Positive = 10_000
    period: Positive = 500  # iterations between checkpoints
    validate_every: NotNegative = 1  # periods; 0 is at the end only
    accumulate: Positive = 1  # parts in which a device processes its share of the batch
    ema: float = Field(0.0, ge=0, lt=1)  # decay of the weights' moving average, which is validated and saved; 0 is off
    seed: int = Field(0, ge=0, lt=2**63)
    precision: Precision = "bf16"
    norm: Literal["sync", "local", "frozen"] = "sync"  # statistics of all GPUs, of each, or fixed
    compile: Flag = False
    graph: Flag | None = None  # replay the network's kernels as CUDA graphs; null is where possible: on one GPU
    channels_last: Flag = True
    deterministic: Flag = False
    log_every: Positive = 20
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"
    devices: NotNegative = 0  # GPUs, or processes on the CPU; 0 is all GPUs, or one process


class Test(Section):
    """Settings for testing the trained network; validation during training uses scale 1 without flip."""

    mode: Literal["whole", "slide"] = "whole"  # whole images, or overlapping windows of size crop
    crop: Crop = (512, 512)
    stride: float = Field(2 / 3, gt=0, le=1)  # distance between windows as a fraction of the crop
    scales: Scales = (1.0,)
    flip: Flag = False


class DetectionTest(Section):
    """Minimum score, overlap above which the lower-scoring of two boxes is dropped, maximum detections per image."""

    score_threshold: Fraction = 0.05
    nms_threshold: Fraction = 0.5
    detections: Positive = 100


class Recipe(Section):
    """A recipe for semantic segmentation."""

    task: ClassVar[str] = "segmentation"

    name: Name
    data: Data
    model: Model = Model()
    optim: Optim = Optim()
    train: Train = Train()
    test: Test = Test()
    description: str = ""

    def rate(self, iteration: int) -> float:
        """Return the factor on all learning rates at an iteration."""
        return self.optim.warm_up(iteration) * (1 - iteration / self.train.iterations) ** self.optim.power


class DetectionRecipe(Section):
    """A recipe for Mask R-CNN."""

    task: ClassVar[str] = "detection"

    name: Name
    data: DetectionData = DetectionData()
    model: DetectionModel = DetectionModel()
    optim: DetectionOptim = DetectionOptim()
    train: Train = Train()
    test: DetectionTest = DetectionTest()
    description: str = ""

    def rate(self, iteration: int) -> float:
        """Return the factor on all learning rates at an iteration."""
        steps = sum(iteration >= round(fraction * self.train.iterations) for fraction in self.optim.steps)
        return self.optim.warm_up(iteration) * self.optim.gamma**steps


AnyRecipe = Recipe | DetectionRecipe
