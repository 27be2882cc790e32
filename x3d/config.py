"""Settings of X3D: types, defaults, checks."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Optional, Union

from utils.config import Run, check_fraction, check_not_negative, check_positive, check_swap_labels


@dataclass(frozen=True)
class Data:
    """The data set. Annotation files, and the videos they name, are relative to `root`."""

    root: Path
    train_list: str
    test_list: str
    labels: str = ""  # class names: utils/labels/<labels>.txt
    packed: Optional[Path] = None  # folder of packed videos: scripts/data/pack_videos.py
    source: Literal["video", "frames"] = "video"
    image_tmpl: str = "img_{:05d}.jpg"  # if source is frames: the name of frame i, from 1
    folder_fps: float = 0.0  # frames per second of a folder of frames; 0: `fps`
    reader: Literal["auto", "pyav", "decord", "opencv"] = "auto"
    max_pixels: int = 4096 * 4096  # of a frame; a video with larger frames is unreadable
    frames: int = 13
    stride: int = 6  # distance of two frames of a clip, in frames of a video with rate `fps`
    fps: float = 30.0
    scales: tuple[int, int] = (182, 228)  # range of the random short side in training
    crop: int = 160
    flip: bool = True
    swap_labels: tuple[tuple[int, int], ...] = ()  # pairs of labels that a flip swaps
    batch: int = 16  # clips per device
    workers: Union[int, Literal["auto"]] = "auto"  # auto: this device's share of the CPU cores
    processes: Union[bool, Literal["auto"]] = "auto"  # auto: true on a CPU with more than 8 workers
    prefetch: Union[int, Literal["auto"]] = "auto"  # batches prepared in advance; auto: 2 to 8
    max_unreadable: float = 0.01  # the run stops above this fraction of unreadable videos

    def __post_init__(self):
        numbers = ("frames", "stride", "fps", "crop", "batch", "workers", "prefetch", "max_pixels")
        check_positive(self, "data", *numbers)
        check_not_negative(self, "data", "folder_fps")
        if not self.crop <= self.scales[0] <= self.scales[1]:
            raise ValueError(
                f"data.scales: {list(self.scales)} must ascend from data.crop {self.crop} or more"
            )
        check_fraction(self, "data", "max_unreadable")


@dataclass(frozen=True)
class Model:
    """The arguments of x3d.model.X3D that are not derived from `data`."""

    num_classes: int
    depth_factor: float = 2.2  # 5.0: X3D-L
    dropout: float = 0.5
    zero_init: bool = True  # blocks start as the identity; false learns faster for some epochs
    # utils/nn/conv3d.py
    depthwise_impl: Literal["auto", "taps", "grouped", "frames", "dense"] = "auto"
    stem_groups: bool = True  # false, with depthwise_impl dense: the Ascend port
    recompute: bool = True  # recompute activations: less memory in training, more kernels

    def __post_init__(self):
        check_positive(self, "model", "num_classes", "depth_factor")
        if not self.stem_groups and self.depthwise_impl != "dense":
            raise ValueError("model.stem_groups false needs model.depthwise_impl dense")


@dataclass(frozen=True)
class Train:
    """The recipe. Learning rates are for `base_batch` clips per update and scale with the batch."""

    epochs: int = 300
    lr: float = 0.1
    base_batch: int = 128  # 0: use the rates as they are
    warmup_epochs: float = 35
    warmup_lr: float = 0.01
    end_lr: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-5
    precise_bn: int = 200  # batches of precise batch norm before every evaluation and save; 0: off
    clip_norm: float = 0.0  # 0: off
    accumulation_steps: int = 1  # micro-batches per update
    ema_decay: float = 0.0  # decay of the exponential moving average of weights; 0: off
    batch_norm: Literal["trained", "frozen"] = "trained"
    pretrained: Optional[Path] = None  # a converted checkpoint
    new_head: bool = False  # the classifier starts fresh

    def __post_init__(self):
        check_positive(self, "train", "epochs", "lr", "accumulation_steps")
        check_fraction(self, "train", "ema_decay")


@dataclass(frozen=True)
class Eval:
    """Evaluation views: `clips` in time times `crops` in space."""

    clips: int = 10
    crops: Literal[1, 3] = 1
    crop: int = 0  # 0: data.crop if crops is 1, data.scales[0] if it is 3
    batch: int = 4  # videos per device
    allow_unreadable: bool = False

    def __post_init__(self):
        check_positive(self, "eval", "clips", "batch")


@dataclass(frozen=True)
class Config:
    run: Run
    data: Data
    model: Model
    train: Train = Train()
    eval: Eval = Eval()

    def __post_init__(self):
        if self.test_crop > self.data.scales[0]:
            raise ValueError(f"eval.crop {self.test_crop} is larger than data.scales[0]")
        check_swap_labels(self.data, self.model.num_classes)

    @property
    def test_crop(self) -> int:
        return self.eval.crop or (self.data.crop if self.eval.crops == 1 else self.data.scales[0])

    def model_arguments(self) -> dict:
        """The arguments of x3d.model.X3D.

        `model.depthwise_impl` auto: Ascend documents no grouped 3-D kernel, so it uses `taps`; a
        CPU uses `frames`, the fastest form there.
        """
        arguments = asdict(self.model)
        stem_groups = arguments.pop("stem_groups")
        impl = arguments["depthwise_impl"]
        auto = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}[self.run.device]
        impl = auto if impl == "auto" else impl
        return {
            **arguments,
            "frames": self.data.frames,
            "crop": self.data.crop,
            "depthwise_impl": impl,
            "stem_impl": impl if impl != "dense" or not stem_groups else auto,
        }
