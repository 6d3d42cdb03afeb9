"""The ledger of a job: every second in one class, and the right one."""

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.ledger import history
from rtk.profilers.ledger.book import BEHIND, MOST_CROSSINGS
from rtk.profilers.ledger.failure_trace import failures_of
from rtk.profilers.ledger.happenings import Happening, HappeningKind, LogPlace
from rtk.profilers.ledger.history import DoneRow, JobHistory, healthy_us
from rtk.profilers.ledger.ledger import ledger_of
from rtk.profilers.ledger.log_count import LogCount
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.ledger import CLASSES, GoodputLedger, LedgerClass

KINDS = get_args(HappeningKind)


def happening(kind: Any, time_s: float | None, line: int = 1, **what: Any) -> Happening:
    """One thing that a line of a log says."""
    return Happening(kind, time_s, LogPlace("job.log", line), **what)


class Script:
    """Happenings one after the other, `after` seconds after each other."""

    def __init__(self, time_s: float = 1e9) -> None:
        self.time_s, self.told = time_s, list[Happening]()

    def then(self, after: float, kind: HappeningKind, **what: Any) -> "Script":
        """So much later this happens."""
        self.time_s += after
        self.told.append(happening(kind, self.time_s, len(self.told) + 1, **what))
        return self

    def iterations(self, first: int, last: int, each_s: float = 2.0, **what: Any) -> "Script":
        """Iterations, a line each."""
        for number in range(first, last + 1):
            self.then(each_s, "iteration", iteration=number, **what)
        return self

    def ledger(self, **options: Any) -> GoodputLedger:
        """What comes of it."""
        found = ledger_of(self.told, **options)
        found.validate()
        return found


def seconds(ledger: GoodputLedger) -> dict[LedgerClass, float]:
    """The classes that have any time, in seconds of GPUs."""
    return {name: round(gpu_s, 6) for name, gpu_s in ledger.time if gpu_s}


anything = st.builds(
    Happening,
    st.sampled_from(KINDS),
    st.none() | st.sampled_from([1e9 + after for after in (0, 1, 5, 100, 3600)]) | st.floats(1e9, 1e9 + 1e5),
    st.just(LogPlace("job.log", 1)),
    st.none() | st.floats(0, 1e4),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(1, 4096),
    st.sampled_from([(), ("0",), ("1",), ("node-7",)]),
    st.none() | st.just("OOM"),
    st.integers(1, 10),
    st.integers(0, 1),
)


@given(st.lists(anything, max_size=60), st.none() | st.just(16), st.booleans())
def test_whatever_happens_each_second_of_each_gpu_is_in_one_class(
    told: list[Happening], gpus: int | None, in_order: bool
) -> None:
    """Times that go back, missing clocks, ends without beginnings: the classes add up, nothing is negative, and the
    span of an attempt is that of its classes."""
    if in_order:
        told = sorted(told, key=lambda one: one.time_s or 0.0)
    try:
        found = ledger_of(told, gpus=gpus)
    except InvalidInputError:
        return
    found.validate()
    assert all(gpu_s >= 0 for _, gpu_s in found.time)
    lasted = [one.until_s - one.begin_s for one in found.attempts]
    for attempt, lasts_s in zip(found.attempts, lasted, strict=True):
        assert attempt.time.total_gpu_s == pytest.approx(lasts_s * (attempt.gpus or _gpus_before(found, attempt)))
        places = (attempt.training_s, attempt.progress_s, attempt.noticed_s, attempt.end_s)
        assert all(attempt.begin_s - 1e-9 <= one <= attempt.until_s + 1e-9 for one in places if one is not None)
    assert math.fsum(lasted) == pytest.approx(found.span_s, abs=1e-5)
    of_failures: tuple[LedgerClass, ...] = ("redone", "detection", "restart", "load", "idle")
    most_gpu_s = math.fsum(found.time.of(name) for name in of_failures)
    assert math.fsum(one.cost_gpu_s for one in found.failures) <= most_gpu_s + 1e-3
    if gpus is not None:
        assert found.time.total_gpu_s == pytest.approx(found.span_s * gpus, abs=1e-4)
    assert parse_document(canonical(found), GoodputLedger, "ledger.json") == found


def _gpus_before(found: GoodputLedger, attempt: Any) -> float:
    return attempt.time.total_gpu_s / (attempt.until_s - attempt.begin_s) if attempt.until_s > attempt.begin_s else 1.0


