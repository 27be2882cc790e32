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
}
# {option of a command, without dashes: what replaces it}
OPTIONS: dict[str, str] = {
    "case": "python tests/compare_case.py --config_path Y --case C",
    "videos": "of reencode_videos.py: --config_path with lists, as make_lists.py --test 1 makes",
    "tier": "lines `path start end label`, docs/segments.md",
    "cam_class": "nothing; --cam explains the most probable class",
}
# {command as in `zoo NAME`: what replaces it}; its script, if users call it, ends in the same line
COMMANDS: dict[str, str] = {
    "compare-scores": "index.html and scores.csv of eval.py --report: docs/evaluation.md",
    "average-checkpoints": "train.ema_decay, or the lines of Python in docs/evaluation.md",
}


def refuse_command(name: str) -> NoReturn:
    print(f"error: zoo {name} was removed; instead: {COMMANDS[name]}", file=sys.stderr)
    sys.exit(2)
