#!/usr/bin/env bash
# usage: [DATA_URL=obs://B/D] [OUT_URL=obs://B/O] bash scripts/cluster/modelarts.sh SCRIPT [arguments]
#
# The boot command of a training job on ModelArts, for one of the zoo's scripts:
#     bash scripts/cluster/modelarts.sh scripts/run_distribute_train.sh tsm 8 CONFIG
# Translates the variables of ModelArts to NODES, NODE_RANK and MASTER_ADDR. Copies DATA_URL to data/
# and OUT_URL, if it exists, to out/. Node 0 copies out/ back every ten minutes (OUT_SECONDS) and at
# the end, so a job that is started again continues. The copies need moxing, which ModelArts' images
# have in their Python (MOXING_PYTHON, by default python).
set -euo pipefail
moxing=${MOXING_PYTHON:-$(command -v python || true)} # env.sh puts another Python first
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
[ $# -ge 1 ] || misused
cd "$ROOT"
hosts=${VC_WORKER_HOSTS:-127.0.0.1} # HOST,HOST or HOST:PORT,HOST:PORT
export NODES=${MA_NUM_HOSTS:-1} NODE_RANK=${VC_TASK_INDEX:-0} MASTER_ADDR=${hosts%%[,:]*}

copy() { # SOURCE TARGET
    "$moxing" -c 'import sys, moxing; moxing.file.copy_parallel(*sys.argv[1:])' "$1" "$2"
}

save() { if [ -n "${OUT_URL:-}" ] && [ "$NODE_RANK" = 0 ] && [ -d out ]; then copy out "$OUT_URL"; fi; }

exists() { # URL
    "$moxing" -c 'import sys, moxing; sys.exit(not moxing.file.exists(sys.argv[1]))' "$1"
}

if [ -n "${DATA_URL:-}" ]; then copy "$DATA_URL" data; fi
if [ -n "${OUT_URL:-}" ] && exists "$OUT_URL"; then copy "$OUT_URL" out; fi
bash "$@" &
job=$!
trap 'kill -TERM $job' TERM INT
set -m # a process group: its sleep ends with it
while sleep "${OUT_SECONDS:-600}"; do save || say "$OUT_URL: not copied; trying again later"; done &
saver=$!
set +m
status=0
wait "$job" || status=$?
while kill -0 "$job" 2>/dev/null; do # a signal has ended the first wait
    status=0
    wait "$job" || status=$?
done
kill -- "-$saver"
save
exit "$status"
