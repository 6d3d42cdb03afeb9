#!/bin/bash
# on GPU03; on GPU01 the same with --node_rank=1
torchrun --nproc_per_node=3 --nnodes=2 --node_rank=0 --rdzv_backend=c10d --master_addr GPU03 train_sft.py
