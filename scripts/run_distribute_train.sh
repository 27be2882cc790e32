#!/usr/bin/env bash
# Trains on DEVICES devices of this node, or of each of NODES nodes, with msrun.
#
# One node:   bash scripts/run_distribute_train.sh tsm 8 tsm/configs/tsm_r50_sthv2_8f.yaml
# Two nodes:  NODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash scripts/run_distribute_train.sh ...
#             NODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 ... the same on the other
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: [NODES=n NODE_RANK=i MASTER_ADDR=a MASTER_PORT=p]" \
        "bash scripts/run_distribute_train.sh NETWORK DEVICES CONFIG [--section.key=value ...]" >&2
    exit 2
fi
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
network=$1 devices=$2 config=$3
shift 3
require_network "$network"
require_count DEVICES "$devices"
install requirements.txt
exec python "$ROOT/scripts/launch.py" "$devices" "$ROOT/$network/train.py" --config_path "$config" "$@"
