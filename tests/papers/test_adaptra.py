"""Adaptra's figures: exact in simulation, within what was asked for by the artifact's jobs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.benchmarks.papers.adaptra import gaps_of
from rtk.benchmarks.papers.adaptra_pipelines import (
    IN_TURN,
    JOBS,
    Setting,
    delegated,
    exchanging_s,
    one_f_one_b,
    simulated_s,
)

from .making import made, names_of, require_on_page, require_truth

SMALL = JOBS["7B"].setting
LINKS = st.dictionaries(st.integers(0, SMALL.last), st.floats(0, 0.06), max_size=SMALL.stages - 1)


NAMES = names_of("adaptra")


@pytest.mark.parametrize("name", NAMES)
def test_rows_say_how_they_came_about(name: str) -> None:
    """Planned rows ask a planner, simulated ones the simulator, and who asks nobody says so."""
    require_truth(name)


@pytest.mark.checkout
@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_up_to_date(name: str) -> None:
    """docs/reproductions.md has what is made now."""
    require_on_page(name)


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_judged_holds(name: str) -> None:
    """Every row and claim of this paper."""
    assert made(name).reproduction.holds


@pytest.mark.parametrize("name", ["adaptra-figure-5", "adaptra-figure-8"])
def test_simulations_are_exact(name: str) -> None:
    """What figures 5 and 8 say of the paper's own simulations is met to the last digit."""
    assert {row.tolerance for row in made(name).reproduction.rows} == {0, None}


def test_the_timeline_is_within_three_percent() -> None:
    """Of figure 14, 579 and 398 ms are within 3 %, 703 within 10 %; only 579 is fitted, and marked so."""
    rows = {row.what: row for row in made("adaptra-figure-14").reproduction.rows}
    assert all(rows[name].tolerance == 0.03 for name in ("Adaptra-CPU", "Adaptra"))
    assert [row.paper for row in rows.values() if row.fitted] == [579]


@pytest.mark.parametrize("number", [15, 16, 17, 18, 21])
def test_ratios_are_judged_at_ten_percent(number: int) -> None:
    """What is judged of figures 15 to 18 and 21 is asked to be within 10 %."""
    rows = made(f"adaptra-figure-{number}").reproduction.rows
    assert {row.tolerance for row in rows} <= {None, 0.03, 0.10}


def test_no_schedule_is_better_than_the_proven_bound() -> None:
    """Figure 19's gaps are ratios to a proven optimum, so none is below 1."""
    gaps = gaps_of(4, 12, 0)
    assert gaps.is_optimal
    assert min(*gaps.stepped.values(), gaps.adapted) >= 1 - 1e-9


@given(LINKS)
@settings(max_examples=15, deadline=None)
def test_delegates_never_hurt(delays_s: dict[int, float]) -> None:
    """Whatever links are slow, the same orders by delegates are no slower than one message after the other."""
    delegated_s = delegated(SMALL, "Adaptra-CPU", delays_s).makespan_s
    assert all(delegated_s <= simulated_s(SMALL, "ZB", delays_s, way) + 1e-9 for way in (*IN_TURN, "together"))


@given(LINKS, st.sampled_from([*IN_TURN, "together"]))
@settings(max_examples=15, deadline=None)
def test_links_that_are_not_slow_change_nothing(delays_s: dict[int, float], way: str) -> None:
    """Undelayed, every way of passing messages takes what the simulator says, and delays never make it less."""
    still_s = delegated(SMALL, "Adaptra-CPU", {}).makespan_s
    assert simulated_s(SMALL, "ZB", {}, way) == pytest.approx(still_s)  # type: ignore[arg-type]
    assert simulated_s(SMALL, "ZB", delays_s, way) >= still_s - 1e-9  # type: ignore[arg-type]


@given(st.integers(3, 8), st.floats(0.001, 0.06))
@settings(max_examples=10, deadline=None)
def test_the_injector_mistakes_sends_to_stage_1(stages: int, delay_s: float) -> None:
    """A slow link 2-3 costs 1F1B more than it should by the injector's mistake, and a slow first link nothing more."""
    plan = one_f_one_b(Setting(stages, 3 * stages, (0.01, 0.01, 0.005)))
    for link in range(stages - 1):
        rightly_s = exchanging_s(plan, {link: delay_s}, misdirects=False)
        by_mistake_s = exchanging_s(plan, {link: delay_s})
        assert by_mistake_s >= rightly_s - 1e-9 if link != 1 else by_mistake_s <= rightly_s + 1e-9
        assert by_mistake_s == pytest.approx(rightly_s) if link in (0, 3, 4, 5, 6) else True