@given(st.integers(0, 10_000), st.booleans())
def test_of_a_made_job_goodput_and_failures_are_known(seed: int, has_timers: bool) -> None:
    """Failures, hangs, ends without a word, slow phases, clocks put back or forward, ranks that all print."""
    made = pytest.importorskip("rtk.benchmarks.made_jobs", exc_type=ImportError)
    shape = replace(made.MadeShape.of(seed, 3), save_every=30)
    if not has_timers:  # then a clock that is put forward cannot be told from iterations that become slow at once
        shape = replace(shape, slow=0.0)
    job = made.make_job(shape)
    found = ledger_of(made.happenings_of(job, has_timers))
    assert found.goodput == pytest.approx(job.goodput, abs=0.003)  # 0.0017 in the worst of 500 such short jobs
    assert found.iterations == job.iterations
    assert len(found.failures) == 3
    late_s = 60 + abs(shape.clock) + 3 * shape.interval * shape.base_s  # the last line before it may be so old
    for failure, (begun_s, again_s) in zip(found.failures, job.failures_s, strict=True):
        assert begun_s - late_s <= failure.time_s <= again_s + late_s


def test_the_classes_of_a_restart() -> None:
    """A hang: time-out, tear-down, queue, start, load, warm-up, and ten iterations done again."""
    script = Script().then(0, "start", gpus=8).then(30, "rendezvous").then(20, "init")
    script.iterations(1, 90).then(5, "save", took_s=5.0, iteration=90).iterations(91, 100)
    script.then(600, "detected", cause="NCCL time-out", ranks=("9",)).then(4, "failure", cause="SIGABRT")
    script.then(300, "start").then(60, "rendezvous").then(25, "load", took_s=20.0, iteration=90)
    script.then(12, "iteration", iteration=91).iterations(92, 110).then(0, "end")
    found = script.ledger()
    assert seconds(found) == {
        "useful": 8 * 2.0 * 110,
        "redone": 8 * 2.0 * 10,
        "checkpoint": 8 * 5.0,
        "detection": 8 * 600.0,
        "restart": 8 * (30 + 4 + 60.0),
        "load": 8 * (20 + 25 + 10.0),
        "idle": 8 * 300.0,
    }
    (failure,) = found.failures
    assert failure.cause == "NCCL time-out"
    assert failure.ranks == ("9",)
    assert (failure.detection_s, failure.idle_s, failure.redone_s) == (600.0, 300.0, 20.0)
    assert failure.restart_s == 4 + 60 + 25 + 10
    assert failure.cost_gpu_s == 8 * (600 + 300 + 20 + 99)
    assert failure.iterations_lost == 10
    assert [one.ended for one in found.attempts] == ["failed", "clean"]
    assert found.ettr == found.goodput
    assert found.saves.count == 1


def test_slow_is_what_iterations_take_beyond_the_healthy_time() -> None:
    """By how much, in which phase; what is within 10 % is jitter; ETTR counts slow time, goodput does not."""
    script = Script().then(0, "start", gpus=2).iterations(1, 60, 2.0).iterations(61, 80, 3.0).iterations(81, 100, 2.1)
    found = script.ledger()
    assert seconds(found) == {"useful": 2 * (160.0 + 42.0), "slow": 2 * 20.0}
    (phase,) = found.slow_phases
    assert (phase.begin_s, phase.end_s, phase.iterations, phase.factor) == (120.0, 180.0, 20, 1.5)
    assert found.ettr == 1.0
    assert found.goodput == pytest.approx(202 / 222)


def test_an_attempt_without_an_end_is_a_failure_and_the_gap_is_idle() -> None:
    """Nobody has said anything; lines that only show life say how long it lived."""
    script = Script().then(0, "start", gpus=1).iterations(1, 20).then(50, "other").then(100, "start").iterations(1, 20)
    found = script.ledger()
    assert seconds(found) == {"useful": 40.0, "redone": 40.0, "detection": 50.0, "idle": 100.0}
    assert [one.ended for one in found.attempts] == ["silent", "open"]
    assert "no word" in found.failures[0].cause
    assert any("without a word" in one for one in found.warnings)


