"""Who makes iterations slow, told from when ranks come to the calls that they make together."""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.profilers.failslow.monitor.job import Heard, Meeting, Span, WatchedJob, blame, meetings_of
from rtk.profilers.shim.recorder import DONE, NOBODY, RingReader, Writer
from rtk.schemas.detection import FailSlow

USUAL, SLOW = 12, 10
JITTER = 0.02

Job = tuple[list[Meeting], list[Span]]


def _sums(
    ranks: int,
    parts: int,
    is_blocking: bool,
    slowed: Mapping[int, float],
    transfer: float,
    seed: int,
    usual: int = USUAL,
    slow: int = SLOW,
) -> Job:
    """A job that sums several parts an iteration, waiting for each or only for the last; some iterations are slow.

    Args:
        ranks: how many.
        parts: how many sums an iteration has.
        is_blocking: each sum is waited for (as FSDP does), not only the last one (DDP).
        slowed: ranks that compute so many times as long.
        transfer: how many times as long transfers take.
        seed: of the jitter.
        usual, slow: how many iterations are usual, and how many after them slow.
    """
    random, now_s, meetings, spans = Random(seed), [0.0] * ranks, [], []
    for iteration in range(usual + slow):
        is_slow = iteration >= usual
        begin_s, free_s = max(now_s), max(now_s)
        for _ in range(parts):
            for rank in range(ranks):
                factor = slowed.get(rank, 1.0) if is_slow else 1.0
                now_s[rank] += factor * (1 + JITTER * random.random()) / parts
            meeting = Meeting("0", tuple(range(ranks)), arrivals_s=dict(enumerate(now_s)))
            taken_s = 0.5 / parts * (transfer if is_slow else 1.0)
            free_s = max(free_s, *now_s) + taken_s
            meeting.ends_s = dict.fromkeys(range(ranks), free_s)
            meetings.append(meeting)
            if is_blocking:
                now_s = [free_s] * ranks
        now_s = [free_s] * ranks
        spans.append((begin_s, free_s))
    return meetings, spans


_shapes = st.tuples(st.integers(2, 6), st.integers(1, 5), st.booleans())
_seeds = st.integers(0, 999)


@settings(max_examples=60, deadline=None)
@given(_shapes, st.floats(1.3, 4.0), st.data(), _seeds)
def test_rank_that_computes_slowly_is_named(
    shape: tuple[int, int, bool], factor: float, data: st.DataObject, seed: int
) -> None:
    """However many sums there are, waited for or not: the rank that others wait for is named, alone."""
    rank = data.draw(st.integers(0, shape[0] - 1))
    meetings, spans = _sums(*shape, {rank: factor}, 1.0, seed)
    found = blame(meetings, spans[:USUAL], spans[USUAL:])
    assert (found.cause, found.scope.kind, found.scope.names) == ("computation", "worker", (str(rank),))


@settings(max_examples=60, deadline=None)
@given(_shapes, st.floats(4.0, 9.0), _seeds)
def test_slow_transfers_are_told_from_late_ranks(shape: tuple[int, int, bool], factor: float, seed: int) -> None:
    """Where transfers take longer, and nobody comes late, it is communication: of a link, or of a group of more."""
    meetings, spans = _sums(*shape, {}, factor, seed)
    found = blame(meetings, spans[:USUAL], spans[USUAL:])
    where = ("link", ("0-1",)) if shape[0] == 2 else ("group", ("0",))
    assert (found.cause, found.scope.kind, found.scope.names) == ("communication", *where)


@settings(max_examples=40, deadline=None)
@given(_shapes, st.floats(1.3, 4.0), _seeds)
def test_nobody_is_named_where_all_are_slow_alike(shape: tuple[int, int, bool], factor: float, seed: int) -> None:
    """Where all ranks compute slowly, it is computation, of the job."""
    meetings, spans = _sums(*shape, dict.fromkeys(range(shape[0]), factor), 1.0, seed)
    found = blame(meetings, spans[:USUAL], spans[USUAL:])
    assert (found.cause, found.scope.kind, found.scope.names) == ("computation", "job", ())


