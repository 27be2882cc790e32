#!/usr/bin/env bash
#SBATCH --job-name=zoo --ntasks-per-node=1 --exclusive --mem=0 --open-mode=append
#SBATCH --requeue --signal=TERM@300
# usage: sbatch --nodes=N [options of your cluster] scripts/cluster/slurm.sh SCRIPT [arguments]
#
# Runs one of the zoo's scripts on every node of a Slurm job, which becomes one training or
# evaluation. Submit it in the checkout, which all nodes see:
#     sbatch --nodes=2 scripts/cluster/slurm.sh scripts/run_distribute_train.sh tsm 8 CONFIG
#     DEVICES=8 sbatch --nodes=2 scripts/cluster/slurm.sh scripts/run_eval.sh tsm CONFIG CHECKPOINT
# Five minutes before the time limit a training saves and ends; the same command continues it.
# MASTER_ADDR: the first node's address, by default its name. MASTER_PORT: by default of the job.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/../..}" # Slurm runs a copy of this file
if [ ! -f scripts/env.sh ]; then
    echo "submit this job in the folder of the zoo's checkout, not in $PWD" >&2
    exit 2
fi
# shellcheck source=scripts/env.sh
source scripts/env.sh
[ $# -ge 1 ] || misused
: "${SLURM_NNODES:?submit this script by sbatch}"
install requirements.txt # once, before all nodes use it
export NODES=$SLURM_NNODES
export MASTER_ADDR=${MASTER_ADDR:-$(hostname)} # this runs on the first node
export MASTER_PORT=${MASTER_PORT:-$((10000 + SLURM_JOB_ID % 20000))}
# shellcheck disable=SC2016  # each node has its own SLURM_NODEID
exec srun --mpi=none --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" \
    bash -c 'NODE_RANK=$SLURM_NODEID exec bash "$@"' node "$@"
