"""What a rank's tests of itself and its links give: the other two ranks are pretended, and their answers are there at
once."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from rtk.runners.passes import one_at_a_time, passes_of, ring_passes
from rtk.runners.torch import probe
from rtk.runners.torch.probe import LinkTrials, ProbeWorkload, Trials, take_link_readings, take_readings

from ..cli.shell import Done, rtk

RANKS = 3
CPU = torch.device("cpu")


@contextmanager
def among(rank: int) -> Iterator[torch.device]:
    """Be one of three ranks, of which the others answer at once."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    try:
        yield CPU
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has measured, all have; groups are made without anybody else."""
    monkeypatch.setattr(torch.distributed, "new_group", lambda *_, **__: torch.distributed.group.WORLD)
    monkeypatch.setattr(probe, "gathered", lambda own, control: [own] * RANKS)


@pytest.fixture
def asked(pretended: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run a command as a launcher starts it on some rank."""

    def command(rank: int, *arguments: str) -> Done:
        monkeypatch.setattr(probe, "meeting", lambda file: among(rank))
        place = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
        return rtk(*arguments, environment=os.environ | place)

    return command


def _ticking() -> Callable[[], float]:
    """A clock by which everything takes a second."""
    seconds = count()
    return lambda: float(next(seconds))


@pytest.mark.usefixtures("pretended")
def test_each_test_has_its_readings() -> None:
    """Products in all types and messages of all sizes are timed as often as asked; a message counts half its round."""
    with among(0):
        bench = ProbeWorkload(CPU)
        found = take_readings(Trials(ring_passes(RANKS), (8, 64), 4, 2), bench, _ticking())
    assert sorted(found) == [0, 1, 2]
    assert found[0].compute_s == {"float32": [1.0, 1.0], "float64": [1.0, 1.0]}
    assert {size for _, size in found[0].exchange_s} == {8, 64}
    assert {peer for peer, _ in found[0].exchange_s} <= {1, 2}
    assert all(times_s == [0.5, 0.5] for times_s in found[0].exchange_s.values())
    assert found[0].place.device == "cpu"


@pytest.mark.usefixtures("pretended")
def test_links_and_sums_are_timed_at_every_size() -> None:
    """Of each pair and each group there are as many readings as asked, without the first round, which warms up."""
    told: list[tuple[int, int]] = []
    with among(0):
        trials = LinkTrials(one_at_a_time(passes_of(RANKS)), (4, 64), 2)
        found = take_link_readings(trials, ProbeWorkload(CPU), _ticking(), lambda *far: told.append(far))
    assert {pair: dict(of_size) for pair, of_size in found.exchange_s.items()} == {
        pair: {4: [0.5, 0.5] * RANKS, 64: [0.5, 0.5] * RANKS} for pair in ((0, 1), (0, 2))
    }
    assert {group: dict(of_size) for group, of_size in found.allreduce_s.items()} == {
        (0, 1, 2): {4: [1.0, 1.0], 64: [1.0, 1.0]}
    }
    assert told == [(done, len(told)) for done in range(len(told))]


@pytest.mark.parametrize("as_json", [False, True])
def test_rank_0_alone_tells_of_a_probe(as_json: bool, asked: Callable[..., Done]) -> None:
    """It says what products and messages took, in a table or as JSON; the others say nothing."""
    options = ["--sizes", "5kB", "--gemm", "8", "--repeat", "2", *(["--json"] if as_json else [])]
    first, second = asked(0, "probe", *options), asked(1, "probe", *options)
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, "")
    if as_json:
        told = json.loads(first.stdout)
        assert [one["rank"] for one in told["workers"]] == ["0", "1", "2"]
        assert {len(times_s) for one in told["workers"] for times_s in one["compute_s"].values()} == {2}
        assert (told["pairs"], told["passes"]) == ("ring", len(ring_passes(RANKS)))
    else:
        assert "float64" in first.stdout
        assert "ring, 3 passes" in first.stdout


def test_rank_0_alone_tells_of_links(asked: Callable[..., Done]) -> None:
    """It writes the fits as JSON, and says them in words, with a bar of how far all are; the others say nothing."""
    options = ["profile", "links", "--sizes", "4B,64KiB", "--repeat", "2"]
    first, second = asked(0, *options), asked(1, *options)
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, "")
    told = json.loads(first.stdout)
    assert [one["rank"] for one in told["ranks"]] == [0, 1, 2]
    assert [one["ranks"] for one in told["allreduce"]] == [[0, 1, 2]]
    assert "all ranks are on one host" in first.stderr