def test_an_error_after_which_training_goes_on_is_no_failure() -> None:
    """It is told, and its time is training."""
    script = Script().then(0, "start", gpus=1).iterations(1, 20).then(1, "failure", cause="caught")
    found = script.then(1, "iteration", iteration=21).iterations(22, 30).ledger()
    assert not found.failures
    assert seconds(found) == {"useful": 60.0}
    assert any("did not stop training" in one for one in found.warnings)


def test_iterations_that_go_back_without_a_word_are_a_new_attempt() -> None:
    """No start, no load: the numbers say it."""
    found = Script().then(0, "start", gpus=1).iterations(1, 50).iterations(41, 60).ledger()
    assert len(found.attempts) == 2
    assert found.iterations_lost == 10
    assert seconds(found) == {"useful": 120.0, "redone": 20.0}


def test_ranks_that_print_the_same_iteration_or_come_late_count_once() -> None:
    """Interleaved logs; a burst of lines that a rank had held back is no roll-back."""
    script = Script().then(0, "start", gpus=4)
    for number in range(1, 41):
        script.then(2.0, "iteration", iteration=number, ranks=("0",))
        script.then(0.0, "iteration", iteration=number, ranks=("1",))
        if number > 1:
            script.then(0.0, "iteration", iteration=number - 1, ranks=("2",))
    for number in range(20, 20 + 2 * BEHIND):
        script.told.append(replace(script.told[-1], iteration=number, ranks=("3",)))
    found = script.ledger()
    assert len(found.attempts) == 1
    assert (found.iterations, found.iterations_lost) == (40, 0)
    assert seconds(found) == {"useful": 320.0}


@pytest.mark.parametrize("jump_s", [-3600.0, -200.0, 3600.0, 1800.0])
@pytest.mark.parametrize("timed", [True, False])
def test_a_clock_that_is_put_back_or_forward_takes_no_time(jump_s: float, timed: bool) -> None:
    """Summer time, time zones, a corrected clock: where there are timers, and where there are not."""
    took = {"took_s": 2.0} if timed else {}
    script = Script().then(0, "start", gpus=1).iterations(1, 50, 2.0, **took)
    script.time_s += jump_s
    found = script.iterations(51, 100, 2.0, **took).ledger()
    assert found.span_s == 200.0
    assert seconds(found) == {"useful": 200.0}
    assert any("clock was put" in one for one in found.warnings)


def test_a_single_line_with_a_wild_clock_is_not_believed() -> None:
    """A year ahead, and back with the next line."""
    script = Script().then(0, "start", gpus=1).iterations(1, 20)
    script.told[10] = replace(script.told[10], time_s=2e9)
    assert seconds(script.ledger()) == {"useful": 40.0}


def test_a_clock_that_was_not_set_or_is_wrong_makes_no_years() -> None:
    """A machine that began in 1970, and a last line of 2099."""
    script = Script(100.0).then(0, "start", gpus=1)
    script.time_s = 1e9
    script.iterations(1, 10, took_s=2.0)
    script.told.append(happening("iteration", 4e9, iteration=11, took_s=2.0))
    found = script.ledger()
    assert seconds(found) == {"useful": 22.0}
    assert any("put back or forward 2 times" in one for one in found.warnings)


def test_timers_that_the_clock_contradicts_at_most_lines_are_refused() -> None:
    """As where 10,000 is taken for ten thousand: a ledger out of that would be a thousand times too long."""
    with pytest.raises(InvalidInputError, match="contradict each other at 29 of 30 lines") as error:
        Script().then(0, "start", gpus=1).iterations(1, 30, 10.0, took_s=10_000.0).ledger()
    assert "--pattern" in str(error.value.fix)


def test_without_any_clock_what_iterations_took_is_counted() -> None:
    """And said."""
    told = [happening("iteration", None, n, iteration=n, took_s=3.0) for n in range(1, 11)]
    found = ledger_of(told, gpus=2)
    assert seconds(found) == {"useful": 60.0}
    assert found.begin_s is None
    assert any("no line has a clock" in one for one in found.warnings)


def test_a_pause_without_a_word_is_unknown_where_a_timer_says_that_it_was_no_iteration() -> None:
    """Without a timer it would be a slow iteration."""
    script = (
        Script().then(0, "start", gpus=1).iterations(1, 20, took_s=2.0).then(100, "iteration", iteration=21, took_s=2.0)
    )
    assert seconds(script.ledger()) == {"useful": 42.0, "unknown": 98.0}
    untimed = Script().then(0, "start", gpus=1).iterations(1, 20).then(100, "iteration", iteration=21)
    assert seconds(untimed.ledger()) == {"useful": 42.0, "slow": 98.0}


