"""Tests of workers and links that ranks do themselves: real processes, real sockets, and a clock of the test."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rtk.cli.main import main
from rtk.profilers.failslow.monitor.job import slow_parts
from rtk.runners.passes import ring_passes
from rtk.runners.processes import MEETING
from rtk.runners.torch import probe
from rtk.runners.torch.probe import ProbeSamples, ProbeWorkload, Product, Trials, meeting, take_readings

if __name__ != "worker":
    from ..warm import fork

SIDE, SIZE, RANKS = 8, 5000, 4
USUAL_S, SLOW_WORKER_S, SLOW_LINK_S = 1.0, 2.5, 4.0


class SlowBench(ProbeWorkload):
    """Does the real work, but tells the time itself: what one rank computes, and one link takes, is slow."""

    def __init__(self, device: torch.device, rank: int, slow_rank: int, slow_link: tuple[int, int]) -> None:
        super().__init__(device)
        self.rank, self.slow_rank, self.slow_link = rank, slow_rank, slow_link
        self.now_s = 0.0

    def multiply(self, product: Product) -> None:
        super().multiply(product)
        self.now_s += SLOW_WORKER_S if self.rank == self.slow_rank else USUAL_S

    def exchange(self, peer: int, message: torch.Tensor, is_first: bool) -> None:
        message.fill_(1 if is_first else 0)
        super().exchange(peer, message, is_first)
        assert message.min() == 1, "what was sent has come back"
        is_slow = tuple(sorted((self.rank, peer))) == self.slow_link
        self.now_s += 2 * (SLOW_LINK_S if is_slow else USUAL_S)


def be_rank(rank: int, folder: str, slow_rank: int, slow_link: tuple[int, int]) -> None:
    """A rank, which writes down what it knows in the end."""
    surround(rank, RANKS, folder)
    with meeting(os.environ[MEETING]) as device:
        bench = SlowBench(device, rank, slow_rank, slow_link)
        found = take_readings(Trials(ring_passes(RANKS), (SIZE, 2 * SIZE), SIDE, 2), bench, lambda: bench.now_s)
    compute_s = {kind: {str(r): one.compute_s[kind] for r, one in found.items()} for kind in found[0].compute_s}
    links: dict[str, dict[tuple[str, str], Any]] = {}
    for r, one in found.items():
        for (peer, bytes_), times_s in one.exchange_s.items():
            links.setdefault(str(bytes_), {})[str(r), str(peer)] = times_s
    slow = slow_parts(compute_s, links)
    told = {
        "workers": dict(slow.workers),
        "links": {"-".join(sorted(link)): factor for link, factor in slow.links.items()},
        "kinds": sorted(compute_s),
        "readings": {size: sorted(len(times_s) for times_s in of_size.values()) for size, of_size in links.items()},
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(told))


def be_command(rank: int, size: int, folder: str, slow_rank: int) -> None:
    """A rank as torchrun starts it, of `rtk probe`; one has a slow bench."""
    surround(rank, size, folder)
    bench = SlowBench(torch.device("cpu"), rank, slow_rank, (-1, -1))
    probe.ProbeWorkload = lambda device: bench  # type: ignore[assignment, misc]
    usual = probe.take_readings

    def timed(trials: Trials, made: ProbeWorkload) -> dict[int, ProbeSamples]:
        return usual(trials, made, lambda: bench.now_s)

    probe.take_readings = timed  # type: ignore[assignment]
    options = ["--sizes", "5kB", "--gemm", "8", "--repeat", "2", "--exit-code", "--quiet"]
    with Path(folder, f"{rank}.out").open("w") as out:
        os.dup2(out.fileno(), 1)
        main(["probe", *options, "-o", str(Path(folder, f"{rank}.json"))])


def surround(rank: int, size: int, folder: str) -> None:
    """What a launcher puts into the environment."""
    torch.set_num_threads(1)
    place: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", MEETING: str(Path(folder, "meeting"))}
    os.environ.update(place, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))


def test_a_slow_rank_and_a_slow_link_are_named(tmp_path: Path) -> None:
    """All ranks end with the same readings, of all types and sizes, by which the slow ones have their factors."""
    ranks = [fork(__file__, "be_rank", rank, str(tmp_path), 1, (1, 2)) for rank in range(RANKS)]
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0] * RANKS
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert all(one == told[0] for one in told)
    assert told[0] == {
        "workers": {"1": SLOW_WORKER_S},
        "links": {"1-2": SLOW_LINK_S},
        "kinds": ["float32", "float64"],
        "readings": {str(SIZE): [2] * RANKS, str(2 * SIZE): [2] * RANKS},
    }


def test_rank_0_tells_what_is_slow(tmp_path: Path) -> None:
    """`rtk probe` on three ranks: only rank 0 speaks, in a table, a sentence and JSON, and exits with 1."""
    ranks = [fork(__file__, "be_command", rank, 3, str(tmp_path), 2) for rank in range(3)]
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [1, 0, 0]
    assert [(tmp_path / f"{rank}.out").read_text() == "" for rank in range(3)] == [False, True, True]
    assert "worker 2 is slow: it computes 2.50 times as long as others" in (tmp_path / "0.out").read_text()
    told = json.loads((tmp_path / "0.json").read_text())
    assert [worker["slowdown"] for worker in told["workers"]] == [None, None, pytest.approx(2.5)]
    assert [link["ends"] for link in told["links"]] == [["0", "1"], ["0", "2"], ["1", "2"]]
    assert (told["pairs"], told["passes"], told["slow_at_their_end"]) == ("ring", 3, [])


if __name__ == "worker":
    what, *arguments = globals()["ARGUMENTS"]
    globals()[what](*arguments)
