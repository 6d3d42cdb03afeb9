"""What a run says: JSON lines, lines for people, the live view, and the metrics file."""

import io
import json
import math
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rtk.cli.live_view import RunView, sparkline
from rtk.cli.run_output import RunFacts, RunReport, RunStory, wants_live_view
from rtk.runners import log_writers
from rtk.runners.resilience.announcements import (
    Announcement,
    CheckpointSaved,
    CoordinatorRestarted,
    DegreeChosen,
    DegreeRaised,
    EpochBegun,
    ExaminationBegun,
    GroupExamined,
    IterationCommitted,
    IterationResumed,
    JobEnded,
    JobStarted,
    LayersCopied,
    LinkBroken,
    LinkSlowed,
    ModelEvaluated,
    PaceExplained,
    PlanKept,
    RanksOrphaned,
    RanksReplaced,
    Recovered,
    Relieved,
    WorkerFailed,
    WorkerJoined,
    WorkerLeft,
    WorkerRefused,
    WorkerReturned,
    WorkerSlowed,
    WorkerWaiting,
)
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Prediction, Stage, Template, Worker

NOON_S = time.mktime((2026, 1, 2, 12, 3, 1, 0, 0, -1))


def made_plan(pipelines: int, stages: int) -> Plan:
    """A plan of some shape, which promises iterations of 0.1 s; nobody runs it."""
    stage = [Stage((i, i + 1), 0.01, 0.01, 0.01) for i in range(stages)]
    template = Template("all", tuple(stage), (Link(0.0),) * (stages - 1))
    workers = tuple(Worker(k, i, "") for k in range(pipelines) for i in range(stages))
    promise = Prediction(0.1, 0.1, 0.1, 0.1, 0.0, "none", 0.0, (0,) * len(workers))
    planner = Planner("test", "1", {})
    return Plan(planner, (template,), (Pipeline("all", 4),) * pipelines, "synchronous", workers, {}, promise)


def facts(pipelines: int = 2, stages: int = 2) -> RunFacts:
    return RunFacts(made_plan(pipelines, stages), "gpt-tiny", tokens=1000, paced=True)


def epoch(number: int, iteration: int, workers: dict[str, str], failed: Iterable[str] = (), **more: Any) -> EpochBegun:
    """What the rules say when an epoch begins."""
    told = {"predicted_iteration_time_s": 0.1, **more}
    return EpochBegun(
        epoch=number, iteration=iteration, live_workers=len(workers), workers=workers, failed=tuple(failed), **told
    )


def iteration(epoch: int, number: int, loss: float | None, time_s: float = 0.11, live: int = 4) -> IterationCommitted:
    """What the rules say when an iteration is committed."""
    return IterationCommitted(
        epoch=epoch,
        iteration=number,
        loss=loss,
        iteration_time_s=time_s,
        live_workers=live,
        skipped=loss is None,
    )


ALL = {place: place for place in ("0/0", "0/1", "1/0", "1/1")}
THREE = {"0/0": "0/0", "0/1": "0/1", "1/0": "1/0"}
START = JobStarted(epoch=0, live_workers=4, iterations=4, iteration=0)
FAILURE = WorkerFailed(epoch=1, worker="1/1", place="1/1", reason="connection closed", iteration=1)
STORY: list[Announcement] = [
    START,
    epoch(1, 0, ALL),
    iteration(1, 0, 5.0),
    FAILURE,
    epoch(2, 1, THREE, ["1/1"], predicted_iteration_time_s=0.125),
    iteration(2, 1, 4.5, 0.13, live=3),
    Recovered(epoch=2, iteration=1, reason="…", seconds=0.34, lost_s=0.21),
    CheckpointSaved(epoch=2, iteration=2, path="saved/2", seconds=0.5),
    WorkerJoined(epoch=3, worker="1/1", place="1/1", source="0/1", layers="layer 1", iteration=2),
    epoch(3, 2, ALL),
    iteration(3, 2, 4.0),
    Recovered(epoch=3, iteration=2, reason="…", seconds=0.2, lost_s=0.05),
    iteration(3, 3, 3.5),
]
END = JobEnded(epoch=3, exit_code=0, reason="all iterations are done", iterations=4, epochs=3)
SUMMARY = (
    "4 iterations, loss 3.5000 · 1 failure, 1 join, 3 epochs · 260 ms lost (36.1 %) · "
    "iteration time 110 ms (paced), predicted 100 ms (+10 %)"
)