def test_what_timers_leave_out_again_and_again_is_an_iterations_and_what_is_more_is_a_pause() -> None:
    """A pause of 4 s between lines for 100 s of iterations, of which a timer leaves out half a second each time."""
    script = Script(1e9 + 0.25).then(0, "start", gpus=1)
    for number in range(10, 210, 10):
        script.then(100.5 + 4.0 * (number in (100, 150)), "iteration", iteration=number, steps=10, took_s=10.0)
    found = seconds(script.ledger())
    assert found["unknown"] == pytest.approx(8.0, abs=0.2)
    assert found["useful"] == pytest.approx(20 * 100.5, abs=0.7)  # of the first line, it is not known yet


def test_evaluations_are_useful_however_the_log_tells_of_them() -> None:
    """With a clock, with a timer, or with neither: then they are what iterations' timers leave out, or take longer."""
    dated = Script().then(0, "start", gpus=4).iterations(1, 20, took_s=2.0).then(30, "evaluation", iteration=20)
    timed, untold, mixed = (Script().then(0, "start", gpus=4).iterations(1, 20, took_s=2.0) for _ in range(3))
    timed.told.append(happening("evaluation", None, iteration=20, took_s=30.0))
    untold.told.append(happening("evaluation", None, iteration=20))
    mixed.told.append(happening("evaluation", None, iteration=20))
    dated.iterations(21, 40, took_s=2.0)
    for script, took_s in ((timed, 2.0), (untold, 2.0), (mixed, 32.0)):
        script.then(32, "iteration", iteration=21, took_s=took_s).iterations(22, 40, took_s=2.0)
    for script in (dated, timed, untold, mixed):
        found = script.ledger()
        assert seconds(found) == {"useful": 4 * 110.0}
        assert (found.evaluations, found.evaluation_gpu_s) == (1, 120.0)
        assert bool(found.warnings) == (script in (untold, mixed))


def test_an_evaluation_is_lost_with_the_iterations_before_it() -> None:
    """The job goes back to a checkpoint of iteration 10."""
    script = Script().then(0, "start", gpus=1).iterations(1, 10).then(3, "save", iteration=10, took_s=3.0)
    script.then(7, "evaluation", iteration=10, took_s=7.0).iterations(11, 15).then(5, "evaluation", iteration=15)
    found = (
        script.then(1, "failure", cause="OOM")
        .then(9, "start")
        .then(0, "load", iteration=10)
        .iterations(11, 20)
        .ledger()
    )
    assert seconds(found) == {"useful": 40.0 + 7, "redone": 15.0, "checkpoint": 3.0, "detection": 1.0, "idle": 9.0}
    assert (found.failures[0].redone_s, found.evaluation_gpu_s, found.evaluations) == (15.0, 7.0, 2)


def test_the_last_evaluation_comes_when_training_is_done() -> None:
    """On the test set; one before the first iteration is a part of the start."""
    script = Script().then(0, "start", gpus=1).then(6, "evaluation", took_s=6.0).iterations(1, 10).then(0, "end")
    script.told.append(happening("evaluation", None, took_s=8.0))
    assert seconds(script.ledger()) == {"load": 6.0, "useful": 28.0}


@pytest.mark.parametrize("kind", ["failure", "start"])
def test_a_checkpoint_without_a_clock_is_one_though_the_job_fails_after_it(kind: HappeningKind) -> None:
    """Its timer says how long; what is left until the error is detection, and until a start idle."""
    script = Script().then(0, "start", gpus=1).iterations(1, 10, took_s=2.0)
    script.told.append(happening("save", None, iteration=10, took_s=30.0))
    found = seconds(script.then(40, kind).then(0, "start").iterations(11, 20, took_s=2.0).ledger())
    assert found == {"useful": 40.0, "checkpoint": 30.0, "idle" if kind == "start" else "detection": 10.0}


