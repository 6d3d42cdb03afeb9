from datetime import timedelta

import torch.distributed as dist

LIMIT = timedelta(seconds=120)
dist.init_process_group("nccl", timeout=timedelta(seconds=120))
groups = [dist.new_group([rank], timeout=timedelta(minutes=2)) for rank in range(4)]
