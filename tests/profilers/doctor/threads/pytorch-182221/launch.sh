torchrun \
  --nproc_per_node=1 \
  --nnodes=1:2 \
  --node_rank=0 \
  --rdzv_id=lstm \
  --rdzv_backend=c10d \
  --rdzv_endpoint=10.60.94.235:16682 \
  --rdzv_conf=timeout=120 \
  --max_restarts=3 \
  lstm_torch.py