@pytest.mark.parametrize("kind", ["evaluation", "save"])
@pytest.mark.parametrize("timer_runs_on", [False, True])
def test_without_a_clock_pauses_pass_beside_timers_that_stand_still_for_them(
    kind: HappeningKind, timer_runs_on: bool
) -> None:
    """NeMo's bars leave validations out, Megatron's timers before 2024 had them in."""
    told = [happening("iteration", None, iteration=number, took_s=5.0, steps=10) for number in range(10, 101, 10)]
    after = happening("iteration", None, iteration=110, took_s=11.0 if timer_runs_on else 5.0, steps=10)
    found = ledger_of([*told, happening(kind, None, iteration=100, took_s=60.0), after], gpus=1)
    pause: dict[LedgerClass, float] = {"checkpoint": 60.0} if kind == "save" else {}
    assert seconds(found) == {"useful": 610.0 - sum(pause.values()), **pause}


@pytest.mark.parametrize("ending", [None, "end", "failure", "start", "iteration"])
def test_without_a_clock_the_last_pause_is_not_lost(ending: HappeningKind | None) -> None:
    """Whatever comes after it: the log's end, an error, another attempt, or iterations that were done before."""
    told = [happening("iteration", None, iteration=number, took_s=5.0) for number in range(1, 101)]
    told.append(happening("save", None, iteration=100, took_s=60.0))
    numbers = range(90, 100) if ending == "iteration" else [None] if ending else []
    told += [happening(ending, None, iteration=number, took_s=5.0 if number else None) for number in numbers]
    found = seconds(ledger_of(told, gpus=1))
    assert found["checkpoint"] == 60.0 and sum(found.values()) == 560.0 + 5.0 * (ending == "iteration") * 10


def test_an_end_that_another_clock_has_told_too_early_is_the_end_all_the_same() -> None:
    """Slurm has whole seconds: the last iteration is said half a second after it."""
    script = Script().then(0, "start", gpus=1).iterations(1, 10, took_s=2.0).then(1.5, "end")
    found = script.then(0.5, "iteration", iteration=11, took_s=2.0).ledger()
    assert seconds(found) == {"useful": 22.0}
    assert [one.ended for one in found.attempts] == ["clean"]


def test_what_a_line_after_the_end_leaves_open_is_idle_and_not_lost() -> None:
    """Its clock is a moment behind its timer, which the next line would settle: the next one is another start."""
    script = Script().then(0, "start", gpus=1).iterations(1, 10, took_s=2.0).then(1.5, "end")
    script.then(0.55, "iteration", iteration=11, took_s=2.0).then(10, "start").iterations(12, 12, took_s=2.0)
    found = script.ledger()
    assert seconds(found) == {"useful": 24.0, "idle": 10.05}
    assert found.time.total_gpu_s == pytest.approx(found.span_s)


def test_gpus_are_those_of_the_attempt_and_between_attempts_of_the_one_before() -> None:
    """A job that comes back smaller."""
    script = Script().then(0, "start", gpus=16).iterations(1, 10).then(0, "failure", cause="x")
    found = script.then(100, "start", gpus=8).iterations(11, 20).ledger()
    assert seconds(found) == {"useful": 16 * 20.0 + 8 * 20.0, "idle": 1600.0}
    assert seconds(script.ledger(gpus=4)) == {"useful": 160.0, "idle": 400.0}


def test_what_a_failure_costs_is_on_the_gpus_that_paid_it() -> None:
    """64 GPUs lose iterations and wait; 8 load the checkpoint and go on."""
    script = Script().then(0, "start", gpus=64).then(10, "init").iterations(1, 100)
    script.then(30, "failure", cause="OOM").then(100, "start", gpus=8).then(60, "load", iteration=80)
    (failure,) = script.iterations(81, 200).ledger().failures
    assert (failure.detection_s, failure.idle_s, failure.redone_s, failure.restart_s) == (30, 100, 40, 60)
    assert failure.cost_gpu_s == 64 * (30 + 100 + 40) + 8 * 60


def test_a_node_is_there_again_though_the_next_attempt_began_at_once() -> None:
    """A job that goes back without a word loses no time, and its trace no node."""
    ledger = Script().then(0, "start", gpus=64).iterations(1, 50).iterations(31, 80).ledger()
    assert len(ledger.failures) == 1
    *_, fail, join, end = failures_of(ledger).events
    assert (fail.kind, join.kind, end.kind) == ("fail", "join", "end")
    assert (fail.node, fail.time_s) == (join.node, join.time_s)


