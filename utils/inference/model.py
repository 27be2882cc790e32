"""The Python interface: `load` a network with its weights, then `predict`; docs/python.md.

`load_cell` and `start` are for MindSpore programs: docs/use_the_cells.md.

It prints nothing. Errors are ValueErrors of one line, for a video a VideoError. MindSpore is
imported only if it computes, or for the first export of a checkpoint to another inference engine.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from utils import runtime
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import Scorer, Steps, video_scores, view_features
from utils.evaluate.windows import choose_passes, read_ahead, read_windows
from utils.files import ROOT, check_target
from utils.inference.checkpoint import assign_class_names, build_network, load_for_inference
from utils.inference.engines import FileScorer
from utils.inference.load import CachedScorer, open_scorer
from utils.inference.prediction import (
    Prediction,
    RankedClasses,
    RankedSets,
    WindowResult,
    name_values,
)
from utils.load_config import find_recipes, load_config, resolve_yaml
from utils.messages import check_choice, format_value
from utils.networks import (
    Network,
    find_network,
    find_network_of_yaml,
    list_networks,
    load_own_config,
)
from utils.settings import LARGEST, NetworkConfig, Run, VideoData
from utils.video.images import ArrayFrames
from utils.video.reader import FrameReader, VideoError
from utils.video.windows import Window, split_into_windows
from utils.weights.checkpoint_file import open_weights, read_checkpoint
from utils.weights.preparation import resolve_checkpoint
from utils.weights.published import find_published, list_published

if TYPE_CHECKING:
    from mindspore import nn

    from utils.inference.stream import Stream

AnyPath = Union[str, Path]
Source = Union[str, Path, np.ndarray]  # a video, a folder of frames or an image; or frames
Settings = Union[Mapping[str, Any], Sequence[str]]
DEVICES: set[str] = set()  # on which MindSpore computes in this process
# (kind, least, most, words) of an argument
INTEGER = (Integral, 1, LARGEST, "an integer of at least 1")
FRACTION = (Real, 0, 1, "a number from 0 to 1")
LEAST_0 = (Real, 0, LARGEST, "a number of at least 0")
ABOVE_0 = (Real, np.nextafter(0, 1), LARGEST, "a number above 0")
NUMBERS = {"num_classes": INTEGER, "workers": INTEGER, "top": INTEGER, "threshold": FRACTION}
NUMBERS |= {"window": LEAST_0, "retry": LEAST_0, "step": ABOVE_0, "fps": ABOVE_0}


def list_recipes(network: str = "") -> list[str]:
    """The names of all recipes, or of one network's; `load` takes them."""
    if network:
        check_choice(network, list_networks(), "network")
    recipes = find_recipes().items()
    return sorted(name for name, path in recipes if network in ("", path.parent.parent.name))


def list_weights(pattern: str = "*") -> list[str]:
    """The names of published weights that match, as `tsm*`; `load` and `load_cell` take them."""
    names = [name for name, entry in list_published().items() if not entry.unused]
    return sorted(fnmatch.filter(names, pattern))


def load(
    recipe: AnyPath,
    checkpoint: AnyPath = "",
    *,
    device: str = "",
    labels: AnyPath = "",
    settings: Settings = (),
    network: str = "",
) -> Model:
    """The network of a recipe with the weights of a file: .ckpt, .onnx or .mindir.

    A checkpoint of the zoo describes itself: `load("out/run/best.ckpt")` needs no recipe.
    `checkpoint` may also be the name of published weights (docs/weights.md), which are downloaded
    if they are missing; alone, `load("x3d_s")`, it names both the weights and their recipe.
    `recipe` is a name of `list_recipes`, or the path of a config file; `network` is needed for a
    config file that is not in a network's folder. `device` (CPU, GPU, Ascend) is by default that
    of the recipe. `labels` is a file with a line for each class. `settings` replace those of the
    recipe: {"eval.clips": 2}, or ["eval.clips=2"].

    Raises ValueError, also for a second device: MindSpore allows one in a process.
    """
    overrides = list_overrides(settings, device)
    if not checkpoint:
        return build_model(*load_described(recipe, overrides), labels=labels)
    chosen, cfg = load_recipe(recipe, overrides, network)
    path = resolve_checkpoint(os.fspath(checkpoint))
    return build_model(chosen, cfg, path, labels)


def load_recipe(
    recipe: AnyPath, overrides: Sequence[str], network: str = ""
) -> tuple[Network, NetworkConfig]:
    """The network and the settings of a recipe; the arguments as in `load`."""
    path = resolve_yaml(Path(recipe))
    if network:
        check_choice(network, list_networks(), "network")
    chosen = find_network(network) if network else find_network_of_yaml(path)
    return chosen, load_config(chosen.config, path, overrides)