def tell(events: Iterable[Announcement], told: RunFacts | None = None, **options: Any) -> None:
    """Have a report say these events, a second apart."""
    clock = iter(range(10_000))
    with RunReport(told or facts(), now=lambda: NOON_S + next(clock), **options) as report:
        for event in events:
            report.report(event)


def lines_of(text: str) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_json_lines_are_the_announcements_completed(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json every announcement is a line, in order, with all that it said and what the run's facts add."""
    tell([*STORY, END], as_json=True)
    said = lines_of(capsys.readouterr().out)
    for line, event in zip(said, [*STORY, END], strict=True):
        told = {name: value for name, value in event.as_json().items() if value is not None}
        assert line | json.loads(json.dumps(told)) == line
    assert [said[0][key] for key in ("model", "paced", "tokens", "live_workers")] == ["gpt-tiny", True, 1000, 4]
    assert said[2]["tokens_per_s"] == pytest.approx(1000 / 0.11)
    assert said[2]["paced"] is True
    end = said[-1]
    assert (end["failures"], end["joins"], end["loss"], end["paced"]) == (1, 1, 3.5, True)
    assert end["lost_s"] == pytest.approx(0.26)
    assert (end["iteration_time_s"], end["predicted_iteration_time_s"]) == (0.11, 0.1)


def test_a_run_without_a_coordinator_says_what_it_always_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The few announcements of the plain runner are enough: the rest comes from the plan and from what was said."""
    iterations = [replace(iteration(0, i, 5.0 - i, 0.1), epoch=None) for i in range(3)]
    end = JobEnded(exit_code=0, reason="all iterations are done", iterations=3, iteration_time_s=0.1)
    tell([START, *iterations, end], as_json=True)
    start, first, _, last, ended = lines_of(capsys.readouterr().out)
    assert {"live_workers": 4, "model": "gpt-tiny", "paced": True, "tokens": 1000, "epoch": 0}.items() <= start.items()
    assert {
        "iteration": 0,
        "loss": 5.0,
        "tokens_per_s": 10_000,
        "live_workers": 4,
        "paced": True,
    }.items() <= first.items()
    expected = {"iterations": 3, "loss": last["loss"], "iteration_time_s": 0.1, "predicted_iteration_time_s": 0.1}
    assert expected.items() <= ended.items()


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json a run tells its story in lines, and sums it up in the last one."""
    tell([*STORY, END])
    assert capsys.readouterr().out.splitlines() == [
        "4 workers, 1000 tokens an iteration, 4 iterations",
        "epoch 1: 4 workers · predicted 100 ms",
        "iteration   0  loss 5.0000  110 ms  9091 tokens/s",
        "12:03:04  worker 1/1 failed: connection closed",
        "epoch 2: 3 workers · 1/1 vacant · predicted 125 ms",
        "iteration   1  loss 4.5000  130 ms  7692 tokens/s",
        "recovered in 340 ms: iteration 1 redone, 210 ms lost",
        "12:03:08  checkpoint after 2 iterations in 500 ms: saved/2",
        "12:03:09  worker 1/1 joined, state from 0/1",
        "epoch 3: 4 workers · predicted 100 ms",
        "iteration   2  loss 4.0000  110 ms  9091 tokens/s",
        "recovered in 200 ms: 50 ms lost",
        "iteration   3  loss 3.5000  110 ms  9091 tokens/s",
        SUMMARY,
    ]


def test_the_rare_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Moves, copies, waits, refusals, restarts and the like have words of their own."""
    moved = {"0/0": "0/0", "0/1": "1/0", "1/1": "1/1"}
    tell(
        [
            CoordinatorRestarted(epoch=4, iteration=7),
            WorkerReturned(epoch=4, worker="0/0"),
            epoch(4, 7, ALL),
            WorkerLeft(epoch=4, worker="0/1", place="0/1", iteration=8),
            LayersCopied(epoch=5, worker="1/0", place="0/1", source="1/1", layers="layer 1"),
            LayersCopied(epoch=5, worker="0/0", place="0/0", source="1/1", layers="layers 1-2"),
            WorkerWaiting(epoch=5, worker="1/1", place="1/1", iteration=8),
            epoch(5, 8, moved, ["1/0"]),
            WorkerRefused(epoch=5, worker="9/9\x1b[2J", reason="the plan has no worker 9/9"),
            WorkerFailed(epoch=5, worker="1/0", reason="connection closed while joining"),
            RanksOrphaned(epoch=5, worker="1/0", missing=(1,), waiting=(0, 2, 3)),
            DegreeChosen(epoch=5, worker="1/0", degree=2, of=4, factor=1.9, lowered_s=0.11, without_s=0.12),
            DegreeChosen(epoch=5, worker="1/0", degree=2, of=4, factor=1.9, lowered_s=0.13, without_s=0.12),
            DegreeChosen(epoch=5, worker="1/0", degree=None, of=4, reason="2 GPUs cannot share its layers"),
            DegreeRaised(epoch=5, worker="1/0", degree=2, of=4),
            RanksReplaced(epoch=5, worker="1/0", ranks=(1,), lacking=(1,)),
            CheckpointSaved(epoch=5, iteration=8, path=None, seconds=1, error="No space left"),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "12:03:01  the coordinator was restarted, before iteration 7",
        "12:03:02  worker 0/0 is back",
        "epoch 4: 4 workers · predicted 100 ms",
        "12:03:04  worker 0/1 left as asked",
        "12:03:05  worker 1/0 moved to 0/1 and took layer 1 from 1/1",
        "12:03:06  worker 0/0 took layers 1-2 from 1/1",
        "12:03:07  worker 1/1 waits for a place",
        "epoch 5: 3 workers · 1/0 vacant · 1/0 at 0/1 · predicted 100 ms",
        "12:03:09  worker 9/9?[2J was refused: the plan has no worker 9/9",
        "12:03:10  worker 1/0 failed: connection closed while joining",
        "12:03:11  ranks 0, 2 and 3 of worker 1/0 wait for rank 1",
        "12:03:12  worker 1/0 goes on at 2 of 4 GPUs, 1.9 times as slow by the number of GPUs: iterations of 110 ms "
        "are predicted with it, of 120 ms without it",
        "12:03:13  worker 1/0 waits until it has 4 ranks again: at 2 of 4 GPUs iterations of 130 ms are predicted with "
        "it, of 120 ms without it",
        "12:03:14  worker 1/0 waits until it has 4 ranks again: 2 GPUs cannot share its layers",
        "12:03:15  worker 1/0 goes back from 2 to 4 GPUs",
        "12:03:16  rank 1 of worker 1/0 was replaced: the worker is whole again",
        "12:03:17  checkpoint after 8 iterations failed: No space left",
    ]


def test_the_cost_of_a_change_goes_to_what_caused_it() -> None:
    """Of two deaths in one change the second line says what both cost; one that an epoch did not yet answer waits."""
    story, now_s = RunStory(facts()), NOON_S
    first, second = (replace(FAILURE, worker=worker, place=worker) for worker in ("1/1", "1/0"))
    two = {"0/0": "0/0", "0/1": "0/1"}
    cost = Recovered(iteration=2, seconds=0.3, lost_s=0.5)
    # The first dead worker had voted already: the iteration is committed, and the change comes after it.
    for event in (
        first,
        iteration(1, 1, 4.0),
        epoch(2, 2, THREE),
        second,
        epoch(3, 2, two),
        iteration(3, 2, 3.0),
        cost,
    ):
        story.tell(event, now_s)
    assert [one.cost for one in story.happenings] == ["", " · iteration 2 redone · 500 ms lost"]
    story.tell(replace(cost, reason="workers lost touch with each other"), now_s)
    assert str(story.happenings[-1]).endswith("workers lost touch with each other · iteration 2 redone · 500 ms lost")


def test_an_iteration_that_went_on_is_not_called_redone() -> None:
    """What stays of it has a line of its own."""
    story = RunStory(facts())
    resumed = IterationResumed(iteration=2, kept=40, left=8, again=2, resent=1, copied=3, sealed="layer 3")
    for event in (FAILURE, epoch(2, 2, THREE), resumed, iteration(2, 2, 3.0)):
        _, words = story.tell(event, NOON_S)
        if event is resumed:
            assert words is not None and words.endswith(
                "iteration 2 goes on: 40 passes kept, 8 left, 2 of them again; of layer 3 the sums are there"
            )
    _, words = story.tell(Recovered(iteration=2, seconds=0.3, lost_s=0.5), NOON_S)
    assert words == "recovered in 300 ms: iteration 2 resumed, 500 ms lost"
    for event in (FAILURE, epoch(3, 3, THREE), replace(resumed, iteration=3), FAILURE, epoch(4, 3, THREE)):
        story.tell(event, NOON_S)
    _, words = story.tell(Recovered(iteration=3, seconds=0.3, lost_s=0.5), NOON_S)
    assert words == "recovered in 300 ms: iteration 3 redone, 500 ms lost"


def test_a_move_is_no_join(capsys: pytest.CaptureFixture[str]) -> None:
    """Who copies a state because it changes its place was there already, and is not counted as a join."""
    copy = LayersCopied(worker="1/0", place="0/1", source="1/1", layers="layer 1")
    tell([epoch(1, 0, ALL), FAILURE, copy, END], as_json=True)
    assert lines_of(capsys.readouterr().out)[-1]["joins"] == 0


ILL: list[Announcement] = [
    epoch(1, 0, ALL),
    LinkSlowed(epoch=1, link="0/0-0/1", delay_s=0.03, iteration=3),
    LinkSlowed(epoch=1, link="0/0-0/1", delay_s=0.06, iteration=4),
    epoch(2, 5, ALL, delegated=("0/0-0/1",), predicted_iteration_time_s=0.125, reason="link 0/0-0/1 is slow"),
    WorkerSlowed(epoch=2, worker="1/1", factor=1.5, iteration=6),
    PlanKept(epoch=2, reason="no other plan: it does not fit into memory", iteration=7),
    LinkBroken(epoch=2, link="0/1-1/1", iteration=8),
    epoch(3, 8, ALL, delegated=("0/0-0/1",), detours={"0/1-1/1": "1/0"}, reason="workers lost touch with each other"),
    Relieved(epoch=3, link="0/0-0/1", iteration=9),
    Relieved(epoch=3, worker="1/1", iteration=9),
    epoch(4, 10, ALL, detours={"0/1-1/1": "1/0"}, reason="link 0/0-0/1 is well again; worker 1/1 is well again"),
]


def test_what_is_slow_or_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """Slow and broken links, slow workers and reliefs are said, and so is what an epoch makes of them."""
    tell([*ILL, END])
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1: 4 workers · predicted 100 ms",
        "12:03:02  link 0/0-0/1 is slow: 30 ms",
        "12:03:03  link 0/0-0/1 is slow: 60 ms",
        "adapted: epoch 2: 4 workers · 0/0-0/1 by delegates · predicted 125 ms",
        "12:03:05  worker 1/1 is slow: 1.5 times as long as planned",
        "12:03:06  the plan is kept: no other plan: it does not fit into memory",
        "12:03:07  link 0/1-1/1 is broken",
        "epoch 3: 4 workers · 0/0-0/1 by delegates · 0/1-1/1 over 1/0 · predicted 100 ms",
        "12:03:09  link 0/0-0/1 is well again",
        "12:03:10  worker 1/1 is well again",
        "adapted: epoch 4: 4 workers · 0/1-1/1 over 1/0 · predicted 100 ms",
        "4 iterations, loss - · 1 slow link, 1 slow worker, 1 broken link, 3 epochs · 0 s lost",
    ]
    tell([*ILL, END], as_json=True)
    end = lines_of(capsys.readouterr().out)[-1]
    assert (end["slow_links"], end["slow_workers"], end["broken_links"]) == (1, 1, 1)


def test_who_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    """A pause is said, and what was found in it; of many workers only the first ones and the last."""
    group, many = ("0/0", "1/0", "2/0"), tuple(f"{k}/0" for k in range(9))
    tell(
        [
            ExaminationBegun(epoch=2, workers=group, iteration=4),
            GroupExamined(epoch=2, iteration=5, workers=group, found=("0/0-1/0", "2/0")),
            GroupExamined(epoch=2, iteration=5, workers=many, found=()),
        ]
    )
    assert [line[10:] for line in capsys.readouterr().out.splitlines()] == [
        "one of 0/0, 1/0, 2/0, or a link between them, is slow: they are examined",
        "0/0, 1/0, 2/0 were examined: link 0/0-1/0, worker 2/0 is slow",
        "0/0, 1/0, 2/0, 3/0, … 8/0 were examined: nothing is slow",
    ]


def test_a_broken_link_whose_workers_meet_on_another_network(capsys: pytest.CaptureFixture[str]) -> None:
    """The epoch says by which interface, and so does the view of the link."""
    story = [*ILL[:7], epoch(3, 8, ALL, sidesteps={"0/1-1/1": 2}, reason="workers lost touch with each other")]
    tell([*story, END])
    assert "epoch 3: 4 workers · 0/1-1/1 by interface 2 · predicted 100 ms" in capsys.readouterr().out.splitlines()
    view = rendered(facts(), story, 120)
    assert "link 0/1-1/1 is broken: its messages go by interface 2" in view


def test_the_view_of_what_is_slow() -> None:
    """The view names what is slow now, and says of a broken link who passes on its messages, and what that cost."""
    assert "slow       0/0-0/1 60 ms, 1/1 x 1.5" in rendered(facts(), ILL[:6], 100)
    cost = Recovered(iteration=8, seconds=2.3, lost_s=2.25)
    view = rendered(facts(), [*ILL, iteration(4, 8, 4.0), cost], 120)
    assert "slow       0/1-1/1 broken" in view
    assert "link 0/1-1/1 is broken: 1/0 passes on its messages · iteration 8 redone · 2.25 s lost" in view
    assert "slow  " not in rendered(facts(), [*ILL, replace(FAILURE, epoch=None)], 120)


def test_a_run_that_failed_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """An end with another exit code than 0 says the reason before the summary, also if nothing was done."""
    tell([JobEnded(exit_code=5, reason="nobody is left who holds layer 1", iterations=0, epochs=1)])
    assert capsys.readouterr().out.splitlines() == [
        "ended with 5: nobody is left who holds layer 1",
        "0 iterations, loss -",
    ]


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_loss_that_is_no_number(loss: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    """A loss that is missing or not finite is null in JSON, a dash for people, and no bar."""
    event = replace(iteration(1, 3, loss), skipped=True)
    tell([event], as_json=True)
    tell([event])
    line, words = capsys.readouterr().out.splitlines()
    assert lines_of(line)[0]["loss"] is None
    assert words == "iteration   3  loss -  110 ms  9091 tokens/s  skipped: a gradient is not finite"
    assert "loss       -" in rendered(facts(), [*STORY, event])


def test_what_nobody_knows_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A coordinator on its own may know neither the model nor the tokens: null in JSON, and no words about them."""
    unknown = RunFacts(replace(made_plan(2, 2), prediction=None), None, None)
    tell(STORY[:3], unknown, as_json=True)
    start, _, first = lines_of(capsys.readouterr().out)
    assert [start["model"], start["tokens"], first["tokens_per_s"]] == [None, None, None]
    tell([STORY[0], STORY[2]], unknown)
    assert capsys.readouterr().out == "4 workers, 4 iterations\niteration   0  loss 5.0000  110 ms\n"
    assert "╭─ 2 pipelines of 2 stages · synchronous optimizer ─" in rendered(unknown, [STORY[0], STORY[2]])


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """With --quiet there are no lines for people, and --json is not affected."""
    tell([*STORY, END], quiet=True)
    assert capsys.readouterr().out == ""
    tell([*STORY, END], quiet=True, as_json=True)
    assert len(capsys.readouterr().out.splitlines()) == len(STORY) + 1


def test_metrics_are_the_same_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The metrics file gets the JSON lines, each at once, after what is in it, beginning a line of its own."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"event": "start"}\n{"event": "iter')
    with RunReport(facts(), metrics=file, as_json=True, now=lambda: NOON_S) as report:
        for count, event in enumerate(STORY, start=1):
            report.report(event)
            assert len(file.read_text().splitlines()) == 2 + count
    assert file.read_text().splitlines()[2:] == capsys.readouterr().out.splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_ends_the_metrics_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """When the metrics cannot be written there is one remark, and everything else goes on."""
    remarks: list[str] = []
    monkeypatch.setattr(log_writers, "remark", remarks.append)
    tell([*STORY, END], metrics="/dev/full")
    assert capsys.readouterr().out.splitlines()[-1] == SUMMARY
    assert remarks == ["/dev/full: No space left on device; no more metrics are written, the training goes on"]


def test_metrics_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    """A metrics file in a folder that does not exist is a mistake, said before anything is run."""
    with pytest.raises(InvalidInputError, match="No such file"):
        RunReport(facts(), metrics=tmp_path / "nowhere" / "metrics.jsonl")


# The live view


def rendered(told: RunFacts, events: Iterable[Announcement], width: int = 80, height: int = 24) -> str:
    """The view after these events, as text."""
    story = RunStory(told)
    for second, event in enumerate(events):
        story.tell(event, NOON_S + second)
    console = Console(record=True, width=width, height=height, force_terminal=True, file=io.StringIO())
    console.print(RunView(story))
    return console.export_text()


VIEW = """\
╭─ gpt-tiny · 2 pipelines of 2 stages · synchronous optimizer · paced ─────────╮
│ stage            0      1    workers    4 of 4, epoch 3                      │
│ pipeline 0     0/0    0/1    loss       3.5000  █▆▃▁                         │
│ pipeline 1     1/0    1/1    iteration  110 ms                               │
│                              predicted  100 ms, measured +10 %               │
│                              tokens     9091 /s                              │
│                              changes    1 failure, 1 join, 260 ms lost       │
│                                                                              │
│     loss 5 ⠉⠉⠑⠒⠒⠒⠢⠤⠤⠤⢄⣀⣀⣀⣀                                                   │
│                           ⠉⠉⠉⠉⠒⠒⠒⠒⠤⠤⠤⠤⢄⣀⣀⣀⡀                                  │
│                                           ⠈⠉⠉⠉⠑⠒⠒⠒⠒⠤⠤⠤⠤⣀⣀⣀⣀                  │
│        3.5                                                 ⠉⠉⠉⠉⠑⠒⠒⠒⠢⠤⠤⠤⢄⣀⣀   │
│          0 ─────────────────────✗───────────────────────────────────────── 3 │
│                                                                              │
│ ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  4 of 4 iterations │
│                                                                              │
│ 12:03:04  worker 1/1 failed: connection… · iteration 1 redone · 210 ms lost  │
│ 12:03:08  checkpoint after 2 iterations in 500 ms: saved/2                   │
│ 12:03:09  worker 1/1 joined, state from 0/1 · 50 ms lost                     │
╰──────────────────────────────────────────────────────────────────────────────╯
"""


def test_the_view() -> None:
    """The view shows workers, speed, loss and what happened; a failure is a cross, and its line says what it cost."""
    assert rendered(facts(), STORY).splitlines() == VIEW.splitlines()


@pytest.mark.parametrize("width", [50, 80, 100, 120, 200])
@pytest.mark.parametrize(("pipelines", "stages"), [(1, 1), (3, 2), (8, 8), (8, 20), (32, 16), (64, 100)])
def test_the_view_fits(pipelines: int, stages: int, width: int) -> None:
    """At every width and for every plan the view fits a terminal of 24 lines, and its frame is straight."""
    long = WorkerRefused(worker="0/0", reason="so it is " * 40)
    lines = rendered(facts(pipelines, stages), [*STORY[:4], *[long] * 9], width).splitlines()
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) < 24


