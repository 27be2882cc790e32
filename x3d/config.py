"""Settings of X3D: types, defaults, checks."""

from dataclasses import asdict, dataclass
from typing import Literal

from utils.settings import (
    LARGEST_OF,
    Classes,
    Evaluation,
    NetworkConfig,
    TrainSettings,
    VideoSet,
    check_not_negative,
    check_positive,
    check_swap_labels,
)


@dataclass(frozen=True)
class Data(VideoSet):
    """The data set and its clips."""

    frames: int = 13
    stride: int = 6  # distance of two frames of a clip, in frames of a video with rate `fps`
    fps: float = 30.0
    scales: tuple[int, int] = (182, 228)  # range of the random short side in training
    crop: int = 160
    batch: int = 16  # clips per device

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "data", "frames", "stride", "fps")
        if not self.crop <= self.scales[0] <= self.scales[1] <= LARGEST_OF["crop"]:
            raise ValueError(
                f"data.scales: {list(self.scales)} must ascend from data.crop {self.crop} or more"
            )


@dataclass(frozen=True)
class Model(Classes):
    """The arguments of x3d.model.X3D that are not derived from `data`."""

    depth_factor: float = 2.2  # 5.0: X3D-L
    dropout: float = 0.5
    zero_init: bool = True  # blocks start as the identity; false learns faster for some epochs
    # utils/nn/conv3d.py
    depthwise_impl: Literal["auto", "taps", "grouped", "frames", "dense"] = "auto"
    stem_groups: bool = True  # false, with depthwise_impl dense: the Ascend port
    recompute: bool = True  # recompute activations: less memory in training, more kernels

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "model", "depth_factor")
        if not self.stem_groups and self.depthwise_impl != "dense":
            raise ValueError("model.stem_groups false needs model.depthwise_impl dense")


@dataclass(frozen=True)
class Train(TrainSettings):
    """What a training does; `base_batch` counts clips."""

    epochs: int = 300
    base_batch: int = 128
    warmup_epochs: float = 35
    warmup_lr: float = 0.01
    end_lr: float = 0.0
    nesterov: bool = True
    weight_decay: float = 5e-5
    precise_bn: int = 200  # batches of precise batch norm before every evaluation and save; 0: off
    batch_norm: Literal["trained", "frozen"] = "trained"

    def __post_init__(self):
        super().__post_init__()
        check_not_negative(self, "train", "end_lr", "precise_bn")


@dataclass(frozen=True)
class Eval(Evaluation):
    """Evaluation views: `clips` in time times `crops` in space."""

    clips: int = 10
    crops: Literal[1, 3] = 1
    crop: int = 0  # 0: data.crop if crops is 1, data.scales[0] if it is 3

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "eval", "clips")


@dataclass(frozen=True)
class Config(NetworkConfig):
    """The settings of a run."""

    data: Data
    model: Model
    train: Train = Train()
    eval: Eval = Eval()

    def __post_init__(self):
        super().__post_init__()
        if self.test_crop > self.data.scales[0]:
            raise ValueError(f"eval.crop {self.test_crop} is larger than data.scales[0]")
        check_swap_labels(self.data, self.model.num_classes)

    @property
    def test_crop(self) -> int:
        return self.eval.crop or (self.data.crop if self.eval.crops == 1 else self.data.scales[0])

    @property
    def clip_sizes(self) -> tuple[int, int, int]:
        return self.data.frames, self.test_crop, self.eval.clips * self.eval.crops

    def get_clip_shape(self, side: int) -> tuple[int, ...]:
        """(3, T, side, side)."""
        return 3, self.data.frames, side, side

    def model_arguments(self) -> dict:
        """The arguments of x3d.model.X3D.

        `model.depthwise_impl` auto: Ascend documents no grouped 3-D kernel, so it uses `taps`; a
        CPU uses `frames`, the fastest form there.
        """
        arguments = asdict(self.model)
        stem_groups = arguments.pop("stem_groups")
        several = arguments.pop("labels") == "multi"
        impl = arguments["depthwise_impl"]
        auto = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}[self.run.device]
        impl = auto if impl == "auto" else impl
        return {
            **arguments,
            "frames": self.data.frames,
            "crop": self.data.crop,
            "multi_label": several,
            "depthwise_impl": impl,
            "stem_impl": impl if impl != "dense" or not stem_groups else auto,
        }
