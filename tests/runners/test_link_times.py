"""`rtk profile links` by real ranks over real sockets, with a clock of the test: what comes out is known exactly."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from rtk.cli.main import main
from rtk.runners.processes import MEETING
from rtk.runners.torch import probe
from rtk.runners.torch.probe import LinkReadings, LinkTrials, ProbeWorkload
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, NodeNetwork, Profile

if __name__ != "worker":
    from ..warm import fork

RANKS = 4
INTRA, INTER = Connection(1e-5, 1e10), Connection(1e-4, 1e9)
SLOW = (0, 3), 2.5  # between the nodes: how many times as long everything takes
OVER = 3.0  # how many times as long as a ring sums take
ALONE = 3 * 3 * 2  # exchanges of a pair that is alone: three sizes, three rounds, each after one of a byte
CROWDED = 1.6  # how many times as long a byte takes while all of a node exchange


class StraightBench(ProbeWorkload):
    """Does the real work, but tells the time itself: exactly by alpha and beta."""

    def __init__(self, device: torch.device, rank: int) -> None:
        super().__init__(device)
        self.rank = rank
        self.now_s = 0.0
        self.met = Counter[int]()

    def exchange(self, peer: int, message: torch.Tensor, is_first: bool) -> None:
        message.fill_(1 if is_first else 0)
        super().exchange(peer, message, is_first)
        assert message.min() == 1, "what was sent has come back"
        path = INTRA if self.rank // 2 == peer // 2 else INTER
        is_slow = (min(self.rank, peer), max(self.rank, peer)) == SLOW[0]
        self.met[peer] += 1
        assert path.bandwidth_bytes_per_s is not None
        longer = (CROWDED if self.met[peer] > ALONE else 1.0) / path.bandwidth_bytes_per_s
        self.now_s += 2 * (SLOW[1] if is_slow else 1.0) * (path.latency_s + longer * message.numel())

    def sum(self, numbers: torch.Tensor, group: Any) -> None:
        numbers.fill_(1)
        super().sum(numbers, group)
        ranks = distributed.get_process_group_ranks(group)
        assert numbers.min() == len(ranks), "all have given their share"
        path = INTRA if len({rank // 2 for rank in ranks}) == 1 else INTER
        self.now_s += OVER * path.ring_s(4 * numbers.numel(), len(ranks))


class MortalBench(ProbeWorkload):
    """The process of one rank ends in the middle of the tests."""

    def sum(self, numbers: torch.Tensor, group: Any) -> None:
        if os.environ["RANK"] == "1":
            os._exit(9)
        super().sum(numbers, group)


def be_command(rank: int, folder: str) -> None:
    """A rank as torchrun starts it, one of two on its host."""
    surround(rank, RANKS, folder)
    os.environ["RTK_HOST"] = "one" if rank < 2 else "other"
    bench = StraightBench(torch.device("cpu"), rank)
    probe.ProbeWorkload = lambda device: bench  # type: ignore[assignment, misc]
    usual = probe.take_link_readings

    def timed(trials: LinkTrials, made: ProbeWorkload, **_: object) -> LinkReadings:
        return usual(trials, made, lambda: bench.now_s)

    probe.take_link_readings = timed  # type: ignore[assignment]
    files = ["--into", str(Path(folder, "given.json")), "-o", str(Path(folder, f"{rank}.json"))]
    call(folder, rank, ["--sizes", "4B,1000B,100KB", "--repeat", "2", "--json", *files])


def be_mortal(rank: int, folder: str) -> None:
    """One of two ranks, of whom one ends too early."""
    surround(rank, 2, folder)
    probe.ProbeWorkload = MortalBench  # type: ignore[misc]
    call(folder, rank, ["--sizes", "4B,1KB", "--repeat", "1"])


def call(folder: str, rank: int, options: list[str]) -> None:
    """The command, its standard output and error in files."""
    for stream, name in ((1, "out"), (2, "err")):
        with Path(folder, f"{rank}.{name}").open("w") as file:
            os.dup2(file.fileno(), stream)
    main(["profile", "links", *options])


def surround(rank: int, size: int, folder: str) -> None:
    """What a launcher puts into the environment."""
    torch.set_num_threads(1)
    place = {"GLOO_SOCKET_IFNAME": "lo", MEETING: str(Path(folder, "meeting"))}
    os.environ.update(place, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))


def same(found: dict[str, Any], wanted: Connection, factor: float = 1.0) -> bool:
    """Whether a path of a document is so many times as slow as a given one."""
    assert found["latency_s"] == pytest.approx(factor * wanted.latency_s)
    assert wanted.bandwidth_bytes_per_s is not None
    return bool(found["bandwidth_bytes_per_s"] == pytest.approx(wanted.bandwidth_bytes_per_s / factor))


def test_all_paths_are_found_and_written_into_a_profile(tmp_path: Path) -> None:
    """Four ranks on two hosts: every path exactly, the slow pair, what a node has, and a profile with a new network."""
    given = Profile((Layer((LayerCost(1.0, 2.0, 3.0),), "a"),), {"name": "m"}, network=Network(Connection(1.0), None))
    write_document(str(tmp_path / "given.json"), given)
    ranks = [fork(__file__, "be_command", rank, str(tmp_path)) for rank in range(RANKS)]
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0] * RANKS, (tmp_path / "0.err").read_text()
    assert [(tmp_path / f"{rank}.out").read_text() for rank in range(1, RANKS)] == [""] * 3
    told = json.loads((tmp_path / "0.out").read_text())
    for pair in told["pairs"]:
        ends = (pair["from"], pair["to"])
        assert same(pair, INTRA if pair["within_node"] else INTER, SLOW[1] if ends == SLOW[0] else 1.0)
        assert pair["error"]["worst"] < 1e-9
    assert [(pair["from"], pair["to"]) for pair in told["pairs"] if pair["slow_bandwidth"]] == [SLOW[0]]
    assert [one["ranks"] for one in told["allreduce"]] == [[0, 1, 2, 3], [0, 1], [2, 3], [0, 2]]
    for one in told["allreduce"]:
        assert same(one, INTRA if one["within_node"] else INTER, OVER)
        assert list(one["over_planned"].values()) == pytest.approx([OVER] * 3)
    (both,) = told["nodes"]
    assert (both["hosts"], both["pairs"]) == (["one", "other"], [[0, 2], [1, 3]])
    assert both["worth_pairs"] == pytest.approx(2 / CROWDED)
    written = read_document(str(tmp_path / "0.json"), Profile)
    assert written.network.node == NodeNetwork(2, both["bandwidth_bytes_per_s"], "stages")
    assert both["bandwidth_bytes_per_s"] == pytest.approx(2 / CROWDED * 1e9)
    assert (written.layers, written.model, written.origin) == (given.layers, given.model, given.origin)
    assert same(told["intra_node"], INTRA) and same(told["inter_node"], INTER)
    assert written.network.intra_node == Connection(**told["intra_node"])
    assert written.network.inter_node == Connection(**told["inter_node"])
    said = (tmp_path / "0.err").read_text()
    assert "one and other: 2 pairs at once have 1.25 GB/s in all, as much as 1.25 pairs that are alone" in said
    assert "pair 0-3 is slow: a byte takes 2.50 times as long as on others" in said
    assert "all-reduce of all 4: 97.66 KiB take 3.00 times what a ring over such pairs would" in said


def test_a_rank_that_dies_ends_the_others_with_an_error(tmp_path: Path) -> None:
    """Who is left says so, exits with 5 and writes nothing."""
    ranks = [fork(__file__, "be_mortal", rank, str(tmp_path)) for rank in range(2)]
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [5, 9]
    assert "see whether another rank has failed" in (tmp_path / "0.err").read_text()
    assert (tmp_path / "0.out").read_text() == ""


if __name__ == "worker":
    what, *arguments = globals()["ARGUMENTS"]
    globals()[what](*arguments)
