#!/usr/bin/env bash
# usage: [DEVICES=n] [NODES=n NODE_RANK=i MASTER_ADDR=a MASTER_PORT=p]
#        bash scripts/run_eval.sh NETWORK CONFIG CHECKPOINT [--section.key=value ...]
#
# Evaluates a checkpoint, on one device or on DEVICES of them:
#     bash scripts/run_eval.sh tsm tsm/configs/tsm_smoke.yaml out/tsm_smoke/epoch_008.ckpt
#     DEVICES=8 bash scripts/run_eval.sh ...
#     DEVICES=8 NODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash scripts/run_eval.sh ...
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[ $# -ge 3 ] || misused
network=$1 config=$2 checkpoint=$3
shift 3
require_network "$network"
require_count DEVICES "${DEVICES:-1}"
install requirements.txt
if [ "${DEVICES:-1}" -eq 1 ] && [ "${NODES:-1}" = 1 ]; then
    exec python "$ROOT/$network/eval.py" --config_path "$config" --checkpoint_path "$checkpoint" "$@"
fi
exec python "$ROOT/scripts/launch.py" "${DEVICES:-1}" "$ROOT/$network/eval.py" --config_path "$config" \
    --checkpoint_path "$checkpoint" "$@"
