"""Who sends by delegates, who meets on another network, and who passes on what others cannot send to each other."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.conditions import Circumstances, Ways, unreachable
from rtk.schemas.conditions import Conditions, Pair, SlowLink, pair_of

NAMES = ["0/0", "0/1", "1/0", "1/1", "2/0"]
pairs = st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True).map(lambda ends: pair_of(*ends))


@given(broken=st.frozensets(pairs), slow=st.frozensets(pairs), names=st.permutations(NAMES), seated=st.integers(1, 5))
def test_every_broken_pair_has_a_way_or_none_there_is(
    broken: frozenset[Pair], slow: frozenset[Pair], names: list[str], seated: int
) -> None:
    """A detour leads over somebody who reaches both ends; without one nobody does; absent workers count for nothing."""
    present = names[:seated]
    links = tuple(SlowLink(ends, 1.0) for ends in sorted(slow))
    conditions = Conditions(links, (), tuple(sorted(broken)))
    ways = Ways.under(conditions, present)
    assert {pair_of(present[a], present[b]) for a, b in ways.delegated} == {p for p in slow if {*p} <= {*present}}
    for one, other, via in ways.detours:
        assert one < other and via not in (one, other)
        assert {pair_of(present[end], present[via]) for end in (one, other)}.isdisjoint(broken)
    led = {pair_of(present[a], present[b]) for a, b, _ in ways.detours}
    lost = {*unreachable(conditions, present)}
    assert led | lost == {ends for ends in broken if {*ends} <= {*present}} and not led & lost
    for ends in lost:
        assert not any({pair_of(end, via) for end in ends}.isdisjoint(broken) for via in present if via not in ends)


def test_the_way_is_shared_out() -> None:
    """Several detours go over different workers where they can."""
    broken = (("0/0", "0/1"), ("1/0", "1/1"))
    vias = [via for _, _, via in Ways.under(Conditions((), (), broken), NAMES[:4]).detours]
    assert len(set(vias)) == 2


def test_only_those_who_miss_each_other_have_a_broken_link() -> None:
    """One who misses somebody that misses a third is waiting for what that third does not send."""
    seen = Circumstances()
    seen.suspect("0/0", "0/1")
    seen.suspect("0/1", "0/2")
    seen.suspect("0/2", "0/1")
    seen.suspect("1/0", None)
    assert seen.break_links(dict.fromkeys(["0/0", "0/1", "0/2", "1/0"], 0)) == (("0/1", "0/2"),)
    assert seen.break_links(dict.fromkeys(["0/0", "0/1", "0/2", "1/0"], 0)) == ()
    seen.forget("0/2")
    assert seen.now == Conditions()


@given(lost=st.lists(pairs, max_size=12), networks=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_a_pair_goes_through_its_networks_and_takes_a_detour_when_none_is_left(
    lost: list[Pair], networks: list[int]
) -> None:
    """Each loss leads one network further, those first that both ends have; nobody hears of it before the last."""
    seen, members, rank = Circumstances(), dict(zip(NAMES, networks, strict=True)), {n: i for i, n in enumerate(NAMES)}
    times: Counter[Pair] = Counter()
    for pair in lost:
        most = min(members[end] for end in pair)
        seen.suspect(*pair)
        assert seen.break_links(members) == ((pair,) if times[pair] <= most else ())
        times[pair] += 1
        broken = {one for one in times if times[one] > min(members[end] for end in one)}
        assert {*seen.now.broken_links} == broken
        ways = seen.begin_epoch(NAMES)
        assert {(NAMES[a], NAMES[b]): at for a, b, at in ways.sidesteps} == {
            one: count for one, count in times.items() if one not in broken
        }
        assert {(NAMES[a], NAMES[b]) for a, b, _ in ways.detours} | {*unreachable(seen.now, NAMES)} == broken
        assert all(a == rank[NAMES[a]] < b for a, b, _ in (*ways.sidesteps, *ways.detours))
    seen.forget(NAMES[0])
    assert not any(NAMES[0] in {NAMES[a], NAMES[b]} for a, b, _ in seen.begin_epoch(NAMES).sidesteps)


def test_slow_links_bring_delegates_unless_workers_are_told_to_send_directly() -> None:
    """With --transport direct a slow link changes nobody's way of sending."""
    for transport, wanted in (("auto", ((0, 1),)), ("direct", ()), ("delegated", ((0, 1),))):
        seen = Circumstances()
        seen.settings = {"transport": transport}
        list(seen.note(Conditions((SlowLink(("0/0", "0/1"), 0.03),))))
        assert seen.change_ways(NAMES) == bool(wanted)
        assert seen.begin_epoch(NAMES).delegated == wanted


def test_what_is_new_is_told_once() -> None:
    """Every change of a finding is one line; what a worker that is gone had to do with is forgotten."""
    seen = Circumstances()
    link = SlowLink(("0/0", "0/1"), 0.03)
    assert [one.event for one in seen.note(Conditions((link,)))] == ["slow_link"]
    assert [*seen.note(Conditions((link,)))] == []
    assert [one.event for one in seen.note(Conditions())] == ["relief"]
    assert not seen.have_changed
