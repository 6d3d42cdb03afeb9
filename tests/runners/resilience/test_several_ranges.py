"""Workers that hold several ranges of layers: who copies what, who saves what, and what votes say of each stage."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.membership import VoteCounter, copies, layers_at, live_places, savers
from rtk.runners.resilience.protocol import LossesTold, Saved, Saver, Vote
from rtk.runners.resilience.regrouping import LossBook
from rtk.runners.resilience.saving import Saving
from rtk.runners.resilience.worker_rules import Unanswered
from rtk.schemas.checkpoint import CheckpointFile
from rtk.schemas.plan import Layers, Plan
from rtk.schemas.resumption import LedgerEntry, Rest, layer_runs, layers_in, nothing_of

from ...placed_plans import any_placed_plans, folded
from ..placed import placed_plan

DEPTH = 8
RANGES = st.sets(st.integers(0, DEPTH - 1)).map(layer_runs)


@given(st.lists(st.tuples(RANGES, st.none() | RANGES), min_size=1, max_size=4))
def test_everybody_gets_what_it_lacks_and_nothing_else(workers: list[tuple[tuple[Layers, ...], None]]) -> None:
    """Each layer that a worker is to hold, and does not, comes once, from one that has it."""
    wanted, holds = [own for own, _ in workers], [own for _, own in workers]
    there = layers_in(chain.from_iterable(own or () for own in holds))
    if not layers_in(chain.from_iterable(wanted)) <= there:
        with pytest.raises(LookupError):
            copies(wanted, holds)
        return
    found = copies(wanted, holds)
    for rank, (own, had) in enumerate(workers):
        received = [layer for copy in found if copy.target == rank for layer in range(*copy.layers)]
        assert sorted(received) == sorted(layers_in(own) - layers_in(had or ()))
    assert all(set(range(*copy.layers)) <= layers_in(holds[copy.source] or ()) for copy in found)


@given(st.lists(RANGES, min_size=1, max_size=4))
def test_each_layer_is_saved_once(holdings: list[tuple[Layers, ...]]) -> None:
    """By one of those that hold it, as far as anybody does."""
    found = savers(DEPTH, [(str(number), own) for number, own in enumerate(holdings)])
    saved = [layer for one in found for layer in range(*one.layers)]
    assert sorted(saved) == sorted(layers_in(chain.from_iterable(holdings)))
    assert all(set(range(*one.layers)) <= layers_in(holdings[int(one.worker)]) for one in found)


@given(st.lists(RANGES, min_size=1, max_size=4))
def test_all_who_share_the_optimizers_state_save_it_together(holdings: list[tuple[Layers, ...]]) -> None:
    """Of each layer all that hold it, in ranges that are the same for all of them, so that none is in two files."""
    found = savers(DEPTH, [(str(number), own) for number, own in enumerate(holdings)], together=True)
    for layer in range(DEPTH):
        own = [one for one in found if layer in range(*one.layers)]
        assert sorted(int(one.worker) for one in own) == [
            n for n, held in enumerate(holdings) if layer in layers_in(held)
        ]
        assert len({one.layers for one in own}) <= 1
    assert [one.layers for one in found] == sorted(one.layers for one in found)


def part_of(layers: Layers) -> CheckpointFile:
    return CheckpointFile(f"layers-{layers[0]}", layers, "0" * 64, 1.0)


def test_a_checkpoint_waits_for_all_parts_of_a_worker() -> None:
    """Parts may be told again; what cannot be written ends the waiting for its worker."""
    parts = [Saver("0/0", (0, 1)), Saver("0/1", (1, 3)), Saver("0/0", (3, 4))]
    saving = Saving("folder", 2, 2, tuple(parts), 0.0)
    for layers in ((3, 4), (3, 4)):
        saving.note("0/0", Saved(2, part_of(layers)))
    saving.note("0/1", Saved(2, part_of((1, 3))))
    assert saving.publish("0/1") is None
    saving.note("0/0", Saved(2, part_of((0, 1))))
    published = saving.publish("0/1")
    assert published is not None and [part.layers for part in published.parts] == [(0, 1), (1, 3), (3, 4)]
    several = Saving("folder", 2, 2, (Saver("0/0", (0, 1)),), 0.0)
    ranks = [CheckpointFile(f"rank-{rank}", (0, 1), "0" * 64, 1.0, rank=(rank, 2)) for rank in range(2)]
    several.note("0/0", Saved(2, ranks[0], further=(ranks[1],)))
    published = several.publish("0/0")
    assert published is not None and published.parts == tuple(ranks)
    failing = Saving("folder", 2, 2, tuple(parts), 0.0)
    failing.note("0/0", Saved(2, None, "disk full"))
    failing.note("0/1", Saved(2, part_of((1, 3))))
    published = failing.publish("0/1")
    assert published is not None and published.parts == ()


def test_all_parts_are_told_to_the_next_coordinator() -> None:
    """What one has not answered, the next one hears."""
    unanswered = Unanswered()
    said = [Saved(2, part_of(layers)) for layers in ((0, 1), (3, 4))]
    for message in (*said, said[1]):
        unanswered.say(message)
    assert list(unanswered.messages) == said


def votes_of(plan: Plan, lost: int | None = None) -> VoteCounter:
    """The votes of an iteration in which each worker has done what its order says, or has lost one entry."""
    counter, entries = VoteCounter(plan), 0
    for worker in plan.live_workers():
        stages = plan.template_of(worker.pipeline).stages
        done: dict[Layers, list[int]] = {}
        for one in worker.operations():
            if one.kind in "BW":
                number = plan.microbatch_offset(one.pipeline) + one.microbatch
                done.setdefault(stages[plan.virtual_stage(worker, one)].layers, []).append(number)
                if entries == lost:
                    done[stages[plan.virtual_stage(worker, one)].layers].pop()
                entries += 1
        told = tuple(LedgerEntry(layers, tuple(sorted(own))) for layers, own in done.items() if own)
        several = len(plan.seats_of(worker)) > 1
        numbers = tuple(dict.fromkeys(n for own in done.values() for n in own))
        counter.add(worker.place, Vote(1, 0, True, numbers, ledger=told if several else None))
    return counter


@given(any_placed_plans(), st.integers(0, 200))
def test_votes_miss_what_one_stage_has_lost(plan: Plan, lost: int) -> None:
    """Every micro-batch is in every layer once, whoever ran which chunk of it; and one that is missing in one of a
    worker's stages is found, though the worker has run it in another one."""
    entries = sum(one.kind in "BW" for worker in plan.live_workers() for one in worker.operations())
    assert votes_of(plan).miscount(0) is None
    wrong = votes_of(plan, lost % entries).miscount(0)
    assert wrong is not None and "lost micro-batches" in wrong


