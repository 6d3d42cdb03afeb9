"""The failures of a ledger as a trace that `rtk replay` answers, with what the job has paid for each of them."""

from collections.abc import Iterator
from itertools import count

from ...schemas.ledger import GoodputLedger, JobFailure
from ...schemas.trace import Trace, TraceEvent

GPUS_PER_NODE = 8  # of the nodes of the trace, where the job's GPUs can be divided so


def cluster_of(ledger: GoodputLedger) -> tuple[int, int]:
    """Nodes, and GPUs of each, on which the job's first attempt ran; nodes of eight where that is possible."""
    gpus = next((one.gpus for one in ledger.attempts if one.gpus is not None), 1)
    each = GPUS_PER_NODE if gpus % GPUS_PER_NODE == 0 else 1
    return gpus // each, each


def failures_of(ledger: GoodputLedger) -> Trace:
    """The failures of a job as a trace of its nodes.

    A node fails when the job made its last progress before the failure, for the replay itself adds what detection
    takes; it is there again when the next attempt began. Which node it was is known where a rank or a host is; else the
    nodes take turns. Slow phases slow a node down, the first one: nobody knows which it was.

    Args:
        ledger: of the job.

    Returns:
        The trace, from the beginning of the ledger's span to its end.
    """
    nodes, each = cluster_of(ledger)
    turns, hosts = count(), dict[str, int]()
    events = [TraceEvent("join", time_s=0.0, node=f"node{number}") for number in range(1, nodes + 1)]
    later: list[tuple[float, TraceEvent]] = []  # of one time, in this order: a node fails, and then is there again
    for failure in ledger.failures:
        node = f"node{_node_of(failure, nodes, each, hosts, turns) + 1}"
        attempt = ledger.attempts[failure.attempt]
        fail_s = max(min(attempt.progress_s, failure.time_s), attempt.begin_s)
        later.append((fail_s, TraceEvent("fail", time_s=fail_s, node=node)))
        if failure.attempt + 1 < len(ledger.attempts):
            later.append((attempt.until_s, TraceEvent("join", time_s=attempt.until_s, node=node)))
    for phase in ledger.slow_phases:
        slow = TraceEvent("slow_compute", time_s=phase.begin_s, node="node1", factor=phase.factor)
        recover = TraceEvent("recover", time_s=phase.end_s, node="node1")
        later += [(phase.begin_s, slow), (phase.end_s, recover)]
    events += [event for _, event in sorted(later, key=lambda one: one[0])]
    return Trace((*events, TraceEvent("end", time_s=max(ledger.span_s, events[-1].time_s or 0.0))))


def _node_of(failure: JobFailure, nodes: int, each: int, hosts: dict[str, int], turns: Iterator[int]) -> int:
    """The number of the node that failed, from 0."""
    who = failure.ranks[0] if failure.ranks else ""
    if who.isdecimal() and int(who) < nodes * each:
        return int(who) // each
    if who and not who.isdecimal():
        return hosts.setdefault(who, len(hosts) % nodes)
    return next(turns) % nodes


def costs_of(ledger: GoodputLedger) -> dict[str, float]:
    """What the job has paid on average, by the names of `rtk replay --cost`, in s; what it never paid is not there."""
    failures, saves = ledger.failures, ledger.saves
    found: dict[str, float] = {}
    if failures:
        found["detection_s"] = sum(one.detection_s for one in failures) / len(failures)
        found["restart_s"] = sum(one.restart_s for one in failures) / len(failures)
        found["mean_time_between_failures_s"] = ledger.span_s / len(failures)
    if saves.pause_s is not None:
        found["checkpoint_pause_s"] = saves.pause_s
    if saves.every_s is not None:
        found["checkpoint_every_s"] = max(saves.every_s - (saves.pause_s or 0.0), 1.0)
    return {name: round(cost_s, 1) for name, cost_s in found.items() if cost_s >= 0.1}


def replay_words(ledger: GoodputLedger, trace: str) -> list[str]:
    """The command line, word by word, that replays the job's failures; the model's profile and its cut are left open.

    Args:
        ledger: of the job.
        trace: the file of its failures.
    """
    nodes, each = cluster_of(ledger)
    words = ["rtk", "replay", "--profile", "PROFILE", "--pp", "STAGES", "--microbatches", "MICROBATCHES"]
    words += ["--cluster", f"{nodes}x{each}", "--trace", trace]
    for name, cost_s in costs_of(ledger).items():
        words += ["--cost", f"{name}={cost_s:g}"]
    return words
