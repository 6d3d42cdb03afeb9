"""A training script that knows nothing of rtk: torchrun --nproc-per-node 2 train.py

Rank 1 becomes slow on purpose at half time, so that `rtk monitor -- torchrun … train.py` has something to find.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iterations", type=int, default=120)
parser.add_argument("--slow-s", type=float, default=0.05, help="how long rank 1 sleeps in the second half")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
for iteration in range(options.iterations):
    inputs = torch.randn(32, 64, generator=generator)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    time.sleep(0.02)  # what a data loader takes
    if dist.get_rank() == 1 and iteration >= options.iterations // 2:
        time.sleep(options.slow_s)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and iteration % 40 == 0:
        print(f"iteration {iteration}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
