"""Attribution of a slow-down by what-if replays of tables of single operations."""

import csv
import functools
import gzip
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.attribution import table as kinds
from rtk.profilers.failslow.attribution.operations import arrange
from rtk.profilers.failslow.attribution.table import COLUMNS, read_table
from rtk.profilers.failslow.attribution.what_if import WhatIfModel, findings_of, is_operation_table, replay
from rtk.schemas.errors import InvalidInputError

REAL = Path(__file__).parents[3] / "shared" / "data" / "optraces"

Row = dict[str, object]
Place = tuple[str, int, int]  # kind of computation, part of the model, micro-batch


@dataclass(frozen=True)
class Shape:
    """A made-up job.

    Attributes:
        stages: at least 2.
        peers: data-parallel peers.
        microbatches: of each pipeline.
        chunks: parts of the model a stage.
        steps: how many are recorded.
    """

    stages: int
    peers: int
    microbatches: int
    chunks: int = 1
    steps: int = 2

    def rank(self, stage: int, peer: int) -> str:
        """A worker's rank."""
        return str(stage * self.peers + peer)


SHAPES = st.builds(
    Shape,
    stages=st.integers(2, 4),
    peers=st.integers(2, 4),
    microbatches=st.integers(3, 6),
    chunks=st.integers(1, 2),
)


@dataclass(frozen=True)
class Work:
    """What takes time: an operation of a stage and peer; `other` is the receiver's stage of a message."""

    kind: str
    stage: int
    peer: int
    microbatch: int
    other: int = -1


Takes = Callable[[Work], float]


def as_usual(work: Work) -> float:
    """What an operation of a healthy job takes."""
    usual_s = {kinds.FORWARD: 1.0, kinds.BACKWARD: 2.0, kinds.GRADIENTS: 0.2, kinds.CLIP: 0.05, kinds.OPTIMIZER: 0.1}
    return usual_s.get(work.kind, 0.01)


