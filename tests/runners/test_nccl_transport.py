"""The transport for GPUs, over gloo groups used as NCCL's are: without tags, in the order of sending.

No machine of ours has a GPU: what NCCL itself does differently is not tested here.
"""

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._C._distributed_c10d import HashStore  # noqa: E402

from rtk.planners.pipeline import plan_pipeline  # noqa: E402
from rtk.planners.shape import Shape  # noqa: E402
from rtk.runners.program import Send, lower, posting_order  # noqa: E402
from rtk.runners.torch.groups import ProcessGroupGloo, Store  # noqa: E402
from rtk.runners.torch.nccl import NcclTransport, channels  # noqa: E402
from rtk.schemas.profile import Layer, LayerCost, Profile  # noqa: E402


def gloo_group(store: Store, rank: int, size: int) -> Any:
    options = ProcessGroupGloo._Options()
    options._threads = 1
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return ProcessGroupGloo(store, rank, size, options)


def test_messages_of_a_program_arrive_though_groups_know_no_tags() -> None:
    """Every receive, posted in the sender's order, gets the very message that it names."""
    profile = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),)) for _ in range(4)))
    program = lower(plan_pipeline(profile, Shape(4, 1, 6), "zero-bubble"))
    store, everyone = HashStore(), tuple(range(4))
    got: dict[int, list[bool]] = {}

    def name(message: Any) -> float:
        return float(message.microbatch * 100 + message.link * 10 + (message.kind == "gradient"))

    def work(rank: int) -> None:
        transport = NcclTransport(
            store, rank, {everyone}, channels(program), torch.device("cpu"), make_group=gloo_group
        )
        receives = posting_order(program, rank)
        for tag, one in enumerate(receives):
            transport.post_receive(tag, one.source, torch.empty(3))
        for instruction in program.instructions[rank]:
            if isinstance(instruction, Send):
                transport.send(0, instruction.to, torch.full((3,), name(instruction.message)))
        taken = [transport.receive(tag, one.source) for tag, one in enumerate(receives)]
        transport.flush()
        total = torch.tensor([1.0])
        transport.all_reduce(everyone, total)
        right = [bool((tensor == name(one.message)).all()) for tensor, one in zip(taken, receives, strict=True)]
        got[rank] = [*right, total.item() == 4]

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(everyone)
    assert all(all(right) for right in got.values())
