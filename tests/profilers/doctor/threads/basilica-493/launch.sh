torchrun --nnodes=2:4 --nproc-per-node=1 --rdzv-backend=etcd --rdzv-conf=timeout=1500 --max-restarts=3 train.py
