#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_IB_TIMEOUT=22 NCCL_DEBUG=WARN
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

TRAINING_ARGS=(
    --micro-batch-size 1   # of each replica
    --distributed-timeout-minutes 20
    --distributed-timeout-seconds-after-init 300
    --exit-signal-handler
)
SAVING="--save /ckpt/gpt --load /ckpt/gpt --save-interval 500"
LAUNCHER="torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_backend c10d \
    --rdzv_endpoint $MASTER_ADDR:29500 --max_restarts 0 --tee 3"
SRUN_ARGS=" \
    --wait=60 \
    --kill-on-bad-exit=1 \
    --jobid $SLURM_JOB_ID \
    "
srun $SRUN_ARGS bash -c "$LAUNCHER pretrain_gpt.py ${TRAINING_ARGS[*]} $SAVING" 2>&1 | tee -a log.txt