def test_an_attempt_that_begins_without_a_clock_has_begun_before_its_iterations() -> None:
    """A later line with a clock, the first of it, does not move its beginning behind what it has done."""
    script = Script().then(0, "start", gpus=8).iterations(1, 50)
    for kind, number in (("start", None), *(("iteration", number) for number in range(1, 20))):
        script.told.append(happening(kind, None, len(script.told) + 1, iteration=number, took_s=2.0))
    last = script.then(900, "failure", cause="OOM").ledger().attempts[-1]
    assert last.training_s is not None
    assert last.begin_s <= last.training_s <= last.progress_s <= last.end_s


def test_nobody_says_how_many_gpus() -> None:
    """Hours are the job's, and that is said."""
    found = Script().then(0, "start").iterations(1, 10).ledger()
    assert (found.unit, found.has_gpus) == ("hours", False)
    assert any("--gpus" in one for one in found.warnings)


def test_a_job_after_a_clean_end_that_begins_at_the_beginning_is_another_one() -> None:
    """Nothing of the first counts as lost, and it is said."""
    script = Script().then(0, "start", gpus=1).iterations(1, 50).then(0, "end")
    found = script.then(100, "start").iterations(1, 30).ledger()
    assert seconds(found) == {"useful": 160.0, "idle": 100.0}
    assert any("another job seems to begin" in one for one in found.warnings)


def test_two_jobs_in_turns_in_one_log_are_refused() -> None:
    """Both places are named."""
    script = Script().then(0, "start", gpus=1)
    for number in range(1, MOST_CROSSINGS + 2):
        script.then(1, "iteration", iteration=5000 + number).then(1, "iteration", iteration=100 + number)
    with pytest.raises(InvalidInputError, match="two jobs are in one log: iterations 105 and 5006") as error:
        script.ledger()
    assert "job.log:11 and job.log:12" in str(error.value.where)


def test_what_may_be_another_job_is_said() -> None:
    """Iteration 1 again without a checkpoint, and iterations that are told twice; neither of a job that goes on."""
    again = Script().then(0, "start", gpus=1).iterations(1, 20).then(9, "start").iterations(1, 5).ledger()
    assert any("job.log:23: an attempt begins at iteration 1" in one for one in again.warnings)
    script = Script().then(0, "start", gpus=1)
    for number in range(1, 30):
        script.then(1, "iteration", iteration=number).then(1, "iteration", iteration=number + 4)
    assert any("28 lines tell of iterations that were told before" in one for one in script.ledger().warnings)
    assert not Script().then(0, "start", gpus=1).iterations(1, 20).ledger().warnings


def test_the_longest_pause_without_a_word_is_named() -> None:
    """As where a piece of a log is missing."""
    script = (
        Script().then(0, "start", gpus=1).iterations(1, 20, took_s=2.0).then(50, "iteration", iteration=21, took_s=2.0)
    )
    script.then(90, "iteration", iteration=22, took_s=2.0)
    (words,) = script.ledger().warnings
    assert words == "2 pauses between iterations without a word; the longest, 88 s, before job.log:23"


def test_an_error_of_which_the_launcher_tells_later_is_the_cause() -> None:
    """Others have gone on for a moment: the first error is the cause; one that was caught long ago is not."""
    script = Script().then(0, "start", gpus=1).iterations(1, 9).then(1, "failure", cause="OOM").iterations(10, 11, 1.0)
    late = Script().then(0, "start", gpus=1).iterations(1, 9).then(1, "failure", cause="OOM").iterations(10, 60)
    for one, cause in ((script, "OOM"), (late, "exit code 1")):
        (failure,) = one.then(5, "failure", cause="exit code 1").then(9, "start").iterations(12, 15).ledger().failures
        assert failure.cause == cause


def test_what_a_coarse_clock_left_open_is_not_lost_when_a_job_goes_back_without_a_word() -> None:
    """The last line came a second after its timer would have it."""
    script = (
        Script().then(0, "start", gpus=8).iterations(1, 30, took_s=2.0).then(3, "iteration", iteration=31, took_s=2.0)
    )
    ledger = script.iterations(11, 40, took_s=2.0).ledger()
    assert ledger.span_s == 123
    assert ledger.time.total_gpu_s == 8 * 123


def test_two_jobs_in_turns_are_refused_where_one_reader_has_both() -> None:
    """It takes the way from one to the other for a log interval; no time is made of it."""
    script = Script().then(0, "start", gpus=8)
    for number in range(1, 30):
        script.then(2, "iteration", iteration=number, took_s=5.0)
        script.then(3, "iteration", iteration=5000 + number, took_s=5.0, steps=5000)
    with pytest.raises(InvalidInputError, match="two jobs are in one log"):
        script.ledger()


