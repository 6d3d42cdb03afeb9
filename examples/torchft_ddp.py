"""A loop as one writes it for torchft, of which only the imports are changed: docs/torchft.md says how it is run.

Replicas may be killed at any time, and started again. Who comes in place of a dead one has the state of the others.
"""

import argparse
import os
from datetime import timedelta

import torch
from torch import nn, optim
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, TensorDataset

from rtk.manager import DistributedDataParallel, DistributedSampler, Manager, Optimizer, PGTransport, ProcessGroupGloo

REPLICA_GROUP_ID = int(os.environ.get("REPLICA_GROUP_ID", "0"))
NUM_REPLICA_GROUPS = int(os.environ.get("NUM_REPLICA_GROUPS", "3"))  # the most that there will be


class Net(nn.Module):
    """Small pictures into ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.classes = nn.Linear(8 * 7 * 7, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Each picture's scores."""
        scores: torch.Tensor = self.classes(self.features(pictures))
        return scores


def pictures(count: int) -> TensorDataset:
    """Noise, in which one of ten brightnesses can be learned."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.randn(count, 3, 16, 16, generator=generator)
    return TensorDataset(noise + labels.view(-1, 1, 1, 1) / 3, labels)


@record
def main() -> None:
    """Train until so many steps count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)

    rows = pictures(6000)
    sampler = DistributedSampler(rows, REPLICA_GROUP_ID, NUM_REPLICA_GROUPS, group_rank=0, num_replicas=1)
    loader = DataLoader(rows, batch_size=32, sampler=sampler)

    def load_state_dict(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])

    def state_dict() -> dict[str, dict[str, object]]:
        return {"model": model.state_dict(), "optim": optimizer.state_dict()}

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pg = ProcessGroupGloo(timeout=timedelta(seconds=5))
    manager = Manager(
        pg=pg,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{REPLICA_GROUP_ID}",
        timeout=timedelta(seconds=30),
        checkpoint_transport=PGTransport(pg, timeout=timedelta(seconds=10), device=torch.device(device)),
    )
    model = DistributedDataParallel(manager, Net().to(device))
    optimizer = Optimizer(manager, optim.AdamW(model.parameters()))
    criterion = nn.CrossEntropyLoss()

    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()  # who is there; a new replica has its state now
            loss = criterion(model(inputs.to(device)), labels.to(device))
            loss.backward()  # gradients are averaged over those who are there
            manager.report_loss(loss)  # the one line that torchft does not have: the coordinator shows the loss
            optimizer.step()  # steps where all have voted for it
            if manager.current_step() % 100 == 0:
                print(f"[{manager.current_step()}] {manager.num_participants()} replicas, loss {loss.item():.3f}")
            if manager.current_step() >= steps:
                raise SystemExit


if __name__ == "__main__":
    main()
