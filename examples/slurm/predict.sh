#!/bin/bash
#SBATCH --job-name=headwise-predict
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=headwise-%j.log

# Predicts the rows of files on all GPUs of all nodes.
#   sbatch --gpus-per-node=8 --cpus-per-task=64 predict.sh RUN FILES --out OUT
# The run, the files and OUT must be on a file system that the nodes share. If the job is requeued, it continues.
set -euo pipefail
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-endpoint "$(hostname):${PORT:-29500}" \
  -m headwise predict "$@" --resume