EVALUATED = [ModelEvaluated(iteration=2, loss=4.2, count=8, seconds=0.1), *STORY[-2:]]
EVALUATED += [ModelEvaluated(iteration=4, loss=4.3, count=8, seconds=0.1), END]


def test_norms_and_evaluations_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """An iteration tells its gradients' norm where it is known, an evaluation its loss; the end says the last and the
    best one, also as JSON."""
    told = [replace(START), epoch(1, 0, ALL), replace(iteration(1, 0, 5.0), grad_norm=1.23456, count=64.0), *EVALUATED]
    tell(told, live=False)
    lines = capsys.readouterr().out.splitlines()
    assert "iteration   0  loss 5.0000  grad norm 1.235  110 ms" in lines[2]
    assert "evaluation after 2 iterations  loss 4.2000" in lines
    assert "evaluation 4.3000, at best 4.2000 after 2 iterations" in lines[-1]
    tell(told, as_json=True)
    found = lines_of(capsys.readouterr().out)
    assert (found[2]["grad_norm"], found[2]["count"]) == (1.23456, 64.0)
    assert [one["loss"] for one in found if one["event"] == "evaluation"] == [4.2, 4.3]
    assert found[-1]["evaluation_loss"] == 4.3


@pytest.mark.parametrize("rates", [(0.0, 0.001, 0.002), (0.002, 0.002, 0.002), (None, None, None)])
def test_the_learning_rate_is_said_once_it_changes(
    rates: tuple[float | None, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In JSON always; in lines not while it is the same, for else every line would say it."""
    done = [replace(iteration(1, number, 5.0), learning_rate=rate) for number, rate in enumerate(rates)]
    tell([START, epoch(1, 0, ALL), *done], as_json=True)
    told = [one for one in lines_of(capsys.readouterr().out) if one["event"] == "iteration"]
    assert tuple(one["learning_rate"] for one in told) == rates
    tell([START, epoch(1, 0, ALL), *done], live=False)
    assert ("  lr 0.002  " in capsys.readouterr().out.splitlines()[-1]) == (len(set(rates)) > 1)


def test_the_view_of_evaluations() -> None:
    """Their losses are circles on the curve, and the facts say the last and the best one."""
    text = rendered(facts(), [*STORY[:7], *EVALUATED])
    assert "evaluation 4.3000, at best 4.2000 after 2 it" in text
    assert sum(line.count("○") for line in text.splitlines()) == 2


@pytest.mark.parametrize(("height", "is_drawn"), [(19, False), (20, True), (40, True)])
def test_the_curve_needs_room(height: int, is_drawn: bool) -> None:
    """On a low terminal what happened goes before the learning curve."""
    text = rendered(facts(), STORY, height=height)
    assert ("✗" in text) == is_drawn
    assert len(text.splitlines()) < height


def test_the_view_of_many_workers_sums_up() -> None:
    """Of 32 x 16 workers the view shows how many of each stage are alive, and names the first exceptions."""
    everybody = {f"{k}/{i}": f"{k}/{i}" for k in range(32) for i in range(16)}
    seats = {place: name for place, name in everybody.items() if place not in ("3/2", "9/2", "4/5")} | {"7/7": "31/0"}
    text = rendered(facts(32, 16), [epoch(2, 5, seats, ["3/2", "4/5", "9/2"])])
    alive = next(line for line in text.splitlines() if "alive" in line)
    assert alive.strip("│ ").split() == ["alive", "32", "32", "30", "32", "32", "31", *["32"] * 10]
    assert "vacant     3/2, 4/5, 9/2 " in text
    assert "moved      31/0 at 7/7 " in text


def test_who_sits_where() -> None:
    """A place shows the name of who sits there, that its worker has just died, or that it is vacant."""
    dying = rendered(facts(), STORY[:4])
    assert "pipeline 1     1/0   dead" in dying
    assert "3 of 4, epoch 1" in dying
    vacant = rendered(facts(), [*STORY[:4], epoch(2, 1, {"0/0": "0/0", "0/1": "0/1", "1/1": "1/0"}, ["1/0"])])
    assert "pipeline 1       —    1/0" in vacant


def test_bars_show_the_last_values() -> None:
    """A sparkline spans least to greatest, leaves gaps where there is no value, and keeps to its width."""
    assert sparkline([8.0, 7.0, 1.0], 10) == "█▇▁"
    assert sparkline([8.0, None, 1.0], 10) == "█ ▁"
    assert sparkline([1.0] * 5, 3) == "▄▄▄"
    assert sparkline([1e308, -1e308], 9) == "▄▄"
    assert sparkline([None], 9) == sparkline([], 9) == ""


def test_the_view_stays_and_the_summary_follows(capsys: pytest.CaptureFixture[str]) -> None:
    """At the end the view remains with its last state, and below it stands what plain mode would say last."""
    tell([*STORY, END], live=True)
    lines = capsys.readouterr().out.splitlines()
    assert any("4 of 4 iterations" in line for line in lines[:-1])
    assert lines[-1].endswith(SUMMARY)
    assert "╯" not in lines[-1]


SCRIPT = """
from rtk.cli.run_output import RunReport
from {module} import END, STORY, facts
with RunReport(facts()) as report:
    for event in [*STORY, END]:
        report.report(event)
    raise SystemExit(3)
"""


def test_on_a_terminal_the_view_is_live() -> None:
    """On a terminal the view is drawn in place, and the cursor is visible again at the end."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    command = [sys.executable, "-c", SCRIPT.format(module=__name__)]
    environment |= {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TERM": "xterm",
        "COLUMNS": "80",
        "LINES": "24",
        "PYTHONIOENCODING": "utf-8",
    }
    with subprocess.Popen(command, stdout=theirs, stdin=theirs, stderr=theirs, env=environment) as run:
        os.close(theirs)
        said = _read_all(ours).decode()
    os.close(ours)
    assert run.returncode == 3, said
    assert said.endswith(f"─╯\x1b[0m\r\n\x1b[?25h{SUMMARY}\r\n"), said
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")
    assert "4 of 4 iterations" in said


def _read_all(descriptor: int) -> bytes:
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:  # Linux says so when the other side is closed
        pass
    return b"".join(parts)


def test_no_view_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a terminal, in CI and on a dumb terminal there is no live view."""

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not wants_live_view()
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert wants_live_view()
    monkeypatch.setenv("CI", "true")
    assert not wants_live_view()
    monkeypatch.delenv("CI")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_live_view()


def test_a_run_far_from_its_plan_says_why_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with the figures of the whole run; an epoch that is as planned forgets it. JSON has it in `end`."""
    why = PaceExplained(planned_s=0.1, measured_s=0.12, why="stage 1 computes 1.2 x slower (+20 %)")
    commits = [
        IterationCommitted(epoch=1, iteration=n, loss=None, iteration_time_s=0.12, live_workers=4) for n in range(3)
    ]
    begun = EpochBegun(epoch=1, live_workers=4, workers={}, predicted_iteration_time_s=0.1)
    end = JobEnded(epoch=1, exit_code=0, reason="done", iterations=3, iteration_time_s=0.12)
    for happened, is_said in (([begun, *commits, why, end], True), ([begun, why, begun, *commits, end], False)):
        for as_json in (False, True):
            with RunReport(facts(), as_json=as_json, live=False) as report:
                for one in happened:
                    report.report(one)
            last = capsys.readouterr().out.splitlines()[-1]
            if as_json:
                assert json.loads(last).get("why") == (why.why if is_said else None)
            else:
                assert (last == f"20 % slower than planned: {why.why}") == is_said
