#!/usr/bin/env bash
# Trains on one device.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: bash scripts/run_standalone_train.sh NETWORK CONFIG [--section.key=value ...]" >&2
    exit 2
fi
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
network=$1 config=$2
shift 2
require_network "$network"
install requirements.txt
exec python "$ROOT/$network/train.py" --config_path "$config" "$@"