def _pipeline(stages: int, microbatches: int, slowed: Mapping[int, float], link: tuple[int, float], seed: int) -> Job:
    """GPipe: all forwards, then all backwards; messages are waited for when they are needed, sends never."""
    random, now_s, meetings, spans = Random(seed), [0.0] * stages, [], []
    for iteration in range(USUAL + SLOW):
        is_slow, begin_s = iteration >= USUAL, now_s[0]
        for way in (range(stages), range(stages - 1, -1, -1)):
            for _ in range(microbatches):
                arrived: Meeting | None = None
                for stage in way:
                    if arrived is not None:
                        (sender, sent_s), posted_s = next(iter(arrived.arrivals_s.items())), now_s[stage]
                        taken_s = link[1] if is_slow and min(sender, stage) == link[0] else 0.01
                        end_s = max(posted_s, sent_s + taken_s)
                        arrived.arrivals_s[stage], arrived.ends_s[stage] = posted_s, end_s
                        arrived.waited_s[stage] = end_s - posted_s
                        meetings.append(arrived)
                        now_s[stage] = end_s
                    factor = slowed.get(stage, 1.0) if is_slow else 1.0
                    now_s[stage] += factor * (1 + JITTER * random.random())
                    to = stage + way.step
                    ends = (min(stage, to), max(stage, to))
                    arrived = Meeting(f"{ends[0]}-{ends[1]}", ends, is_message=True, arrivals_s={stage: now_s[stage]})
        spans.append((begin_s, now_s[0]))
    return sorted(meetings, key=lambda one: max(one.arrivals_s.values())), spans


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(1, 8), st.floats(1.5, 4.0), st.data(), _seeds)
def test_slow_stage_of_a_pipeline_is_named(
    stages: int, microbatches: int, factor: float, data: st.DataObject, seed: int
) -> None:
    """In a pipeline all stages wait for the slow one, also for each other; it alone is named, wherever it is."""
    stage = data.draw(st.integers(0, stages - 1))
    meetings, spans = _pipeline(stages, microbatches, {stage: factor}, (-1, 0.0), seed)
    found = blame(meetings, spans[:USUAL], spans[USUAL:])
    assert (found.cause, found.scope.kind, found.scope.names) == ("computation", "worker", (str(stage),))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(1, 8), st.floats(2.0, 6.0), st.data(), _seeds)
def test_slow_link_of_a_pipeline_is_named(
    stages: int, microbatches: int, delay_s: float, data: st.DataObject, seed: int
) -> None:
    """A link whose messages are late is named, and not the stages that come late because of it."""
    lower = data.draw(st.integers(0, stages - 2))
    meetings, spans = _pipeline(stages, microbatches, {}, (lower, delay_s), seed)
    found = blame(meetings, spans[:USUAL], spans[USUAL:])
    assert (found.cause, found.scope.kind, found.scope.names) == ("communication", "link", (f"{lower}-{lower + 1}",))


def test_without_calls_together_nobody_is_blamed() -> None:
    """Where the ranks of other hosts are not seen, the cause is unknown, and said to be."""
    alone = [Meeting("0", (0, 1), arrivals_s={0: float(second)}) for second in range(4)]
    found = blame(alone, [(0.0, 1.0), (1.0, 2.0)], [(2.0, 4.0)])
    assert found.cause == "unknown"
    assert found.evidence == ("the ranks of this host have no calls together",)


BUCKET_BYTES = 1 << 20