def load_described(
    weights: AnyPath, overrides: Sequence[str]
) -> tuple[Network, NetworkConfig, str]:
    """Network, settings and path of a file that describes itself, or of published weights."""
    if os.path.isfile(weights):
        return *load_own_config(Path(weights), overrides), os.fspath(weights)
    name = os.fspath(weights)
    check_choice(name, list_published(), "checkpoint or name of published weights")
    entry = find_published(name)
    overrides = [*(setting.removeprefix("--") for setting in entry.settings), *overrides]
    return *load_recipe(ROOT / entry.recipe, overrides), resolve_checkpoint(name)


def load_cell(
    weights: AnyPath,
    num_classes: int | Sequence[int] | None = None,
    *,
    device: str = "",
    settings: Settings = (),
) -> nn.Cell:
    """The network of a checkpoint as a Cell for a MindSpore program, in float32 and graph mode.

    `weights` is the path of a checkpoint of the zoo, or a name of `list_weights`. With
    `num_classes` the classifier is a new one of so many classes; a network of several data sets
    needs a list, with a number for each. `device` and `settings` as in `load`.
    """
    from utils.weights import checkpoint

    network, cfg, path = load_described(weights, list_overrides(settings, device))
    changes: dict[str, Any] = {}
    if num_classes is not None:
        counts = [*num_classes] if isinstance(num_classes, Sequence) else [num_classes]
        for count in counts:
            check_numbers(num_classes=count)
        own = cfg.class_counts
        if len(counts) != len(own):
            raise ValueError(f"num_classes: give a number for each data set, as {[*own]}")
        is_tuple = isinstance(cfg.model_arguments()["num_classes"], tuple)
        changes["num_classes"] = tuple(counts) if is_tuple else counts[0]
    start_device(cfg.run)
    net = build_network(network, cfg, **changes)
    naming = network.parameter_names() if changes else None
    checkpoint.load(net, Path(path), bool(changes), head=network.classifier, naming=naming)
    return net.set_train(False)


def start(
    recipe: AnyPath, *, device: str = "", settings: Settings = (), network: str = ""
) -> tuple[Network, NetworkConfig, runtime.Runtime]:
    """The network and settings of a recipe, and the rank of this process; starts MindSpore.

    The arguments as in `load`.
    """
    chosen, cfg = load_recipe(recipe, list_overrides(settings, device), network)
    start_device(cfg.run)
    return chosen, cfg, runtime.start(cfg.run)


def list_overrides(settings: Settings, device: str = "") -> list[str]:
    """`section.key=value` of every setting, as on the command line, and of the device if given."""
    if isinstance(settings, Mapping):
        settings = [
            f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}"
            for name, value in settings.items()
        ]
    return [*settings, *([f"run.device={device}"] if device else [])]


def build_model(
    network: Network, cfg: NetworkConfig, checkpoint: AnyPath, labels: AnyPath = ""
) -> Model:
    """The model with the settings `cfg`; else as `load`."""
    heads = network.list_label_spaces(cfg)
    file = open_weights(Path(checkpoint))
    assign_class_names(heads, os.fspath(labels), file)
    with runtime.borrow_context(cfg.run):
        scorer = open_scorer(network, cfg, file, start=functools.partial(start_device, cfg.run))
    return Model(network, cfg=cfg, scorer=scorer, heads=heads)


def start_device(run: Run) -> None:
    """Starts MindSpore; ValueError if this process already computes on another device."""
    others = DEVICES - {run.device}
    if others:
        raise ValueError(f"run.device {run.device}: this process computes on {others.pop()}")
    runtime.start_device(run)
    DEVICES.add(run.device)