class Pipeline:
    """One pipeline of one step, each operation as early as can be; a second opinion on `dependencies`."""

    def __init__(self, shape: Shape, peer: int, takes: Takes) -> None:
        self.shape, self.peer, self.takes = shape, peer, takes
        self.parts = shape.stages * shape.chunks
        self.begin = functools.cache(self._begin)
        self.message = functools.cache(self._message)

    def order(self, stage: int) -> list[Place]:
        """A stage's passes: 1F1B, or with several chunks all forward passes first."""
        parts, many = range(stage, self.parts, self.shape.stages), range(self.shape.microbatches)
        forward = [(kinds.FORWARD, part, m) for part in parts for m in many]
        backward = [(kinds.BACKWARD, part, m) for part in reversed(parts) for m in many]
        warm = min(self.shape.stages - stage - 1, len(many)) if self.shape.chunks == 1 else len(forward)
        both = [one for pair in zip(forward[warm:], backward, strict=False) for one in pair]
        return [*forward[:warm], *both, *backward[len(forward) - warm :]]

    def end(self, place: Place) -> float:
        """When a pass is over."""
        return self.begin(place) + self.own(place)

    def own(self, place: Place) -> float:
        """What a pass takes."""
        return self.takes(Work(place[0], place[1] % self.shape.stages, self.peer, place[2]))

    def came_from(self, place: Place) -> Place | None:
        """The pass whose result this one waits for."""
        kind, part, microbatch = place
        source = part - 1 if kind == kinds.FORWARD else part + 1
        return (kind, source, microbatch) if 0 <= source < self.parts else None

    def went_to(self, place: Place) -> Place | None:
        """The pass that waits for this one's result."""
        kind, part, microbatch = place
        target = part + 1 if kind == kinds.FORWARD else part - 1
        return (kind, target, microbatch) if 0 <= target < self.parts else None

    def _begin(self, place: Place) -> float:
        order = self.order(place[1] % self.shape.stages)
        at = order.index(place)
        before = self.end(order[at - 1]) if at else 0.0
        return max(before, self.message(place)[2]) if self.came_from(place) else before

    def _message(self, place: Place) -> tuple[float, float, float]:
        """When the message for a pass is given away, when it is asked for, and when it is there."""
        source = self.came_from(place)
        assert source is not None
        sent = max([self.end(source), *self._first(source), *self._before(source, self.went_to)])
        asked = max([0.0, *self._first(place), *self._before(place, self.came_from), *self._computed(place)])
        kind = kinds.FORWARD_SEND if place[0] == kinds.FORWARD else kinds.BACKWARD_SEND
        sender, receiver = (one[1] % self.shape.stages for one in (source, place))
        return sent, asked, max(sent, asked) + self.takes(Work(kind, sender, self.peer, place[2], receiver))

    def _alike(self, place: Place) -> list[Place]:
        return [one for one in self.order(place[1] % self.shape.stages) if one[0] == place[0]]

    def _before(self, place: Place, other: Callable[[Place], Place | None]) -> Iterator[float]:
        """The end of the message of this kind before."""
        messages = [one for one in self._alike(place) if other(one) is not None]
        at = messages.index(place)
        if at:
            earlier = other(messages[at - 1]) if other == self.went_to else messages[at - 1]
            assert earlier is not None
            yield self.message(earlier)[2]

    def _computed(self, place: Place) -> Iterator[float]:
        """The end of the pass of this kind before."""
        at = self._alike(place).index(place)
        if at:
            yield self.end(self._alike(place)[at - 1])

    def _first(self, place: Place) -> Iterator[float]:
        """The first backward messages wait for the last but one forward pass."""
        order = self.order(place[1] % self.shape.stages)
        first = next(n for n, one in enumerate(order) if one[0] == kinds.BACKWARD)
        other = [one for one in self._alike(place) if one[0] == kinds.BACKWARD]
        if place[0] == kinds.BACKWARD and first >= 2 and place == other[0]:
            yield self.end(order[first - 2])

    def rows(self) -> Iterator[tuple[Work, Place | None, float, float]]:
        """Its operations with begin and end, those after the last pass left out."""
        for stage in range(self.shape.stages):
            for place in self.order(stage):
                kind, _, microbatch = place
                yield Work(kind, stage, self.peer, microbatch), place, self.begin(place), self.end(place)
                is_forward = kind == kinds.FORWARD
                if self.came_from(place) is not None:
                    receive = kinds.FORWARD_RECV if is_forward else kinds.BACKWARD_RECV
                    _, asked, there = self.message(place)
                    yield Work(receive, stage, self.peer, microbatch), None, asked, there
                if (target := self.went_to(place)) is not None:
                    send = kinds.FORWARD_SEND if is_forward else kinds.BACKWARD_SEND
                    sent, _, there = self.message(target)
                    yield Work(send, stage, self.peer, microbatch), None, sent, there


def table(shape: Shape, takes: Takes = as_usual, pause_s: float = 0.0) -> list[Row]:
    """A job's operations, as rows of a table, all steps alike but for where they begin."""
    found: list[tuple[Work, Place | None, float, float]] = []
    for peer in range(shape.peers):
        found += Pipeline(shape, peer, takes).rows()
    over = {(stage, peer): 0.0 for stage in range(shape.stages) for peer in range(shape.peers)}
    for work, _, _, end in found:
        if work.kind in kinds.COMPUTE:
            over[work.stage, work.peer] = max(over[work.stage, work.peer], end + pause_s)
    for kind in (kinds.GRADIENTS, kinds.CLIP, kinds.OPTIMIZER):
        last = dict(over)
        for stage, peer in over:
            together = [one for (s, _), one in last.items() if s == stage or kind == kinds.CLIP]
            work = Work(kind, stage, peer, -1)
            begin = last[stage, peer]
            over[stage, peer] = (begin if kind == kinds.OPTIMIZER else max(together)) + takes(work)
            found.append((work, None, begin, over[stage, peer]))
    return [row for step in range(shape.steps) for row in _numbered(shape, step, found)]


def _numbered(shape: Shape, step: int, found: list[tuple[Work, Place | None, float, float]]) -> Iterator[Row]:
    count: dict[tuple[str, int, int], int] = {}
    for work, place, begin, end in sorted(found, key=lambda one: (one[2], one[3])):
        key = work.kind, work.stage, work.peer
        number = count[key] = count.get(key, -1) + 1
        part = place[1] if place else -1
        yield {
            "dp_rank": work.peer,
            "stage": work.stage,
            "rank": shape.rank(work.stage, work.peer),
            "step": 10 + 3 * step,
            "seq_id": number,
            "mc": part // shape.stages if place else -1,
            "mb_id": work.microbatch if place else -1,
            "gmc": part,
            "start_ts": 1000.0 * step + begin,
            "duration": end - begin,
            "optype": work.kind,
        }


