"""Where a slow-down comes from, by the durations of calls: ranks and groups compared with each other (section 4.3).

* A rank that computes longer comes late to a call, in which all others wait: *their* calls take longer, its own do not.
  So what a rank spends in calls in an iteration, less what it spent there when all was well, is compared with what
  the iteration takes longer. Where a rank's calls explain less than half of that, the rank itself does:
  computation, that worker. Where all ranks' calls do, it is the communication.
* Which communication: a transfer's time is that of the rank that waits least. Groups with the same operation, bytes
  and number of ranks are comparable; one whose transfers take over 10 % longer than the median of the others is
  degraded. A group without comparable ones is compared with itself before. Of a group of two ranks, and of a send and
  its receive, we know the link.

The paper compares execution times with the waiting in them, so a late rank degrades its group, and asks in a second
step which rank of the group it is; the median is taken over all groups of a cluster there, over the others here, so
that two groups can be compared as well.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from ....schemas.detection import Scope
from .call import Call, CallLog, Token, link_of

APART = 1.1
HALF = 0.5
FEWEST_CALLS = 7
FEWEST_GROUPS = 3
MOST_NAMED = 8

JOB = Scope()
Cluster: TypeAlias = tuple[str, int, str, int]  # operation, bytes, type, ranks


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rank's log.

    Attributes:
        log: of the rank.
        begin_s, end_s: by its clock.
        iteration_s: what an iteration takes in it.
    """

    log: CallLog
    begin_s: float
    end_s: float
    iteration_s: float

    def calls(self) -> Iterator[Call]:
        """The calls in it whose duration is known."""
        return (
            call for call in self.log.calls if self.begin_s <= call.t_s < self.end_s and call.duration_s is not None
        )

    def in_calls_s(self) -> float | None:
        """What an iteration spends in calls; None: no durations are known."""
        times_s = [call.duration_s for call in self.calls() if call.duration_s is not None]
        length_s = self.end_s - self.begin_s
        return sum(times_s) / length_s * self.iteration_s if times_s and length_s > 0 else None


