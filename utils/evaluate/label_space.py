"""The classes of a data set, and the views and probabilities with which a network predicts them.

The `labels.py` of a network defines a `LabelSpace` for each of its data sets. Frames and views are
those of the network's evaluation.
"""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from utils.data.annotation_file import AnnotationFile, describe_list, find_class_names, find_labels
from utils.log import log
from utils.video.transforms import arrange_views

if TYPE_CHECKING:
    from utils.evaluate.scorer import Scorer
    from utils.video.windows import Window


class LabelSpace(abc.ABC):
    """The classes of one data set, and the views with which they are predicted."""

    name = ""  # of the data set, if the network has several
    names: Sequence[str] = ()  # of the classes, once `assign_class_names` has run
    names_file: Optional[Path] = None  # a file of class names, used if it exists
    test_list: Optional[AnnotationFile] = None  # None: the samples are no list
    builtin_names = ""  # the list in utils/labels
    run_folder: Optional[Path] = None  # of the checkpoint, where a training leaves its classes
    own_names: Sequence[str] = ()  # of the classes, as the checkpoint has them
    classes = 0
    columns = slice(None)  # of the scores of the network
    clips = crops = 1
    raw_scores = True  # whether the network returns logits, not probabilities
    multi_label = False  # whether a sample has any number of labels
    clips_per_pass = 0  # as in `video_scores`
    trained_seconds = 0.0  # of a video that a clip of the training covered; 0: unknown
    crop_settings: tuple = ()  # label spaces with equal ones have equal crops of a frame

    @property
    def test_path(self) -> Path:
        """The test samples: a list, or of images a folder or a file."""
        assert self.test_list is not None  # else a network overrides this property
        return self.test_list.path

    @property
    def class_folders(self) -> Sequence[str]:
        """The folders of images, by label; empty if they are unknown, or there are none."""
        return ()

    @abc.abstractmethod
    def frame_indices(self, window: "Window") -> np.ndarray:
        """The frames of all clips, counted from the window's start; any shape."""

    def make_views(self, crops: np.ndarray, order: np.ndarray) -> np.ndarray:
        """The views uint8 (V, ...) of the results of `crop_frames`.

        `order` has the shape of `frame_indices` and holds their indices in `crops`.
        """
        return arrange_views(crops, order)

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        """What the views need of frames (n, H, W, C): (n, ...). By default whole frames."""
        return frames

    def group_by_clip(self, values: np.ndarray) -> np.ndarray:
        """Values (V, ...), one for each view, as (clips, crops, ...)."""
        return values.reshape(self.clips, self.crops, *values.shape[1:])

    def select_middle_crops(self, views: np.ndarray) -> np.ndarray:
        """The views (clips, ...) of the middle crop of each clip, which pictures show."""
        return self.group_by_clip(views)[:, self.crops // 2]

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        """The frames of the middle crop of each clip: uint8 (clips, T, H, W, 3).

        Views are (V, 3, T, H, W).
        """
        return self.select_middle_crops(views).transpose(0, 2, 3, 4, 1)

    def find_names(self) -> Sequence[str]:
        """Class names without a file from the user; empty if there are none.

        They are those of the class folders if there are no others, or if the others are the same.
        """
        names = self.own_names
        names = names or find_class_names(self.names_file, self.builtin_names, self.classes)
        folders = self.class_folders
        if not folders or (names and sorted(names) != sorted(folders)):
            return names
        return [*folders, *[""] * (self.classes - len(folders))]

    def list_names(self) -> list[str]:
        """A name for each class, all empty if there are none."""
        return list(self.find_names()) or [""] * self.classes

    def name_classes(self) -> list[str]:
        """The name of each class, its number if it has none."""
        names = self.names or [""] * self.classes
        return [name or str(label) for label, name in enumerate(names)]

    def predict_probs(self, scorer: "Scorer", views: np.ndarray) -> np.ndarray:
        """Probabilities (classes,) of the mean over views."""
        from utils.evaluate.scorer import video_scores  # here: a training needs it not

        result = video_scores(scorer, views[None], self.clips_per_pass, self.columns)
        return self.compute_probs(result[0].astype(np.float64))

    def compute_probs(self, scores: np.ndarray) -> np.ndarray:
        """The softmax of logits; multi-label: their sigmoid."""
        if not self.raw_scores:
            return scores
        return sigmoid(scores) if self.multi_label else softmax(scores)


class ListSpace(LabelSpace):
    """The classes of a network for one list of videos, with the views of `cfg.eval`."""

    def __init__(self, cfg: Any):
        self.cfg = cfg
        self.classes = cfg.model.num_classes
        self.multi_label = cfg.has_several_labels
        self.builtin_names = cfg.data.labels
        self.test_list = describe_list(cfg, "test")
        self.names_file = find_labels(describe_list(cfg, "train"), self.test_list)
        self.clips = cfg.eval.clips
        self.crops = cfg.eval.crops


def list_class_names(spaces: Sequence[LabelSpace], run_folder: Path) -> dict[str, list[str]]:
    """{name of a data set: its class names} of those that have some, for their checkpoint.

    `run_folder` is that of a training. They become the spaces' own. Logs what is wrong with a file
    of names.
    """
    result = {}
    for space in spaces:
        space.run_folder = run_folder
        try:
            names = list(space.find_names())
        except ValueError as error:
            log.warning("class names are left out: %s", error)
            continue
        if names:
            space.own_names = result[space.name] = names
    return result


def find_moved_name(names: Sequence[str], own_names: Sequence[str]) -> str:
    """The first name that is also one of a checkpoint's, but of another class; else empty."""
    pairs = zip(names, own_names)
    return next((a for a, own in pairs if a and a != own and a in own_names), "")


def list_own_names(spaces: Sequence[LabelSpace], count: int) -> list[Sequence[str]]:
    """The `own_names` of `count` spaces, empty if there are no spaces."""
    return [space.own_names for space in spaces] or [()] * count


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Probabilities float64 of logits."""
    return np.exp(-np.logaddexp(0.0, -scores.astype(np.float64)))