def written(path: Path, rows: list[Row]) -> Path:
    """A table as a CSV file, gzipped if its name says so."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the examples of a property share."""
    return tmp_path_factory.mktemp("tables")


def slowed(is_slow: Callable[[Work], bool], factor: float) -> Takes:
    """A job of which some operations take `factor` times as long as usual."""
    return lambda work: as_usual(work) * (factor if is_slow(work) else 1.0)


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 1000), pause_s=st.sampled_from([0.0, 0.7]))
def test_a_replay_of_all_as_it_was_is_what_was_measured(shape: Shape, seed: int, pause_s: float, folder: Path) -> None:
    """With the measured times, steps take what was measured; without the time between operations, that much less."""
    draw = random.Random(seed)
    noise: dict[Work, float] = {}
    rows = table(shape, lambda work: noise.setdefault(work, as_usual(work) * draw.uniform(0.5, 2)), pause_s)
    job = arrange(read_table(written(folder / "replay.csv", rows)), "replay.csv")
    what_if = WhatIfModel.of(job, "replay.csv")
    replayed_s = replay(job, what_if.dependencies, what_if.busy_s, what_if.late_s)
    assert np.allclose(replayed_s, job.end_s, atol=1e-9)
    measured_s = job.end_s.max(axis=(0, 2))
    assert np.allclose(what_if.steps_s(what_if.busy_s), measured_s - pause_s)


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, data=st.data(), factor=st.floats(1.7, 4.0))
def test_a_slow_worker_is_named(shape: Shape, data: st.DataObject, factor: float, folder: Path) -> None:
    """A worker that computes slowly is the only cause that is found."""
    stage, peer = data.draw(st.integers(0, shape.stages - 1)), data.draw(st.integers(0, shape.peers - 1))
    takes = slowed(lambda work: (work.stage, work.peer) == (stage, peer) and work.kind in kinds.COMPUTE, factor)
    found = findings_of(written(folder / "worker.csv", table(shape, takes)))
    (event,) = found.events
    assert (event.cause, event.scope.kind, event.scope.names) == ("computation", "worker", (shape.rank(stage, peer),))
    assert (event.onset, event.confirmed, event.relief) == (0, shape.steps - 1, None)
    assert found.attribution is not None
    assert found.attribution.worker_share > 0.9


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, data=st.data(), factor=st.floats(3.0, 5.0))
def test_a_slow_stage_is_named(shape: Shape, data: st.DataObject, factor: float, folder: Path) -> None:
    """A stage that computes more than others on all peers is the only cause that is found, and no worker of it."""
    shape = replace(shape, microbatches=shape.microbatches + 3)  # with fewer, filling the pipeline is what takes long
    stage = data.draw(st.integers(0, shape.stages - 1))
    takes = slowed(lambda work: work.stage == stage and work.kind in kinds.COMPUTE, factor)
    found = findings_of(written(folder / "stage.csv", table(shape, takes)))
    (event,) = found.events
    assert (event.cause, event.scope.kind, event.scope.names) == ("computation", "stage", (str(stage),))
    assert found.attribution is not None
    assert (found.attribution.stage_share > 0.9) == (stage == shape.stages - 1)


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, data=st.data(), delay=st.floats(400, 1000))
def test_a_slow_link_is_named(shape: Shape, data: st.DataObject, delay: float, folder: Path) -> None:
    """A link over which messages are slow, in both directions, is the only cause that is found."""
    stage, peer = data.draw(st.integers(0, shape.stages - 2)), data.draw(st.integers(0, shape.peers - 1))
    ends = {stage, stage + 1}
    takes = slowed(lambda work: work.peer == peer and {work.stage, work.other} == ends, delay)
    (event,) = findings_of(written(folder / "link.csv", table(shape, takes))).events
    name = f"{shape.rank(stage, peer)}-{shape.rank(stage + 1, peer)}"
    assert (event.cause, event.scope.kind, event.scope.names) == ("communication", "link", (name,))


