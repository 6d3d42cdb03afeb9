export NCCL_SOCKET_IFNAME=eth0
export NCCL_CONNECT_TIMEOUT=60

# export NCCL_DEBUG=INFO
torchrun \
    --nnodes=2 \
    --nproc_per_node=8 \
    --max_restarts=2 \
    --rdzv-id=$MASTER_ADDR \
    --rdzv-backend=c10d \
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \
    --node_rank=$PET_NODE_RANK \
    train_2_OLD.py
