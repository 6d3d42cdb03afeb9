#!/bin/bash
# A batch script of torchtitan with torchft, as many are: rtk doctor says what is wrong with it.
#SBATCH --job-name=llama
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=2-00:00:00
#SBATCH --signal=USR1@120

export TORCH_NCCL_ENABLE_MONITORING=0 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800
export NCCL_TIMEOUT=1800
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes 4:8 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint "$head:29500" \
    --rdzv-conf timeout=1200 -m torchtitan.train --job.config_file titan.toml