def _write(folder: Path, meetings: Sequence[Meeting], parts: int = 1) -> None:
    """Rings of all ranks, with their calls and ends at the times of a job that sums several parts an iteration."""
    ranks = sorted({rank for meeting in meetings for rank in meeting.ranks})
    writers = {rank: Writer(str(folder), rank) for rank in ranks}
    orders: dict[tuple[object, ...], count[int]] = {}
    for number, meeting in enumerate(meetings):
        # The sender of a message is who called without standing waiting for it.
        sender = next((rank for rank in meeting.ranks if rank not in meeting.ends_s), NOBODY)
        for rank, arrival_s in meeting.arrivals_s.items():
            writer = writers[rank]
            op = ("send" if rank == sender else "recv") if meeting.is_message else "all_reduce"
            peer = next(other for other in meeting.ranks if other != rank) if meeting.is_message else NOBODY
            tag = 0 if meeting.is_message else 1 + number % parts
            order = next(orders.setdefault((rank, op, peer), count()))
            names = (
                writer.place_of(op, op=op),
                writer.place_of("group", group="0", ranks=ranks),
                writer.place_of("dtype", dtype="float32"),
            )
            call = writer.write(int(arrival_s * 1e9), BUCKET_BYTES, order, tag, peer, *names)
            if rank in meeting.ends_s:
                waited_ns = int(meeting.waited_s.get(rank, 0.0) * 1e9)
                done = writer.place_of(DONE, op=DONE)
                writer.write(int(meeting.ends_s[rank] * 1e9), waited_ns, call, 0, NOBODY, done)


def _found(watch: WatchedJob, heard: Sequence[Heard]) -> list[FailSlow]:
    """What was found in the only phase of a job, of whose iterations each was heard of once."""
    (told,) = watch.findings("job").values()
    assert sorted({one.place for one in heard}) == list(range(told.samples))
    return list(told.events)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("slowed", "transfer", "cause", "kind", "names"),
    [
        ({1: 2.0}, 1.0, "computation", "worker", ("1",)),
        ({}, 4.0, "communication", "group", ("0",)),
        ({}, 1.0, None, None, None),
    ],
)
def test_watched_ranks_are_judged_by_their_rings(
    parts: int,
    slowed: Mapping[int, float],
    transfer: float,
    cause: str | None,
    kind: str | None,
    names: tuple[str, ...] | None,
    tmp_path: Path,
) -> None:
    """Buckets that only their places tell apart make one iteration, and who makes it slow is named."""
    meetings, _ = _sums(3, parts, True, slowed, transfer, seed=1, usual=40, slow=20)
    _write(tmp_path, meetings, parts)
    watch = WatchedJob(tmp_path)
    heard = [*watch.poll(), *watch.finish()]
    assert (watch.ranks, watch.period, watch.calls) == ((0, 1, 2), parts, len(meetings))
    found = [(one.cause, one.scope.kind, one.scope.names) for one in _found(watch, heard)]
    assert found == ([] if cause is None else [(cause, kind, names)])


def test_rank_that_starts_again_is_followed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring of a rank's next process takes the place of the one before, and its iterations count as well."""
    meetings, _ = _sums(2, 2, True, {}, 1.0, seed=2)
    _write(tmp_path, meetings, 2)
    watch = WatchedJob(tmp_path)
    watch.poll()
    assert watch.calls == len(meetings)
    monkeypatch.setattr("os.getpid", lambda: 1)
    _write(tmp_path, meetings, 2)
    watch.finish()
    assert watch.calls == 2 * len(meetings)
    assert watch.ranks == (0, 1)


def test_ends_of_a_message_meet(tmp_path: Path) -> None:
    """What sender and receiver wrote of a pipeline's messages are its meetings again, with who stood waiting."""
    meetings, spans = _pipeline(3, 2, {}, (0, 0.5), seed=3)
    _write(tmp_path, meetings)
    within = spans[0][0], spans[-1][1] + 1.0
    read = meetings_of([RingReader(path) for path in tmp_path.glob("*.ring")], within)
    assert len(read) == len(meetings)
    # What begins at the same time has no order of its own.
    in_order = [sorted(each, key=lambda one: (one.name, *one.ends_s.values())) for each in (read, meetings)]
    for one, written in zip(*in_order, strict=True):
        assert (one.name, sorted(one.ranks), one.is_message) == (written.name, list(written.ranks), True)
        assert one.arrivals_s == pytest.approx(written.arrivals_s, abs=1e-8)
        assert one.ends_s == pytest.approx(written.ends_s, abs=1e-8)
        assert one.waited_s == pytest.approx(written.waited_s, abs=1e-8)