@dataclass(frozen=True, slots=True)
class Degraded:
    """A group whose transfers take longer than those of comparable ones.

    Attributes:
        group: its name.
        ranks: its members.
        op: the operation.
        bytes: of each rank.
        transfer_s: the median of its transfers.
        usual_s: the median of the comparable ones, or its own before.
        comparable: how many groups it was compared with; 0: with itself before.
    """

    group: str
    ranks: tuple[int, ...]
    op: str
    bytes: int
    transfer_s: float
    usual_s: float
    comparable: int

    @property
    def ratio(self) -> float:
        """How many times as long."""
        return self.transfer_s / self.usual_s

    @property
    def sentence(self) -> str:
        """What was seen."""
        other = f"the median of {self.comparable} comparable" if self.comparable else "its own before"
        return (
            f"{self.op} of {self.bytes} bytes in {self.group} takes {self.transfer_s * 1e3:.3g} ms, "
            f"{self.ratio:.2f} x {other}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, where it is, and what speaks for it."""

    cause: Literal["computation", "communication", "unknown"] = "unknown"
    scope: Scope = JOB
    evidence: tuple[str, ...] = ()


def degraded_groups(slow: Sequence[Span], usual: Sequence[Span] = (), fewest: int = 2) -> tuple[Degraded, ...]:
    """The groups that are slower than comparable ones, the slowest first.

    Args:
        slow: the ranks' logs, the stretch in question.
        usual: those of a time when all was well; a group that nobody else is like is compared with itself then.
        fewest: how many comparable groups there must be, itself included, to be compared with others.
    """
    now, before = _transfers(slow), _transfers(usual)
    clusters: dict[Cluster, list[tuple[str, tuple[int, ...], float, Token]]] = defaultdict(list)
    for token, (ranks, transfer_s) in now.items():
        op, group, size, dtype = token
        clusters[op, size, dtype, len(ranks)].append((group, ranks, transfer_s, token))
    found = []
    for (op, size, _, _), groups in clusters.items():
        for group, ranks, transfer_s, token in groups:
            others = [other_s for name, _, other_s, _ in groups if name != group]
            usual_s = median(others) if len(others) >= fewest - 1 and others else before.get(token, ((), 0.0))[1]
            if usual_s > 0 and transfer_s > APART * usual_s:
                count = len(others) if len(others) >= fewest - 1 else 0
                found.append(Degraded(group, ranks, op, size, transfer_s, usual_s, count))
    return tuple(sorted(found, key=lambda one: (-one.ratio, one.group)))


def _transfers(spans: Sequence[Span]) -> dict[Token, tuple[tuple[int, ...], float]]:
    """The ranks and the transfer time of each kind of call: the median of the rank that waits least."""
    times_s: dict[Token, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    members: dict[str, tuple[int, ...]] = {}
    for span in spans:
        members.update(span.log.members)
        for call in span.calls():
            times_s[_both_ends(call)][span.log.rank].append(call.duration_s or 0.0)
    transfers = {}
    for token, ranks in times_s.items():
        known = {rank: one for rank, one in ranks.items() if len(one) >= FEWEST_CALLS}
        if known:
            group = members.get(token[1]) or link_of(token[1]) or tuple(sorted(ranks))
            transfers[token] = (group, min(median(one) for one in known.values()))
    return transfers


def _both_ends(call: Call) -> Token:
    """The token of a call, the same for a message's send and its receive."""
    op, group, size, dtype = call.token
    return ("send" if op == "recv" and link_of(group) else op, group, size, dtype)


def cause_of(slow: Sequence[Span], usual: Sequence[Span]) -> Verdict:
    """Where a slow-down comes from.

    Args:
        slow: the slow stretch of each rank's log, as many logs as there are.
        usual: that of the same ranks when all was well; empty: they were always slow.
    """
    later = _later(slow, usual)
    if not later:
        return Verdict(evidence=("no durations of calls are known, so the cause is not either",))
    to_blame = [rank for rank, (in_calls_s, extra_s) in later.items() if in_calls_s < HALF * extra_s]
    words = tuple(_spent(rank, *later[rank]) for rank in sorted(later)[:MOST_NAMED])
    if len(to_blame) == len(later) and len(later) > 1:
        return Verdict("computation", Scope(), ("all ranks spend the time outside of calls", *words))
    if to_blame:
        names = tuple(f"rank {rank}" for rank in sorted(to_blame))
        return Verdict("computation", Scope("worker", names), (*_waited(to_blame, later), *words))
    degraded = degraded_groups(slow, usual)
    if len(later) == 1 and not degraded:
        return Verdict(evidence=(*words, "one rank's log does not tell slow transfers from others that are late"))
    return Verdict("communication", _scope_of(degraded), (*(one.sentence for one in degraded[:MOST_NAMED]), *words))


def _later(slow: Sequence[Span], usual: Sequence[Span]) -> dict[int, tuple[float, float]]:
    """By how much an iteration's calls, and the iteration as a whole, take longer than usual, in s, on each rank."""
    before = {span.log.rank: span for span in usual}
    found = {}
    for span in slow:
        now_s = span.in_calls_s()
        one = before.get(span.log.rank)
        before_s = one.in_calls_s() if one else None
        if now_s is not None and one is not None and before_s is not None:
            found[span.log.rank] = (now_s - before_s, span.iteration_s - one.iteration_s)
    return found


def _spent(rank: int, in_calls_s: float, extra_s: float) -> str:
    return f"rank {rank}: {extra_s * 1e3:+.3g} ms an iteration, {in_calls_s * 1e3:+.3g} ms of it in calls"


def _waited(to_blame: Sequence[int], later: dict[int, tuple[float, float]]) -> tuple[str, ...]:
    """How long the others wait."""
    waits_s = [in_calls_s for rank, (in_calls_s, _) in later.items() if rank not in to_blame]
    return (f"{len(waits_s)} other ranks wait {median(waits_s) * 1e3:.3g} ms longer in calls",) if waits_s else ()


def _scope_of(degraded: Sequence[Degraded]) -> Scope:
    """The link, if the slowest of all belongs to two ranks; else the groups."""
    if not degraded:
        return Scope()
    worst = degraded[0]
    alike = [one for one in degraded if len(one.ranks) == len(worst.ranks)]
    if len(worst.ranks) == 2:
        return Scope("link", _unique(alike, lambda one: "-".join(map(str, sorted(one.ranks)))))
    return Scope("group", _unique(alike, lambda one: one.group))


def _unique(degraded: Sequence[Degraded], name: Callable[[Degraded], str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name(one) for one in degraded))[:MOST_NAMED]
