#!/usr/bin/env bash
# usage: bash scripts/run_standalone_train.sh NETWORK CONFIG [--section.key=value ...]
#
# Trains on one device:
#     bash scripts/run_standalone_train.sh tsm tsm/configs/tsm_smoke.yaml --train.epochs=3
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[ $# -ge 2 ] || misused
network=$1 config=$2
shift 2
require_network "$network"
install requirements.txt
exec python "$ROOT/$network/train.py" --config_path "$config" "$@"
