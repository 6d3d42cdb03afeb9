"""Machines that clusters are made of, by name: their GPUs, and what a node has of the network.

Rates of network cards are data sheets', of which NCCL reaches some nine tenths (`NETWORK_SHARE`) where nobody has
measured it; cards for storage and for the host's own traffic are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InvalidInputError
from .gpus import NETWORK_LATENCY_S
from .profile import Connection, Network, NodeNetwork, SideBySide
from .text import near

# What NCCL reaches of a network card's rate, as for `gpus.INTER_NODE`.
NETWORK_SHARE = 0.9
_GIGABIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A kind of node.

    Attributes:
        gpu: the kind of its GPUs.
        gpus: how many.
        path: between two GPUs of two nodes, alone.
        bandwidth_bytes_per_s: of all its network cards together, each way.
    """

    gpu: str
    gpus: int
    path: Connection
    bandwidth_bytes_per_s: float

    def network(self, side_by_side: SideBySide = "stages") -> Network:
        """What joins such nodes, for workers that sit so; the path inside a node is the GPU's own."""
        return Network(None, self.path, NodeNetwork(self.gpus, self.bandwidth_bytes_per_s, side_by_side))


def cards(count: int, rate_bytes_per_s: float, gpus: int) -> tuple[Connection, float]:
    """What one GPU has of a node's network cards while it sends alone, and what the node has in all.

    Args:
        count: of the cards.
        rate_bytes_per_s: of each, by its data sheet, each way.
        gpus: of the node; where there are fewer than cards, each has several.
    """
    reached = NETWORK_SHARE * rate_bytes_per_s
    return Connection(NETWORK_LATENCY_S, reached * max(1.0, count / gpus)), reached * count


def machine(name: str, where: str) -> MachineKind:
    """A machine by its name, whatever its case and separators.

    Raises:
        InvalidInputError: it is not known; the nearest is suggested.
    """
    wanted, known = _plain(name), {_plain(one): one for one in MACHINES}
    if wanted in known:
        return MACHINES[known[wanted]]
    nearest = near(wanted, known, least=0.5)
    suggestion = f"did you mean {known[nearest]}? " if nearest is not None else ""
    raise InvalidInputError(
        f"there is no machine {name!r}",
        where=where,
        fix=f"{suggestion}known are {', '.join(MACHINES)}; of others write nodes, GPUs and network into a file",
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _of_cards(gpu: str, count: int, gigabits_per_s: float, gpus: int = 8) -> MachineKind:
    """A node by its network cards, of so many Gb/s each."""
    return MachineKind(gpu, gpus, *cards(count, gigabits_per_s * _GIGABIT, gpus))


# Looked up in November 2026. Where a page writes GB/s for a network card it means Gb/s (Azure's pages do).
MACHINES: Mapping[str, MachineKind] = {
    # Narayanan et al., 2021, section 5 (Selene): eight HDR cards of 200 Gb/s for the program, two more for storage.
    "dgx-a100": _of_cards("a100-sxm", 8, 200),
    # NVIDIA, "DGX BasePOD: Reference Architecture", core components: eight ConnectX-7 of 400 Gb/s for computing.
    "dgx-h100": _of_cards("h100-sxm", 8, 400),
    "dgx-h200": _of_cards("h200-sxm", 8, 400),
    "dgx-b200": _of_cards("b200", 8, 400),
    # AWS, "Amazon EC2 P4d instances deep dive": 400 Gb/s; "Maximize network bandwidth on … instances with EFA": P5 and
    # P5e have 32 cards, 3,200 Gb/s in all. Of P3dn, P4de and P5en no page was at hand: they are as announced.
    "p3dn": _of_cards("v100-sxm", 1, 100),
    "p4d": _of_cards("a100-sxm-40gb", 4, 100),
    "p4de": _of_cards("a100-sxm", 4, 100),
    "p5": _of_cards("h100-sxm", 32, 100),
    "p5e": _of_cards("h200-sxm", 32, 100),
    "p5en": _of_cards("h200-sxm", 16, 200),
    # Google Cloud, "Networking and GPU machines" (compute/docs/gpus/gpu-network-bandwidth): A2 has 100 Gb/s, A3 High
    # and Mega 1,000 and 1,800, of which one card of 200 is the host's; eight ConnectX-7 with 3,200 are for GPUs only.
    "a2-highgpu-8g": _of_cards("a100-sxm-40gb", 1, 100),
    "a2-ultragpu-8g": _of_cards("a100-sxm", 1, 100),
    "a3-highgpu-8g": _of_cards("h100-sxm", 4, 200),
    "a3-megagpu-8g": _of_cards("h100-sxm", 8, 200),
    "a3-ultragpu-8g": _of_cards("h200-sxm", 8, 400),
    "a4-highgpu-8g": _of_cards("b200", 8, 400),
    # Azure, "ND A100 v4", "NDm A100 v4" (8 x 200 Gigabit HDR) and "ND H100 v5" (400 Gb/s of InfiniBand for each GPU).
    "nd-a100-v4": _of_cards("a100-sxm-40gb", 8, 200),
    "ndm-a100-v4": _of_cards("a100-sxm", 8, 200),
    "nd-h100-v5": _of_cards("h100-sxm", 8, 400),
    # Jean Zay (IDRIS), where BigScience trained: four Omni-Path links of 100 Gb/s a node. In one ring all-reduces
    # reached 5.06 GB/s over four nodes of A100, and 7 GB/s over sixteen of V100 (benchmarks of that project). What all
    # rings of a node have together is fitted to its 47 iterations on 384 A100: comparing with these tests other things.
    "jean-zay-a100": MachineKind("a100-sxm", 8, Connection(30e-6, 5.06e9), 9.2e9),
    "jean-zay-v100": MachineKind("v100-sxm", 4, Connection(30e-6, 7e9), 9.2e9),
}
