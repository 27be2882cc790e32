"""Settings of ResNet: types, defaults, checks."""

from dataclasses import asdict, dataclass
from typing import Literal

from utils.settings import (
    Classes,
    Evaluation,
    ImageData,
    NetworkConfig,
    TrainSettings,
    check_not_negative,
    check_positive,
)


@dataclass(frozen=True)
class Data(ImageData):
    """`train`, `test`, `val` are folders of class folders, or MindRecord files, relative to `root`.

    For the source `list` they are lists with lines `path label`. CIFAR needs neither: `root` holds
    the binary files.
    """

    source: Literal["folder", "list", "mindrecord", "cifar10", "cifar100"] = "folder"
    train: str = "train"
    test: str = "val"
    val: str = ""  # for the validations of a training; empty: `test`
    labels: str = ""  # names of the classes: utils/labels/<labels>.txt
    resize: int = 256  # short side in evaluation
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    augment: Literal["crop", "pad_crop", "none"] = "crop"  # none: as in evaluation
    policy: Literal["none", "trivial"] = "none"  # after the crop; trivial: TrivialAugmentWide
    repeats: int = 1  # crops of an image in an epoch, which then has fewer images
    batch: int = 256  # images per device

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "data", "resize", "repeats")
        if self.is_cifar and self.augment == "crop":
            raise ValueError("data.augment crop is for encoded images; CIFAR's is pad_crop")
        if self.is_cifar and self.val:
            raise ValueError(f"data.val {self.val}: CIFAR has only images for training and tests")
        if not self.is_cifar and self.augment == "pad_crop":
            raise ValueError("data.augment pad_crop is for CIFAR's images of 32 pixels")
        if self.augment == "none" and (self.policy != "none" or self.erase):
            raise ValueError("data.augment none: data.policy must be none and data.erase 0")
        if min(self.std) <= 0:
            raise ValueError("data.std must be above 0")

    @property
    def is_cifar(self) -> bool:
        return self.source.startswith("cifar")


@dataclass(frozen=True)
class Model(Classes):
    """The arguments of `build_network` that are not derived from `data`; `labels` is not one."""

    arch: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "se_resnet50"] = (
        "resnet50"
    )
    first_width: int = 64  # channels of the first stage; the others follow
    init: Literal["kaiming", "xavier"] = "kaiming"  # of the weights: see `build_network`
    fan: Literal["fan_out", "fan_in"] = "fan_out"  # mode of the Kaiming initialisation
    zero_last: bool = False  # the last batch norm of every block starts at 0
    padding: Literal["symmetric", "same", "same_pool"] = "symmetric"  # utils/nn/layers.py

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "model", "first_width")
        if self.init == "xavier" and self.fan != "fan_out":
            raise ValueError("model.fan is for model.init kaiming; xavier uses both fans")


@dataclass(frozen=True)
class Train(TrainSettings):
    """What a training does; `base_batch` counts images."""

    epochs: int = 90
    schedule_epochs: int = 0  # epochs of the learning-rate curve; 0: `epochs`
    lr: float = 0.256
    base_batch: int = 256
    schedule: Literal[
        "cosine", "torch_cosine", "tutorial_cosine", "linear", "poly", "steps", "step", "thirds"
    ] = "cosine"
    lr_changes: Literal["epoch", "update"] = "update"
    end_lr: float = 0.0
    optimizer: Literal["sgd", "lars"] = "sgd"
    trust_coefficient: float = 0.001  # lars: length of a step of rate 1 over the weight's length
    epsilon: float = 0.0  # lars: added to the divisor
    momentum: float = 0.875
    weight_decay: float = 3.0517578125e-05
    decay: Literal["norms_and_biases", "norms", "named_bn", "everything"] = "norms_and_biases"
    smoothing: float = 0.1
    smoothed: Literal["excluded", "included"] = "included"  # is the label's class smoothed too
    batch_norm: Literal["trained", "frozen"] = "trained"

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "train", "trust_coefficient")
        check_not_negative(self, "train", "end_lr")
        if self.optimizer == "lars" and (self.nesterov or self.epsilon < 0):
            raise ValueError("train.optimizer lars: nesterov must be false, epsilon not negative")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"train.warmup_epochs must be below train.epochs {self.epochs}")
        if 0 < self.schedule_epochs < self.epochs:
            raise ValueError("train.schedule_epochs must not be below train.epochs")


@dataclass(frozen=True)
class Eval(Evaluation):
    """The view of an image."""

    batch: int = 64  # images per device
    crop: int = 0  # 0: data.crop

    def __post_init__(self):
        super().__post_init__()
        check_not_negative(self, "eval", "crop")


@dataclass(frozen=True)
class Config(NetworkConfig):
    """The settings of a run."""

    data: Data
    model: Model
    train: Train = Train()
    eval: Eval = Eval()

    def __post_init__(self):
        super().__post_init__()
        if self.has_several_labels and self.data.source != "list":
            raise ValueError(
                f"model.labels multi needs data.source list: of {self.data.source}, an image has "
                "one label"
            )
        crops = {"eval.crop" if self.eval.crop else "data.crop": self.test_crop}
        if self.data.augment == "none":
            crops["data.crop"] = self.data.crop
        for name, crop in crops.items():
            if crop > self.data.resize:
                raise ValueError(f"{name} {crop} is larger than data.resize {self.data.resize}")
        cifar = {"cifar10": 10, "cifar100": 100}.get(self.data.source, 0)
        if self.model.num_classes < cifar:
            raise ValueError(
                f"model.num_classes: {self.data.source} has {cifar}, not {self.model.num_classes}"
            )

    @property
    def test_crop(self) -> int:
        """The side of the views in evaluation and prediction, and of an exported file's input."""
        return self.eval.crop or self.data.crop

    @property
    def clip_sizes(self) -> tuple[int, int, int]:
        return 1, self.data.resize, 1

    def get_clip_shape(self, side: int) -> tuple[int, ...]:
        """(3, side, side)."""
        return 3, side, side

    def model_arguments(self) -> dict:
        arguments = asdict(self.model)
        del arguments["labels"]  # the network returns logits in any case
        return {"mean": self.data.mean, "std": self.data.std, **arguments}