def test_a_number_that_is_garbled_makes_no_time_and_loses_none() -> None:
    """A line that was written over says iteration 3131 for 31, now and then; the clock knows better."""
    script = Script().then(0, "start", gpus=8)
    for number in range(1, 3001):
        wrong = number % 300 == 31
        script.then(2, "iteration", iteration=number * 101 if wrong else number, took_s=2.0)
    ledger = script.ledger()
    assert (ledger.span_s, ledger.iterations, ledger.iterations_lost, ledger.failures) == (6000, 3000, 0, ())
    assert ledger.goodput == 1


def test_a_jump_of_which_nobody_has_told_is_believed_when_it_lasts() -> None:
    """Thirty iterations in a row that go on from a far number are no garbled one: the job is there."""
    ledger = Script().then(0, "start", gpus=8).iterations(1, 30, took_s=2.0).iterations(5001, 5030, took_s=2.0).ledger()
    assert (ledger.span_s, ledger.attempts[-1].last_iteration, ledger.failures) == (120, 5030, ())


def test_a_log_without_an_iteration_is_refused_with_what_it_does_say() -> None:
    """Never a silent zero."""
    count = LogCount(files=1, lines=5000, telling=2, formats={"job.log": None})
    told = [happening("start", 1e9, 1), happening("failure", 1e9 + 5, 88, cause="OOM")]
    with pytest.raises(InvalidInputError, match=r"no iteration in 5000 lines; 2 of them.*OOM \(job.log:88\)") as error:
        ledger_of(told, count=count)
    assert error.value.where == "job.log"
    with pytest.raises(InvalidInputError, match="no iteration"):
        ledger_of([])
    with pytest.raises(InvalidInputError, match="neither a clock nor a duration"):
        ledger_of([happening("iteration", None, 1, iteration=1)])


def test_what_was_read_and_not_understood_is_in_the_ledger() -> None:
    """With what was odd."""
    count = LogCount(files=1, lines=100, telling=20, garbled=3, formats={"job.log": "megatron"})
    count.remark("a line is cut off", "job.log:7", 3)
    found = Script().then(0, "start", gpus=1).iterations(1, 10).ledger(count=count)
    assert (found.lines.read, found.lines.telling, found.lines.not_understood) == (100, 20, 3)
    assert any("cut off" in one and "job.log:7" in one for one in found.warnings)


@given(st.floats(1, 1e9), st.lists(st.floats(0.97, 1.03), min_size=8, max_size=50), st.lists(st.floats(1.5, 9)))
def test_the_healthy_time_is_that_of_the_healthy(time_us: float, jitter: list[float], slow: list[float]) -> None:
    """However slow up to two thirds of the iterations are."""
    slow = slow[: 2 * len(jitter)]
    found = healthy_us([time_us * factor for factor in (*jitter, *slow)])
    assert found == pytest.approx(time_us, rel=0.031)


def test_long_jobs_take_bounded_memory_and_keep_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours are put together; a roll-back into the midst of them takes its share."""
    monkeypatch.setattr(history, "MOST_ROWS", 64)
    kept = JobHistory()
    for number in range(1, 2001):
        kept.note(DoneRow(0, number, 1, 1000, number * 1000))
    assert 16 <= len(kept.rows) <= 64
    assert sum(row.took_us for row in kept.rows) == 2_000_000
    loss = kept.go_back(1500)
    assert loss.iterations == 500
    assert loss.took_us[0] == 500_000
    assert kept.rows[-1].last == 1500


def test_a_slow_phase_is_found_however_long_the_job_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rows stand for grows with the job, and no faster."""
    monkeypatch.setattr(history, "MOST_ROWS", 64)
    script = Script().then(0, "start", gpus=1).iterations(1, 3000, 2.0, took_s=2.0)
    script.iterations(3001, 3600, 4.0, took_s=4.0).iterations(3601, 6000, 2.0, took_s=2.0)
    (phase,) = script.ledger().slow_phases
    assert phase.factor == pytest.approx(2.0, rel=0.2)
    assert phase.iterations == pytest.approx(600, rel=0.3)


def test_every_class_is_defined() -> None:
    """In the document, in words."""
    found = Script().then(0, "start", gpus=1).iterations(1, 10).ledger()
    assert set(CLASSES) | {"goodput", "ettr"} <= set(found.definitions)
