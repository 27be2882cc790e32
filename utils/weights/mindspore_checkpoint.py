"""What only a MindSpore checkpoint has: state of a training, and forms of ResNet that names tell.

`ModelCheckpoint` of MindSpore saves the train step: beside the weights the file has the state of
the optimizer, counters, learning rates and averaged weights. Read for the rules: MindSpore 2.10
(`nn/optim`, `nn/wrap`), mindspore-ai/models (commit eab643f5) and mindcv (commit 51b0636).

The forms of ResNet differ in padding and in the eps of batch norms, which no array shows:

| network | padding | eps |
| --- | --- | --- |
| mindspore-ai/models, ResNet-50, 101, 152, SE-ResNet50 | same | 1e-4 |
| mindspore-ai/models, ResNet-18, 34 | symmetric | 1e-4 inside blocks, 1e-5 elsewhere |
| mindspore-ai/models, TSM | symmetric | 1e-5 |
| mindcv, ResNets | same_pool | 1e-5 |
| PyTorch's, and this zoo's by default | symmetric | 1e-5 |
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from utils.log import log
from utils.messages import escape_control
from utils.nn.layers import PADDINGS, SYMMETRIC
from utils.weights.checkpoint_file import DESCRIPTION, PADDING

EPS = 1e-5  # of every batch norm here
COUNTERS = re.compile(
    r"global_step|momentum|learning_rate(_group_\d+)?|epoch_num|step_num|scale_sense|updates"
    r"|beta[12]_power|current_iterator_step|last_overflow_iterator_step|_?accumulation_step"
    r"|fake_lr|fake_param|cov_step|matrix_(a|g)_inv_\d+|matrix_max\d+"
)
# What people add by `append_dict`: lr, best_acc, val_top1, ...
NOTES = re.compile(r"(\w+_)?(lr|rate|loss|loss_scale|acc|accuracy|top_?[15]|metric|decay)")


def is_state(name: str, array: np.ndarray) -> bool:
    """Whether an array without axes is no weight: a count, or a number that its name explains.

    Another such number may be a learned gain, or the scale of an integer weight.
    """
    is_note = COUNTERS.fullmatch(name) or NOTES.fullmatch(name)
    return not array.ndim and (array.dtype.kind in "biu" or bool(is_note))


def drop_training_state(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The weights of a file, and the names of what is not a weight.

    These are those of `is_state`, counters by their names, and copies of weights: PREFIX.NAME of
    the shape of NAME, as `moments.conv1.weight` (momentum) and `ema.conv1.weight` (average). Most
    names with the prefix must be so: beside a network of this prefix there may be one odd NAME.
    """
    surplus: Counter[str] = Counter()  # {prefix: copies - other names}
    dropped = [name for name, a in arrays.items() if is_state(name, a) or COUNTERS.fullmatch(name)]
    copies = []
    for name, array in arrays.items():
        prefix, _, weight = name.partition(".")
        is_copy = weight in arrays and arrays[weight].shape == array.shape
        surplus[prefix] += 1 if is_copy else -1
        copies += [name] if is_copy and name not in dropped else []
    dropped += [name for name in copies if surplus[name.partition(".")[0]] > 0]
    return {name: value for name, value in arrays.items() if name not in set(dropped)}, dropped


def find_form(names: Iterable[str]) -> str:
    """The form of a ResNet by the names of its weights: a key of the table, or empty."""
    text = "\n".join(names)
    if re.search(r"^base_model", text, re.MULTILINE):
        return ""  # TSM
    if "down_sample_layer." in text and re.search(r"\bbn1d\.", text):
        return "models_basic"
    if "down_sample_layer." in text:
        return "models"
    return "mindcv" if "down_sample." in text else ""


def find_padding(file: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> str:
    """How the network of a file pads: as the file says, else as its names tell; empty if unknown.

    MindSpore's own `save_checkpoint` writes the weights of a Cell of this zoo without that text.
    Raises ValueError if the file says something unknown.
    """
    if PADDING in texts:
        padding = texts[PADDING]
        if padding not in PADDINGS:
            text = escape_control(padding)[:50]
            raise ValueError(f"{file}: {PADDING} {text} is not one of {', '.join(PADDINGS)}")
        return padding
    if "conv1_0.weight" in arrays:
        return "same"  # SE-ResNet50
    names = " ".join(arrays)
    if ".gamma" in names and "down_sample" not in names and DESCRIPTION not in texts:
        return ""
    return {"models": "same", "mindcv": "same_pool"}.get(find_form(arrays), SYMMETRIC)


def check_padding(file: Path, padding: str, setting: str) -> None:
    """Raises ValueError if the weights of a file are of a network that pads in another way.

    If the file does not tell (`padding` is empty), a warning names the setting that is taken.
    """
    if not padding:
        line = "%s does not say how its network pads: %s=%s is taken from the settings"
        log.warning(line, file, PADDING, setting)
    elif padding != setting:
        raise ValueError(
            f"{file}: its network pads in another way, which changes the scores: "
            f"give --{PADDING}={padding} instead of {setting}"
        )


def unify_eps(arrays: dict[str, np.ndarray]) -> int:
    """Changes the arrays for a network whose batch norms all have EPS.

    A norm divides by the root of moving_variance + eps. So a difference in eps is added to the
    variance: the scores stay the same. Returns the number of changed norms.
    """
    pattern = {"models": r"moving_variance$", "models_basic": r"\bbn\dd\.moving_variance$"}
    changed = pattern.get(find_form(arrays), "$^")  # which matches no name
    norms = [name for name in arrays if re.search(changed, name)]
    for name in norms:
        arrays[name] = (arrays[name].astype(np.float64) + 1e-4 - EPS).astype(np.float32)
    return len(norms)
