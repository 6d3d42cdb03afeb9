"""What the ranks of a worker have said, as one message of the worker: what unit_gate.py hands on to the rules.

Pure, and the same whatever the order in which the ranks have said it: everything is read by rank, ascending. Where
numbers are added (squared norms), they are added in that order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ...schemas.plan import Layers, worker_of
from ...schemas.resumption import common_standing, layers_in, nothing_of
from .protocol import WHOLE, Hello, MeetingPoint, Ready, Returning, Saved, StandingTold, Vote, Whereabouts

# What a rank does that waits for nobody, and for which its partners wait.
AT_WORK = ("computing", "preparing")
# Between the checksums of a layer that the ranks of a worker have said; one that a rank has not said is empty.
BETWEEN_RANKS = ":"


def worker_hello(
    hellos: Sequence[Hello], returning: Returning | None = None, *, slowdown: float = 1.0, is_whole: bool = True
) -> Hello:
    """The hello of a worker all of whose ranks are there.

    Args:
        hellos: of its processes, by rank.
        returning: what all of them know of a job that they come back to; None: it is no such worker.
        slowdown: how many times as long as planned its operations take.
        is_whole: whether it has as many ranks as the plan says; else it tells nothing of an iteration under way, for
            sums are copied between ranks of one number only.
    """
    first = hellos[0]
    return replace(
        first,
        not_before=max(one.not_before for one in hellos),
        returning=returning,
        evaluates=any(one.evaluates for one in hellos),
        regroups=is_whole and all(one.regroups for one in hellos),
        further=tuple(MeetingPoint(one.store, one.others) for one in hellos[1:]),
        slowdown=slowdown,
    )


def known_by_all(hellos: Iterable[Hello]) -> Returning | None:
    """What the one knows of a job that knows least; None where one of them knows nothing."""
    known = [one.returning for one in hellos]
    told = [one for one in known if one is not None]
    return min(told, key=lambda one: (one.epoch, one.committed)) if len(told) == len(known) else None


def worker_ready(told: Sequence[Ready]) -> Ready | None:
    """The worker is ready, and holds what all its ranks hold; None where they do not hold the same layers."""
    if len({one.holds for one in told}) > 1:
        return None
    return replace(
        told[0],
        checksums=_joined([dict(one.checksums) for one in told]),
        sums=_joined([dict(one.sums) for one in told]),
    )


def _joined(told: Sequence[Mapping[int, str]]) -> tuple[tuple[int, str], ...]:
    """By layer, what the ranks have said of it, in one word."""
    layers = sorted({*chain.from_iterable(told)})
    return tuple((layer, _in_one_word([own.get(layer, "") for own in told])) for layer in layers)


def _in_one_word(words: Sequence[str]) -> str:
    """What ranks say of a layer, by rank; of a whole layer they say the same."""
    is_whole = words[0].startswith(WHOLE) and len(set(words)) == 1
    return words[0] if is_whole else BETWEEN_RANKS.join(words)


def are_unlike(one: str, other: str) -> bool:
    """Whether two checksums of a layer, joined by rank or not, are of unlike states, as far as ranks have said them."""
    ours, theirs = one.split(BETWEEN_RANKS), other.split(BETWEEN_RANKS)
    if len(ours) != len(theirs):
        return True
    return any(own and its and own != its for own, its in zip(ours, theirs, strict=True))


def worker_vote(votes: Sequence[Vote]) -> Vote:
    """The worker's vote: finite where all are; a layer's squared norm is the sum over the ranks; else of rank 0."""
    ahead = next((one.ahead for one in votes if one.ahead is not None), None)
    return replace(
        votes[0],
        is_finite=all(one.is_finite for one in votes),
        norms=_summed([dict(one.norms) for one in votes]),
        ahead=ahead,
        evaluation_s=max(one.evaluation_s for one in votes),
    )


def _summed(told: Sequence[Mapping[int, float | None]]) -> tuple[tuple[int, float | None], ...]:
    found: dict[int, float | None] = {}
    for own in told:
        for layer, square in own.items():
            before = found.get(layer, 0.0)
            found[layer] = None if before is None or square is None else before + square
    return tuple(sorted(found.items()))


def unlike_votes(votes: Sequence[Vote]) -> str | None:
    """What ranks have done otherwise that all ranks of a worker do together, in words; None where nothing is."""
    first = votes[0]
    for rank, one in enumerate(votes):
        if (sorted(one.microbatches), one.ledger) != (sorted(first.microbatches), first.ledger):
            ours, theirs = sorted(first.microbatches), sorted(one.microbatches)
            return (
                f"its ranks did not do the same in iteration {first.iteration}: "
                f"rank 0 micro-batches {ours}, rank {rank} {theirs}"
            )
    return None


def worker_standing(told: Sequence[StandingTold], known: Sequence[Layers] | None) -> StandingTold | None:
    """What the worker has of an iteration: what all its ranks have of it.

    Where they hold unlike layers, for some have come as far as another stage and others have not, it is nothing.

    Args:
        told: by rank.
        known: ranges of layers that the worker was known to hold; None: it had no state.

    Returns:
        None where not all ranks hold these any more.
    """
    standings = [one.standing for one in told]
    if len({one.holds for one in standings}) == 1:
        return replace(told[0], standing=common_standing(standings))
    if not all(has_all(one.holds, known) for one in standings):
        return None
    return replace(told[0], standing=nothing_of(standings[0].worker, known or None))


def has_all(holds: Iterable[Layers], known: Iterable[Layers] | None) -> bool:
    """Whether who holds some ranges of layers holds all of others."""
    return layers_in(known or ()) <= layers_in(holds)


def worker_saved(told: Sequence[Saved]) -> Saved:
    """The worker has saved its part, for all its ranks have saved theirs."""
    return replace(told[0], further=tuple(one.part for one in told[1:] if one.part is not None))


def worker_whereabouts(worker: str, answers: Mapping[int, Whereabouts]) -> tuple[int, Whereabouts]:
    """The rank that holds up the others, and what it says, without those it waits for within the worker.

    That is one which is behind the others' epoch; then one that computes or prepares, and so waits for nobody; then one
    that connects; that waits for other workers; that listens to the coordinator; and last, one that waits for its
    partners.

    Args:
        worker: its name.
        answers: of its ranks to one inquiry.
    """
    latest = max(one.epoch for one in answers.values())

    def weight(rank: int) -> tuple[bool, int, float]:
        one = answers[rank]
        is_late = one.epoch < latest
        others = _other_workers(worker, one)
        what = {"computing": 4, "preparing": 4, "joining": 3, "waiting": 2 if others or not one.peers else 0}
        # Of those that do something the one that has been at it longest; of those that wait the one that came last.
        has_waited = what.get(one.doing, 1) < 3 and not is_late
        return is_late, what.get(one.doing, 1), -one.idle_s if has_waited else one.idle_s

    rank = max(sorted(answers), key=weight)
    return rank, replace(answers[rank], peers=_other_workers(worker, answers[rank]))


def _other_workers(worker: str, one: Whereabouts) -> tuple[str, ...]:
    return tuple(peer for peer in one.peers if worker_of(peer) != worker)
