torchrun --nnodes=2:4 --rdzv-backend=etcd-v2 --rdzv-conf=timeout=1500 --max-restarts=3 train.py
