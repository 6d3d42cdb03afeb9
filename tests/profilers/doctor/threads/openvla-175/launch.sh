#!/bin/bash
export NCCL_DEBUG=INFO
torchrun --standalone --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --nnodes=$WORLD_SIZE \
    --nproc-per-node 8 --node_rank=$RANK train.py --save_interval 5000
