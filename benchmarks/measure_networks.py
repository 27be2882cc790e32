"""Measures all networks on the processor of this machine: the table of docs/measured/benchmarks.md.

    python benchmarks/measure_networks.py [--torch] [--repeats 5] [--only NAME,NAME]

Runs `benchmarks/benchmark.py step` once for each network, in float32; with --torch also in
PyTorch, if that is installed. --only takes names of recipes. Prints the table. The last line of
stdout is one JSON object: rows.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from collections.abc import Iterator

from benchmarks.results import format_table, run_script
from utils import cli
from utils.files import ROOT
from utils.messages import check_choice

# Settings by recipe, besides FIXED: batches that a small machine holds.
NETWORKS = {
    "tsm_r50_k400_8f": ["--data.batch=2"],
    "resnet50_r50_imagenet_torchvision": ["--data.batch=8"],
    "x3d_s_k400_13x6": ["--data.batch=2"],
    "x3d_m_k400_16x5": ["--data.batch=2"],
    "mvit_multi_plain_s_k400_16x4": [
        *("--data.batch=1", "--data.repeated_aug=1", "--data.mixup=0", "--data.cutmix=0"),
    ],
    "tsm_smoke": [],
    "resnet50_smoke": [],
    "x3d_smoke": [],
    "mvit_multi_smoke": [],
}
FIXED = ["--run.device=CPU", "--run.amp=O0", "--run.loss_scale=1", "--run.dynamic_loss_scale=false"]
COLUMNS = {
    "training clips/s": "train_clips_per_second",
    "PyTorch": "torch_train_clips_per_second",
    "channels last": "torch_channels_last_train_clips_per_second",
    "compiled": "torch_compiled_train_clips_per_second",
    "ratio": "train_over_torch",
    "evaluation clips/s": "eval_clips_per_second",
    " PyTorch": "torch_eval_clips_per_second",
    " channels last": "torch_channels_last_eval_clips_per_second",
    " compiled": "torch_compiled_eval_clips_per_second",
    " ratio": "eval_over_torch",
    "training GFLOP/s": "train_gflops",
    "of the product": "train_share_of_matmul",
    "compile s": "compile_seconds",
    "peak GB": "train_peak_gb",
    "  PyTorch": "torch_train_peak_gb",
    "  channels last": "torch_channels_last_train_peak_gb",
    "  compiled": "torch_compiled_train_peak_gb",
}


def main(*, torch: bool = False, repeats: cli.PositiveInt = 5, only: str = "") -> None:
    rows = []
    names = only.split(",") if only else list(NETWORKS)
    for name in names:
        check_choice(name, NETWORKS, "name of --only")
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        options = ["--config_path", str(next(ROOT.glob(f"*/configs/{name}.yaml")))]
        options += [*FIXED, *NETWORKS[name], f"--repeats={repeats}", *["--torch"] * torch]
        rows.append(run_script("benchmarks/benchmark.py", "step", *options))
    for line in format_rows(rows):
        print(line)
    print(json.dumps({"rows": rows}))


def format_rows(rows: list[dict]) -> Iterator[str]:
    header = ["config", "batch of clips", *(name.strip() for name in COLUMNS)]
    cells = []
    for row in rows:
        batch = f"{row['batch']} of {' x '.join(map(str, row['clip']))}"
        numbers = [format_number(row[key]) if key in row else "–" for key in COLUMNS.values()]
        cells.append([f"`{row['config']}`", batch, *numbers])
    return format_table(header, cells)


def format_number(value: float) -> str:
    """A number with three digits, or all digits before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    cli.run_command(main, __doc__)
