#!/usr/bin/env bash
#SBATCH --job-name=zoo-dask --ntasks-per-node=1 --exclusive --mem=0 --open-mode=append
# usage: sbatch --nodes=N [options of your cluster] scripts/cluster/slurm_dask.sh SCRIPT [arguments]
#
# Starts a Dask cluster on the nodes of a Slurm job and runs one of the zoo's Python scripts on it.
# Submit it in the checkout, which all nodes see:
#     sbatch --nodes=8 scripts/cluster/slurm_dask.sh scripts/data/check_videos.py --config_path Y --out D
# The logs of Dask are in out/dask-JOB.log.
# THREADS: workers of a node, by default its cores; a few for predictions. INTERFACE: of the network, as ib0.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/../..}" # Slurm runs a copy of this file
if [ ! -f scripts/env.sh ]; then
    echo "submit this job in the folder of the zoo's checkout, not in $PWD" >&2
    exit 2
fi
# shellcheck source=scripts/env.sh
source scripts/env.sh
[ $# -ge 1 ] || misused
: "${SLURM_JOB_ID:?submit this script by sbatch}"
install requirements.txt
if ! python -c 'import distributed' 2>/dev/null; then
    say "no Dask in $VENV: pip install '.[cluster]'"
    exit 2
fi
mkdir -p out
file=$PWD/out/dask-$SLURM_JOB_ID.json
options=(--no-dashboard --scheduler-file "$file" ${INTERFACE:+--interface "$INTERFACE"})
trap 'rm -f "$file"; kill $(jobs -p) 2>/dev/null' EXIT
log=${file%.json}.log
python -m dask scheduler "${options[@]}" --port 0 --dashboard-address 127.0.0.1:0 &>>"$log" &
scheduler=$!
srun --mpi=none --cpus-per-task="$SLURM_CPUS_ON_NODE" python -m dask worker "${options[@]}" \
    --nworkers "${THREADS:-$SLURM_CPUS_ON_NODE}" --nthreads 1 --memory-limit 0 \
    --death-timeout 60 &>>"$log" &
until [ -s "$file" ]; do
    kill -0 "$scheduler" 2>/dev/null || { say "the Dask scheduler has ended; see $log" && exit 1; }
    sleep 0.2
done
address=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$file")
python "$@" --executor "dask:$address"
