torchrun  --nnodes=1:2 --nproc-per-node=1 --rdzv-id=0 --rdzv-backend=c10d --rdzv-endpoint=aistudio-tb3kzwgd-ptjob-master-0:23456 --max-restarts=10 elastic-demo.py
