#!/usr/bin/env bash
# usage: bash scripts/verify_device.sh [--device Ascend|GPU|CPU] [--devices N]
#
# Checks the zoo on the devices of this host, in less than an hour: a golden case of each network in
# float32 without HF32 and TF32, a short training on N devices (default 1), and a training that is
# killed and continues. Prints what failed; the exit status is then 1, and the logs are in
# out/verify_device.XXXXXX.
#
# Without --device it takes the Ascend or the GPU of this host. On a CPU the networks are small,
# and it proves nothing about a device.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
device=CPU devices=1 failed=()
[ -z "$(compgen -G '/dev/nvidia[0-9]*')" ] || device=GPU
[ -z "$(compgen -G '/dev/davinci[0-9]*')" ] || device=Ascend
while [ $# -gt 0 ]; do
    case "$1 ${2:-}" in
        "--device Ascend" | "--device GPU" | "--device CPU") device=$2 ;;
        "--devices "*) require_count --devices "${2:-}" && devices=$2 ;;
        *) misused ;;
    esac
    shift 2
done
install requirements.txt
export PYTHONPATH="$ROOT"
mkdir -p "$ROOT/out"
work=$(mktemp -d "$ROOT/out/verify_device.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

check() { # NAME COMMAND...: runs it, with its output in NAME.log
    say "$1 ..."
    if ! "${@:2}" >"$work/$1.log" 2>&1; then
        failed+=("$1")
        say "$1 failed: $(tail -n 1 "$work/$1.log")"
    fi
}

check_parity() { # NETWORK CASE: scores and loss within 1e-3, norms of gradients and updates within 0.1
    local result
    result=$(python "$ROOT/tests/compare_case.py" --tolerance=0.1 "--run.device=$device" \
        "--config_path=$ROOT/$1/configs/$1_smoke.yaml" "--case=$ROOT/$1/tests/golden/$2.json") || return 1
    echo "$result"
    python -c '
import json, sys

result = json.loads(sys.argv[1])
errors = result["largest"]
passed = not result["first"] and max(errors["forward"], errors["loss"]) <= 1e-3
sys.exit(0 if passed else f"errors {errors}")
' "${result##*$'\n'}"
}

check_training() {
    python "$ROOT/scripts/launch.py" "$devices" "${train[@]}" "--run.out=$work/training" || return 1
    python -c '
import json, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
losses = [row["loss"] for row in rows if "loss" in row]
sys.exit(0 if min(losses[1:]) < 0.99 * losses[0] else f"the loss does not fall: {losses}")
' "$work/training/log.jsonl"
}

check_resume() { # on a CPU the weights must be equal bit for bit; a device adds in another order
    local run status=0
    python "${train[@]}" "--run.out=$work/killed" &
    run=$!
    until grep -Eqs '"step": ([4-9]|[0-9]{2})' "$work/killed/state.json"; do
        kill -0 $run 2>/dev/null || return 1
        sleep 0.1
    done
    kill -9 $run
    wait $run || status=$?
    [ $status -eq 137 ] || { echo "the run ended before it could be killed" && return 1; }
    python "${train[@]}" "--run.out=$work/killed" || return 1
    python "${train[@]}" "--run.out=$work/whole" || return 1
    python -c '
import sys
from pathlib import Path

from scripts.analysis.activations import relative_error
from utils.weights.checkpoint_file import list_epochs, read

expected, weights = (read(list_epochs(Path(folder))[-1]) for folder in sys.argv[1:3])
largest = max(relative_error(weights[name], expected[name]) for name in expected)
sys.exit(0 if largest <= float(sys.argv[3]) else f"the weights differ by {largest:.2g}")
' "$work/whole" "$work/killed" "$([ "$device" = CPU ] && echo 0 || echo 0.01)"
}

say "verifying $devices x $device"
check resnet50 check_parity resnet50 resnet50_small
check tsm check_parity tsm tsm_r50_8f_small
check x3d check_parity x3d x3d_s_small
check mvit_multi check_parity mvit_multi mvit_multi_small
check videos python "$ROOT/scripts/data/synthesize_videos.py" --out "$work/videos" --train 8 --test 1
train=("$ROOT/tsm/train.py" "--config_path=$ROOT/tsm/configs/tsm_smoke.yaml" "--run.device=$device"
    "--data.root=$work/videos" --data.batch=8 --train.lr=0.05 --train.epochs=8 --run.log_every=8
    --run.save_steps=2 --run.amp=O0 --run.tf32=false)
if [ "$device" = CPU ]; then
    train+=(--model.first_width=8 --data.segments=4 --data.crop=32 --data.resize=40)
fi
check training check_training
check resume check_resume
if [ ${#failed[@]} -gt 0 ]; then
    say "failed: ${failed[*]}; the logs are in $work"
    exit 1
fi
rm -r "$work"
say "all passed"