def test_losses_of_peers_with_the_same_layers_add_up() -> None:
    """Chunks of one micro-batch may lie on two peers: what layers add on the one is no other telling of the other's."""
    plan = placed_plan(folded(2, 2), 4, (1, 1))
    counter = VoteCounter(plan)
    for place, losses in (((0, 0), ((0, 0.25, 0.0), (1, 2.0, 1.0))), ((1, 0), ((0, 1.0, 1.0),))):
        counter.add(place, Vote(1, 0, True, (0, 1), losses=losses))
    for place in ((0, 1), (1, 1)):
        counter.add(place, Vote(1, 0, True, (0, 1)))
    assert counter.loss(0) == (0.25 + 2.0 + 1.0) / 2
    assert [layers_at(plan, place) for place in live_places(plan)] == [((0, 1), (3, 4)), ((1, 3),)] * 2


def test_losses_of_each_stage_count_once_though_sums_outlive_who_told_them() -> None:
    """Worker 0/0 of a V has told its losses, summed its last stage, and died: they count for that stage, of which
    nothing is computed again, and not for its first one, whose loss the one tells who does it again."""
    plan = placed_plan(folded(2, 2), 4, (1, 1), dead={(0, 0)})
    holds = {"1/0": ((0, 1), (3, 4)), "0/1": ((1, 3),), "1/1": ((1, 3),)}
    standings = tuple(nothing_of(name, own) for name, own in holds.items())
    book = LossBook()
    book.add((0, 1), LossesTold(1, 0, (), (((0, 1), ((0, 0.25, 0.0),)), ((3, 4), ((0, 2.0, 1.0),)))), -1)
    rest = Rest(0, standings, (), sealed=((3, 4),))
    counter = VoteCounter(plan, rest, book.of(0))
    stages = (((0, 1), ((0, 0.25, 0.0), (1, 0.5, 0.0))), ((3, 4), ((1, 1.0, 1.0),)))
    counter.add((1, 0), Vote(2, 0, True, (0, 1), stages=stages))
    for place in ((0, 1), (1, 1)):
        counter.add(place, Vote(2, 0, True, ()))
    assert counter.terms(0, 0).count == 2.0
    assert counter.loss(0) == (2.0 + 1.0 + 0.25 + 0.5) / 2
