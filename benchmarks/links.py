"""How well `rtk profile links` finds delays and bandwidths that are known: `python -m rtk.benchmarks.links [-o FILE]`.

Four ranks, each in a network namespace of its own (benchmarks/slow_network), are two hosts of two. An emulated switch
holds every packet for a known delay and lets a known number of bytes a second set out. What is found beyond the delay
is the emulator's and gloo's own time, which a first run without any gives. Needs root. `loopback` are processes of
this machine without an emulator, whose truth nobody knows: how well a line fits is the figure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.slow_network.network import SlowNetwork

LINKS = (sys.executable, "-m", "rtk.cli.main", "profile", "links")
RANKS, PORT = 4, 29517
SIZES = "4B,1KB,16KB,64KB,256KB,1MB,4MB"


@dataclass(frozen=True)
class Wire:
    """What the emulator does to a packet."""

    delay_s: float
    bytes_per_s: float


QUIET = Wire(0.0, 0.0)
WITHIN, BETWEEN = Wire(0.001, 50e6), Wire(0.005, 10e6)


def emulated(within: Wire, between: Wire, repeat: int) -> dict[str, Any]:
    """What is found over such links; ranks 0 and 1 are one host, 2 and 3 the other."""
    names = [str(rank) for rank in range(RANKS)]
    with tempfile.TemporaryDirectory() as folder, SlowNetwork(names) as network:
        for source, to in ((one, other) for one in names for other in names if one != other):
            wire = within if int(source) // 2 == int(to) // 2 else between
            network.delay(source, to, wire.delay_s)
            network.rate(source, to, wire.bytes_per_s)
        file = Path(folder) / "links.json"
        command = [*LINKS, "--sizes", SIZES, "--repeat", str(repeat), "--quiet", "-o", str(file)]
        ranks = [network.run(name, command, env=_environment(int(name), network.address("0"))) for name in names]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SystemExit(f"the ranks ended with {codes}")
        told: dict[str, Any] = json.loads(file.read_text())
    return told


def _environment(rank: int, master: str) -> dict[str, str]:
    """What torchrun would say to a rank."""
    told = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
    here = {"MASTER_ADDR": master, "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "net0", "RTK_HOST": f"host{rank // 2}"}
    return {**os.environ, **{name: str(value) for name, value in (told | here).items()}}


def found_beside_true(repeat: int) -> dict[str, Any]:
    """Latency and bandwidth of both kinds of links, beside what the emulator was told."""
    quiet, slow = emulated(QUIET, QUIET, repeat), emulated(WITHIN, BETWEEN, repeat)
    rows: dict[str, Any] = {"load_average_after": list(os.getloadavg())}
    for kind, wire in (("intra_node", WITHIN), ("inter_node", BETWEEN)):
        added_s = slow[kind]["latency_s"] - quiet[kind]["latency_s"]
        rows[kind] = {
            "true": {"delay_s": wire.delay_s, "bandwidth_bytes_per_s": wire.bytes_per_s},
            "found": slow[kind],
            "found_without_emulation": quiet[kind],
            "latency_error": slow[kind]["latency_s"] / wire.delay_s - 1,
            "delay_error": added_s / wire.delay_s - 1,
            "bandwidth_error": slow[kind]["bandwidth_bytes_per_s"] / wire.bytes_per_s - 1,
            "fits": [pair["error"] for pair in slow["pairs"] if pair["within_node"] == (kind == "intra_node")],
        }
    rows["allreduce"] = [
        {key: one[key] for key in ("ranks", "error", "latency_s", "bandwidth_bytes_per_s", "over_planned")}
        for one in slow["allreduce"]
    ]
    return rows


def loopback(repeat: int, rounds: int) -> dict[str, Any]:
    """How well lines fit on this machine, with so many processes."""
    return {str(ranks): list(_loopback(ranks, repeat, rounds)) for ranks in (2, 4)}


def _loopback(ranks: int, repeat: int, rounds: int) -> Iterator[dict[str, Any]]:
    for _ in range(rounds):
        command = [*LINKS, "--processes", str(ranks), "--repeat", str(repeat), "--quiet"]
        told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        yield {
            "intra_node": told["intra_node"],
            "pairs": [pair["error"] for pair in told["pairs"]],
            "allreduce": [{"error": one["error"], "over_planned": one["over_planned"]} for one in told["allreduce"]],
            "load_average": list(os.getloadavg()),
        }


def main() -> None:
    """Both sections, or with --quick few readings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    repeat, rounds = (3, 1) if options.quick else (15, 3)
    result = {"emulated": found_beside_true(repeat), "loopback": loopback(repeat, rounds)}
    write_result(result, options.output)


if __name__ == "__main__":
    main()
