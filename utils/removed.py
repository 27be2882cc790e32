"""What older versions had and this one has not, with what replaces it; for one release."""

import sys
from typing import Any, NoReturn

# {setting: (the value that switched it off, what replaces it)}. A file may keep the first; the
# settings in a checkpoint may have any value, because none of these changes its scores.
SETTINGS: dict[str, tuple[Any, str]] = {
    "run.flat_weights": (False, "nothing; gradients are always reduced in segments"),
    "run.cluster": (None, "scripts/cluster/"),
    "run.gradient_profile": (None, "scripts/analysis/plan_allreduce.py"),
    "data.packed": (None, "scripts/data/pack_images.py"),
    "run.calibration": ("val", "OpenVINO's own tools, on the exported file: docs/precision.md"),
    "run.calibration_clips": (100, "OpenVINO's own tools, on the exported file: docs/precision.md"),
    "data.balance": ("none", "train.class_weights"),
    "data.fraction": (1.0, "a shorter list"),
    "data.dataset_repeats": (1, "more train.epochs"),
    "data.min_area": (0.08, "nothing; it is always 0.08"),
    "data.mix_prob": (1.0, "data.mixup=0 and data.cutmix=0, which are off"),
    "data.mix_switch": (0.5, "nothing; it is always 0.5"),
    "train.betas": ([0.9, 0.999], "nothing; they are always [0.9, 0.999]"),
    "train.eps": (1e-8, "nothing; it is always 1e-8"),
    "train.std_weight": (25.0, "train.informative_weight"),
    "train.covariance_weight": (1.0, "train.informative_weight"),
    "run.max_overflows": (20, "nothing; it is always 20"),
    "run.sink": (False, "nothing; the host starts every step"),
    "run.op_compile": ("auto", "nothing; MindSpore chooses"),
}
# {option of a command, without dashes: what replaces it}
OPTIONS: dict[str, str] = {
    "case": "python tests/compare_case.py --config_path Y --case C",
    "videos": "of reencode_videos.py: --config_path with lists, as make_lists.py --test 1 makes",
    "tier": "lines `path start end label`, docs/segments.md",
    "cam_class": "nothing; --cam explains the most probable class",
    "layers": "nothing; utils/complexity.py counts every layer",
    "keep": "of dry_run.py: nothing; its last line has the numbers of the step",
    "topology": "--cluster='{devices_per_node: N}'",
}
# {command as in `zoo NAME`: what replaces it}; its script, if users call it, ends in the same line
COMMANDS: dict[str, str] = {
    "compare-scores": "index.html and scores.csv of eval.py --report: docs/evaluation.md",
    "average-checkpoints": "train.ema_decay, or the lines of Python in docs/evaluation.md",
}


def refuse_command(name: str) -> NoReturn:
    print(f"error: zoo {name} was removed; instead: {COMMANDS[name]}", file=sys.stderr)
    sys.exit(2)
