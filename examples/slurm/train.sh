#!/bin/bash
#SBATCH --job-name=headwise
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=headwise-%j.log

# Trains one model on all GPUs of all nodes; on nodes without GPUs, with one process per node.
#   sbatch --gpus-per-node=8 --cpus-per-task=64 train.sh OUT OPTIONS-OF-HEADWISE-TRAIN
# OUT is the run directory, on a file system that the nodes share. If the job is requeued, because a node died or the
# job was preempted, the run continues from its last checkpoint.
set -euo pipefail
out=$1
shift
if [[ -f $out/metrics.json ]]; then
  exit 0
elif [[ -f $out/run.yaml ]]; then
  arguments=(--resume)
else
  arguments=("$@")
fi
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-endpoint "$(hostname):${PORT:-29500}" \
  -m headwise train --out "$out" "${arguments[@]}"