@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_unlike_data_are_nobodys(shape: Shape, seed: int, folder: Path) -> None:
    """Where each micro-batch takes its own time, forward and backward, all workers are let off."""
    draw = random.Random(seed)
    length: dict[tuple[int, int], float] = {}

    def takes(work: Work) -> float:
        own = length.setdefault((work.peer, work.microbatch), draw.uniform(0.2, 3.0))
        return as_usual(work) * (own if work.kind in kinds.COMPUTE else 1.0)

    # A pipeline with more work than others is slow as a whole; here each has the same amount.
    rows = table(Shape(shape.stages, 1, 6, shape.chunks), takes)
    for event in findings_of(written(folder / "data.csv", rows)).events:
        assert (event.cause, event.scope.kind) == ("computation", "job")
        assert "data" in event.evidence[0]


@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_the_order_of_rows_does_not_matter(shape: Shape, seed: int, folder: Path) -> None:
    """Rows may come in any order."""
    rows = table(shape, slowed(lambda work: work.stage == 0, 2))
    found = findings_of(written(folder / "order.csv", rows))
    random.Random(seed).shuffle(rows)
    assert findings_of(written(folder / "order.csv", rows)) == found


def test_a_healthy_job_has_no_events(tmp_path: Path) -> None:
    """Nothing is found where nothing is slow, and the shares of nothing are 0."""
    found = findings_of(written(tmp_path / "healthy.csv.gz", table(Shape(4, 2, 6))))
    assert (found.kind, found.samples, found.events) == ("operations", 2, ())
    assert found.usual_s == pytest.approx((6 + 3) * 3 + 0.35 + 6 * 0.01, rel=0.01)
    assert found.attribution is not None
    assert found.attribution.slowdown == pytest.approx(1)
    assert found.attribution.worker_share == 0


def test_two_slow_workers_are_both_named(tmp_path: Path) -> None:
    """Amending one of two helps nobody, yet both are named."""
    shape = Shape(2, 4, 4)
    takes = slowed(lambda work: (work.stage, work.peer) in {(0, 1), (1, 2)} and work.kind in kinds.COMPUTE, 2)
    (event,) = findings_of(written(tmp_path / "two.csv", table(shape, takes))).events
    assert event.scope.names == (shape.rank(0, 1), shape.rank(1, 2))


def test_two_causes_are_two_events(tmp_path: Path) -> None:
    """A slow worker and a slow link are found one after the other."""
    shape = Shape(4, 3, 6)

    def takes(work: Work) -> float:
        is_link = work.peer == 2 and {work.stage, work.other} == {2, 3}
        is_slow = (work.stage, work.peer) == (0, 1) and work.kind in kinds.COMPUTE
        return 6.0 if is_link else as_usual(work) * (3 if is_slow else 1)

    events = findings_of(written(tmp_path / "both.csv", table(shape, takes))).events
    assert {event.scope.names for event in events} == {("1",), ("8-11",)}


def test_steps_with_other_operations_are_left_out(tmp_path: Path) -> None:
    """A step that lacks an operation says nothing, and the findings say so."""
    shape = Shape(2, 3, 3, steps=4)
    rows = table(shape, slowed(lambda work: (work.stage, work.peer) == (0, 0), 3))
    found = findings_of(written(tmp_path / "cut.csv", rows[1:]))
    assert found.samples == 3
    assert any("1 steps" in sentence for sentence in found.events[0].evidence)