class Model(contextlib.AbstractContextManager["Model"]):
    """A network with its weights; `load` makes it.

    Threads may share it. At the end of a `with` block, or by `close`, it gives its memory back.
    """

    def __init__(
        self, network: Network, cfg: NetworkConfig, scorer: Scorer, heads: Sequence[LabelSpace]
    ):
        self.network = network
        self.cfg = cfg
        self.scorer = scorer
        self.heads = heads
        choose_passes(heads, scorer.device)

    def close(self, *_: object) -> None:
        """Gives the memory of the network back; then a prediction is a ValueError."""
        with runtime.CONTEXT_LOCK:  # not while a thread computes
            self.scorer = None

    __exit__ = close

    @property
    def names(self) -> list[str] | dict[str, list[str]]:
        """The class names, numbers where a class has none; of several data sets {name: names}."""
        return name_values(self.heads, [head.name_classes() for head in self.heads])

    def predict(
        self,
        source: Source,
        top: int = 5,
        fps: float | None = None,
        window: float | None = None,
        threshold: float = 0.0,
    ) -> Prediction:
        """The `top` classes and their probabilities, with the views of the recipe's evaluation.

        The result is a list of pairs, of several data sets {name of the set: list}; it also has the
        probabilities of all windows and classes. Classes below `threshold` are left out; if none
        remains, the class is `none`.

        `source` is the path of a video, a folder of frames or, for resnet50, an image; or frames
        uint8 (T, H, W, 3) in RGB, `fps` of them in a second, or an image (H, W, 3). A video above
        30 seconds is divided into windows of 10 seconds, whose mean is returned; `window` is
        another length in seconds, 0 the whole video.

        Raises VideoError for a video that cannot be read, ValueError for other arguments.
        """
        check_numbers(top=top, threshold=threshold)
        return self.score_windows(self.read(source, window, fps), top, threshold)[0]

    def predict_many(
        self,
        paths: Iterable[Source],
        workers: int = 4,
        top: int = 5,
        window: float | None = None,
        threshold: float = 0.0,
        fps: float | None = None,
    ) -> Iterator[tuple[Source, Prediction | VideoError]]:
        """Each path, in order, with its prediction, or the VideoError of one that cannot be read.

        Frames as in `predict` are taken too: a batch uint8 (N, T, H, W, 3) is N videos.
        `workers` threads decode the next videos, at most one window of each, while the network
        computes. `threshold`: as in `predict`.
        """
        check_numbers(top=top, threshold=threshold)
        read = functools.partial(self.read, window=window, fps=fps)
        return run_many(read, paths, workers, lambda p: self.score_windows(p, top, threshold)[0])

    def features_many(
        self, paths: Iterable[Source], workers: int = 4, fps: float | None = None
    ) -> Iterator[tuple[Source, np.ndarray | VideoError]]:
        """Each path with its `features` (C,), as `predict_many` gives predictions."""
        read = functools.partial(self.read, window=0, fps=fps)
        return run_many(read, paths, workers, self.average_features)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Inside, MindSpore's context is borrowed from the program."""
        with runtime.borrow_context(self.cfg.run):
            if self.scorer is None:
                raise ValueError("this model is closed; load it again")
            yield

    def scores(self, clips: np.ndarray) -> np.ndarray:
        """float32 (N, classes), what the network computes for clips uint8 (N, ...).

        A clip has the sizes that the exported network takes (docs/export.md). The classes of
        several data sets are concatenated.
        """
        clips = self.check_clips(clips)
        with self.computing():
            return video_scores(self.scorer, clips[:, None], self.heads[0].clips_per_pass)

    def features(self, source: Source) -> np.ndarray:
        """The input of the classifier, float32: (N, C) for clips uint8 (N, ...) as in `scores`.

        For the path of a video (C,): the mean over the test views of the whole video; of several
        data sets, those of the first. Raises VideoError for a video that cannot be read.
        """
        if isinstance(source, (str, os.PathLike)):
            return self.average_features(self.read(source, window=0))
        return self.compute_features(self.check_clips(source))

    def average_features(self, parts: Iterable[tuple[Window, list[np.ndarray]]]) -> np.ndarray:
        """float32 (C,), the mean over the views of the only window of `read`."""
        ((_, views),) = parts
        return self.compute_features(views[0]).mean(axis=0, dtype=np.float64).astype(np.float32)

    def compute_features(self, clips: np.ndarray) -> np.ndarray:
        with self.computing():
            return view_features(self.scorer, clips, self.heads[0].clips_per_pass)

    def check_clips(self, clips: np.ndarray) -> np.ndarray:
        """The clips; ValueError for an array that does not hold clips uint8 (N, ...)."""
        clips = np.asarray(clips)
        *sizes, _, _ = self.network.get_input_shape(self.cfg)
        if clips.dtype != "uint8" or clips.shape[1:-2] != tuple(sizes) or not clips.size:
            expected = ", ".join(map(str, ["N", *sizes, "H", "W"]))
            raise ValueError(f"clips must be uint8 ({expected}), not {clips.dtype} {clips.shape}")
        return clips

    def open(self, source: Source, fps: float | None = None) -> FrameReader:
        """The frames of `source`, as in `predict`."""
        if isinstance(source, (str, os.PathLike)):
            if fps is not None:
                raise ValueError("fps is for frames in memory; a video has its own")
            return self.network.open_frames(self.cfg, os.fspath(source))
        frames = np.asarray(source)
        data = self.cfg.data
        if not isinstance(data, VideoData):
            return ArrayFrames(frames, fps or 0.0, is_image=True)
        channels = 2 if data.is_flow else 3
        return ArrayFrames(frames, fps=fps or 0.0, channels=channels, max_pixels=data.max_pixels)

    def read(
        self, source: Source, window: float | None = None, fps: float | None = None
    ) -> Iterator[tuple[Window, list[np.ndarray]]]:
        """The windows of a video, each with the views of each head."""
        check_numbers(window=window, fps=fps)
        with self.open(source, fps) as reader:
            yield from read_windows(reader, split_into_windows(reader, window), self.heads)

    def score_windows(
        self, parts: Iterable[tuple[Window, list[np.ndarray]]], top: int, threshold: float = 0.0
    ) -> tuple[Prediction, WindowResult]:
        """The prediction for the windows of `read`, and its highest-scoring window.

        Only that window's views stay in memory.
        """
        spans = []
        by_window = []
        best = None
        highest = -1.0
        for window, views in parts:
            with self.computing():
                probs = [head.predict_probs(self.scorer, v) for head, v in zip(self.heads, views)]
            spans.append(window.span)
            by_window.append(probs)
            confidence = max(float(values.max()) for values in probs)
            if confidence > highest:
                best, highest = WindowResult(window, views, probs), confidence
        by_head = [np.stack(values) for values in zip(*by_window)]
        if len(self.heads) == 1:
            classes = RankedClasses(self.heads, spans, by_head, threshold)
            classes.extend(classes.top(top))
            return classes, best
        sets = RankedSets(self.heads, spans, by_head, threshold)
        sets.update(sets.top(top))
        return sets, best

    def stream(
        self,
        source: AnyPath | int,
        window: float | None = None,
        step: float | None = None,
        *,
        fps: float | None = None,
        top: int = 5,
        threshold: float = 0.0,
        save: AnyPath = "",
        overwrite: bool = False,
        retry: float = 30.0,
    ) -> Stream:
        """The results of a camera (its number), an address such as `rtsp://`, or a video.

        A window of `window` seconds begins every `step` seconds; networks that read frame by frame
        take `fps` frames per second. Each result has `start`, `end` and `top`. Classes below
        `threshold` are left out; if none remains, the class is `none`. `save` is an mp4 file with
        the labels drawn in; `overwrite` replaces an existing one. A source that breaks off is
        opened again for up to `retry` seconds, then the iteration raises VideoError. Docs:
        docs/streams.md.

        Raises VideoError if the source cannot be opened, ValueError for other arguments.
        """
        from utils.inference.stream import open_stream  # here: it imports what draws captions

        times = {"window": window, "step": step, "fps": fps}
        check_numbers(**times, retry=retry, top=top, threshold=threshold)
        if save:
            check_target(Path(save), [str(source)], "save", overwrite)
        return open_stream(self, str(source), retry, save, times, top=top, threshold=threshold)

    def open_steps(self, shape: tuple[int, ...]) -> Steps:
        """The network for frames of this shape (C, H, W), by the engine of `run.engine`."""
        if self.cfg.run.engine_precision != "f32":
            raise ValueError("run.engine_precision: frame by frame it is f32; or give a window")
        scorer = self.scorer
        if isinstance(scorer, CachedScorer):
            scorer = scorer.open((1, *shape), online=True)
        if isinstance(scorer, FileScorer):
            path, shapes = scorer.path, scorer.buffers
            if shapes is None:
                raise ValueError(f"{path} takes clips: give --window, or export it with --online")
            return Steps(scorer.run, [np.zeros(shape, np.float32) for shape in shapes])
        spec = self.network.describe_export(self.cfg, online=True)
        return spec.open_steps(spec.wrap(self.load_cell()).set_train(False))

    def load_cell(self) -> nn.Cell:
        """The network of the checkpoint as a Cell, in float32; ValueError for another file."""
        path = self.scorer.name
        if Path(path).suffix in (".mindir", ".onnx"):
            raise ValueError(f"MindSpore computes this network from a checkpoint, not {path}")
        start_device(self.cfg.run)
        file = read_checkpoint(Path(path))
        return load_for_inference(self.network, self.cfg, file, "O0")


def run_many(
    read: Callable[[Source], Iterator[Any]],
    sources: Iterable[Source],
    workers: int,
    compute: Callable[[Iterator[Any]], Any],
) -> Iterator[tuple[Source, Any]]:
    """Each source with `compute(read(source))` or its VideoError; threads read ahead."""
    check_numbers(workers=workers)
    for source, parts in read_ahead(read, sources, workers):
        try:
            result = compute(parts)
        except VideoError as error:
            result = error
        yield source, result


def check_numbers(**values: float | None) -> None:
    """Raises ValueError for an argument that is not None and not as NUMBERS says."""
    for name, value in values.items():
        kind, least, most, words = NUMBERS[name]
        is_number = isinstance(value, kind) and value is not True and least <= value <= most
        if value is not None and not is_number:
            raise ValueError(f"{name} must be {words}, not {format_value(value)}")
