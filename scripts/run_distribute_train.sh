#!/usr/bin/env bash
# usage: [NODES=n NODE_RANK=i MASTER_ADDR=a MASTER_PORT=p] [RANK_TABLE_FILE=f]
#        bash scripts/run_distribute_train.sh [--restarts N] NETWORK DEVICES CONFIG
#        [--section.key=value ...]
#
# Trains on DEVICES devices of this node, or of each of NODES nodes, with msrun.
#
# One node:   bash scripts/run_distribute_train.sh tsm 8 tsm/configs/tsm_r50_sthv2_8f.yaml
# Two nodes:  NODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash scripts/run_distribute_train.sh ...
#             NODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 ... the same on the other
# Rank table: RANK_TABLE_FILE=/shared/hccl.json bash scripts/run_distribute_train.sh ... on each
# Restarts:   bash scripts/run_distribute_train.sh --restarts 3 tsm 8 ... goes on after failures, on one node
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
restarts=0
case "${1:-}" in
    --restarts=*) restarts=${1#*=} && shift ;;
    --restarts) restarts=${2:-} && shift $(($# > 1 ? 2 : 1)) ;;
esac
[ $# -ge 3 ] || misused
network=$1 devices=$2 config=$3
shift 3
require_network "$network"
require_count DEVICES "$devices"
install requirements.txt
exec python "$ROOT/scripts/launch.py" "--restarts=$restarts" "$devices" \
    "$ROOT/$network/train.py" --config_path "$config" "$@"