BAD: dict[str, tuple[Callable[[list[Row]], object], str]] = {
    "nan": (lambda rows: rows[3].update(duration="nan"), "row 4"),
    "endless": (lambda rows: rows[3].update(start_ts="inf"), "row 4"),
    "negative": (lambda rows: rows[5].update(duration=-0.5), "no less"),
    "text": (lambda rows: rows[5].update(duration="slow"), "slow"),
    "half a stage": (lambda rows: rows[5].update(stage=0.5), "whole"),
    "unknown": (lambda rows: rows[7].update(optype="backward-pass"), "backward-compute"),
    "twice": (lambda rows: rows.append(dict(rows[0])), "twice"),
    "nothing": (lambda rows: rows.clear(), "no rows"),
    "a rank in two places": (lambda rows: [row.update(rank=0) for row in rows], "rank of its own"),
    "no steps alike": (lambda rows: [row.update(step=n) for n, row in enumerate(rows)], "same operations"),
    "no time": (lambda rows: [row.update(duration=0) for row in rows], "any time"),
    "no messages": (
        lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["optype"] != kinds.FORWARD_RECV]),
        "0 forward-recv",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused(name: str, tmp_path: Path) -> None:
    """What cannot be is refused with the file, where in it, and what to do."""
    rows = table(Shape(2, 2, 3))
    spoil, told = BAD[name]
    spoil(rows)
    path = written(tmp_path / "bad.csv", rows)
    with pytest.raises(InvalidInputError, match=r"bad\.csv") as caught:
        findings_of(path)
    assert told.replace("no less", "less than no time") in str(caught.value)


def test_missing_columns_and_cut_files_are_refused(tmp_path: Path) -> None:
    """A column that is not there is named; a row, a gzip stream or a Parquet file that was cut off is refused."""
    path = tmp_path / "some.csv"
    path.write_text("optype,start_ts\noptimizer,1\n")
    with pytest.raises(InvalidInputError, match="dp_rank, stage, rank, step, seq_id, mc, mb_id, gmc, duration"):
        findings_of(path)
    path.write_text(",".join(COLUMNS) + "\n0,0,0\n")
    with pytest.raises(InvalidInputError, match=r"some.csv:2"):
        findings_of(path)
    whole = written(tmp_path / "whole.csv.gz", table(Shape(2, 2, 3))).read_bytes()
    for name, content in {"cut.csv.gz": whole[:-40], "cut.parquet": b"PAR1" + bytes(40), "empty.csv": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidInputError, match=name):
            findings_of(tmp_path / name)


def test_tables_are_told_from_other_files(tmp_path: Path) -> None:
    """Parquet and CSV with a column `optype` are tables of operations; other files are not."""
    assert is_operation_table(written(tmp_path / "table.csv", []))
    assert is_operation_table(written(tmp_path / "table.csv.gz", []))
    (tmp_path / "table").write_bytes(b"PAR1")
    assert is_operation_table(tmp_path / "table")
    for content in (b"iter,iter_s\n", b"\xff\xfe\x00", b"", b"\x1f\x8b\x00", b"1.5\n"):
        (tmp_path / "other").write_bytes(content)
        assert not is_operation_table(tmp_path / "other")
    assert not is_operation_table(tmp_path / "nowhere.csv")


def test_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow a Parquet file is refused with the command that installs it."""
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'rtk-train\[parquet\]'"):
        findings_of(tmp_path / "table.parquet")


# slow-down, share of the slowest workers, share of the last stage: data/{result,mw,ms}-*.json of the published tool
PUBLISHED = {
    "AR": (1.9730450967262543, 1.0017012777290497, -0.00121196404622606, ("worker", ("0",))),
    "SE": (1.5373613711484118, 0.025062266911209777, 0.6877108929755429, ("job", ())),
    "ST": (1.1787021836556841, 0.031404269124045224, 1.2193563788811714, ("stage", ("3",))),
}


@pytest.mark.skipif(not REAL.is_dir(), reason="the traces of real jobs are not part of the package")
@pytest.mark.parametrize("name", PUBLISHED)
def test_real_jobs_have_the_published_answers(name: str) -> None:
    """Three jobs of ByteDance: shares as the authors' tool gives them, to five digits, and their causes."""
    pytest.importorskip("pyarrow")
    found = findings_of(REAL / f"trace-{name}.parquet")
    slowdown, workers, stage, (kind, names) = PUBLISHED[name]
    assert found.attribution is not None
    assert found.attribution.slowdown == pytest.approx(slowdown, rel=1e-5)
    assert found.attribution.worker_share == pytest.approx(workers, abs=1e-5)
    assert found.attribution.stage_share == pytest.approx(stage, abs=1e-5)
    first = max(found.events, key=lambda event: event.severity)
    assert (first.cause, first.scope.kind, first.scope.names) == ("computation", kind, names)
