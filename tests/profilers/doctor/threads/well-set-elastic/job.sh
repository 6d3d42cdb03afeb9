#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gres=gpu:a100:4
#SBATCH --no-kill
#SBATCH --signal=B:USR1@240
#SBATCH --open-mode=append
trap 'kill -USR1 $child; wait $child; scontrol requeue $SLURM_JOB_ID' USR1
export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=300 TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1
srun --no-kill --kill-on-bad-exit=0 --wait=0 ft_launcher --nnodes=6:8 --nproc-per-node=4 --max-restarts=20 \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-conf="join_timeout=900,last_call_timeout=120" \
    --ft-initial-rank-heartbeat-timeout=none --ft-rank-heartbeat-timeout=none \
    --ft-rank-section-timeouts=setup:900,step:120,checkpointing:600 --ft-rank-out-of-section-timeout=180 \
    train.py &
child=$!
wait $child
