"""Ranks and groups compared with each other."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.failslow.calls.comparison import CallLog, CommunicationCall, LogInterval, cause_of, degraded_groups

GROUPS = {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7), "c": (8, 9, 10, 11), "d": (12, 13, 14, 15)}
ITERATIONS = 20
Took = Callable[[int, str], float]  # what a rank's call in a group takes, in s


def spans(took_s: Took, iteration_s: float = 1.0, groups: Mapping[str, tuple[int, ...]] = GROUPS) -> list[LogInterval]:
    """All ranks' stretches, with one call an iteration."""
    found = []
    for group, ranks in groups.items():
        for rank in ranks:
            calls = tuple(
                CommunicationCall(number * iteration_s, rank, "all_reduce", group, 4096, "Float", took_s(rank, group))
                for number in range(ITERATIONS)
            )
            log = CallLog(f"rank{rank}", "call log", rank, calls, {group: ranks})
            found.append(LogInterval(log, 0.0, ITERATIONS * iteration_s, iteration_s))
    return found


USUAL = spans(lambda rank, group: 0.1)


@given(st.floats(0.001, 10), st.floats(1.11, 5), st.sampled_from(sorted(GROUPS)))
def test_a_group_that_is_over_a_tenth_slower_is_degraded(usual_s: float, ratio: float, slow: str) -> None:
    """Compared with the median of groups with the same operation, bytes and ranks."""
    (found,) = degraded_groups(spans(lambda rank, group: usual_s * ratio if group == slow else usual_s))
    assert (found.group, found.ranks, found.comparable) == (slow, GROUPS[slow], 3)
    assert found.ratio == pytest.approx(ratio)


@given(st.lists(st.floats(1.0, 1.09), min_size=4, max_size=4))
def test_groups_that_differ_by_less_are_alike(times_s: list[float]) -> None:
    """Jitter below a tenth is none."""
    by_group = dict(zip(GROUPS, times_s, strict=True))
    assert degraded_groups(spans(lambda rank, group: by_group[group])) == ()


def test_waiting_is_no_transfer() -> None:
    """A group is as fast as its rank that waits least: the late one."""
    assert degraded_groups(spans(lambda rank, group: 0.1 if rank == 2 or group != "a" else 0.5)) == ()


def test_unlike_groups_are_not_compared() -> None:
    """Of two and of four ranks; each alone, they are compared with themselves before."""
    groups = {"a": (0, 1, 2, 3), "pair": (4, 5)}
    slow = spans(lambda rank, group: 0.3 if group == "pair" else 0.1, groups=groups)
    assert degraded_groups(slow) == ()
    (found,) = degraded_groups(slow, spans(lambda rank, group: 0.1, groups=groups))
    assert (found.group, found.comparable) == ("pair", 0)
    assert "its own before" in found.sentence


def test_the_rank_that_the_others_wait_for_computes_longer() -> None:
    """Its own calls are short, as they were."""
    slow = spans(lambda rank, group: 0.1 if rank == 5 else 0.6, 1.5)
    verdict = cause_of(slow, USUAL)
    assert (verdict.cause, verdict.scope.kind, verdict.scope.names) == ("computation", "worker", ("rank 5",))
    assert "15 other ranks wait 500 ms longer in calls" in verdict.evidence


def test_transfers_that_are_long_on_all_ranks_are_communication() -> None:
    """The group that is slower than the others is named, not what the others wait in for its ranks."""
    slow = []
    for span in spans(lambda rank, group: 0.6 if group == "c" else 0.1, 1.5):
        waits_s = 0.0 if span.log.members.keys() == {"c"} else 0.5
        barriers = tuple(replace(call, op="barrier", group="all", duration_s=waits_s) for call in span.log.calls)
        slow.append(replace(span, log=replace(span.log, calls=span.log.calls + barriers)))
    verdict = cause_of(slow, USUAL)
    assert (verdict.cause, verdict.scope.kind, verdict.scope.names) == ("communication", "group", ("c",))
    assert verdict.evidence[0] == "all_reduce of 4 KiB in c takes 600 ms, 6.00 x the median of 3 comparable"


def test_a_group_of_two_is_a_link() -> None:
    """It has but one."""
    pair = {"1": (2, 3)}
    verdict = cause_of(spans(lambda rank, group: 0.6, 1.5, pair), spans(lambda rank, group: 0.1, groups=pair))
    assert (verdict.cause, verdict.scope.kind, verdict.scope.names) == ("communication", "link", ("2-3",))


def message(rank: int, op: str, link: str, took_s: float) -> LogInterval:
    """The messages of a rank over a link."""
    calls = tuple(
        CommunicationCall(float(number), rank, op, link, 1000, "Float", took_s) for number in range(ITERATIONS)
    )
    return LogInterval(CallLog(f"rank{rank}", "call log", rank, calls, {}), 0.0, float(ITERATIONS), 1.0)


def test_sends_and_receives_are_links() -> None:
    """A message takes as long as the end that waits least; the slow one of three is named."""
    ends = [(0, 1, 0.1), (2, 3, 0.1), (4, 5, 0.3)]
    logs = [message(one, "send", f"{one}->{other}", took_s) for one, other, took_s in ends]
    logs += [message(other, "recv", f"{one}->{other}", took_s + 0.2) for one, other, took_s in ends]
    (found,) = degraded_groups(logs)
    assert found.ranks == (4, 5)
    assert found.ratio == pytest.approx(3.0)


def test_one_rank_alone() -> None:
    """It knows whether it computes longer itself; if not, it cannot tell slow transfers from late others."""
    before = [span for span in USUAL if span.log.rank == 1]
    itself = [span for span in spans(lambda rank, group: 0.1, 1.5) if span.log.rank == 1]
    verdict = cause_of(itself, before)
    assert (verdict.cause, verdict.scope.names) == ("computation", ("rank 1",))


def test_all_compute_longer() -> None:
    """Then it is nobody in particular."""
    verdict = cause_of(spans(lambda rank, group: 0.1, 1.5), USUAL)
    assert (verdict.cause, verdict.scope.kind) == ("computation", "job")


def test_without_durations_nothing_is_said() -> None:
    """Of the cause; the evidence says why."""
    log = CallLog("rank0", "call log", 0, (CommunicationCall(0.0, 0, "all_reduce", "a", 1),), {})
    verdict = cause_of([LogInterval(log, 0.0, 1.0, 1.0)], [LogInterval(log, 0.0, 1.0, 1.0)])
    assert verdict.cause == "unknown"
    assert "no durations" in verdict.evidence[0]
