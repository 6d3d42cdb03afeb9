"""What a coordinator has announced: as JSON, and as the events of a timeline."""

import json
from dataclasses import replace

import pytest

from rtk.runners.resilience import announcements
from rtk.runners.resilience.announcements import (
    Announcement,
    EpochBegun,
    LinkBroken,
    LinkSlowed,
    PlanKept,
    Relieved,
    WorkerFailed,
    WorkerSlowed,
    timeline_events,
)

CLASSES = [one for one in vars(announcements).values() if isinstance(one, type) and issubclass(one, Announcement)]
KINDS = [kind for kind in CLASSES if "event" in vars(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_have_names_of_their_own(kind: type[Announcement]) -> None:
    """No two kinds have the same `event`, which docs/events.md knows programs by."""
    assert [one for one in KINDS if one.event == kind.event] == [kind]


def test_json_leaves_out_what_says_nothing() -> None:
    """A link's relief names no worker, and what belongs to no iteration has none; a place that is none is null."""
    assert Relieved(link="0/0-0/1", epoch=1).as_json() == {"event": "relief", "epoch": 1, "link": "0/0-0/1"}
    lost = WorkerFailed(worker="9/9", reason="gone", epoch=2)
    assert json.loads(json.dumps(lost.as_json())) == {
        "event": "failure",
        "epoch": 2,
        "worker": "9/9",
        "place": None,
        "reason": "gone",
    }


def test_a_place_given_up_is_told() -> None:
    """A worker that moves leaves its place, which is an event of the timeline."""
    seats = [{"0/0": "0/0", "0/1": "0/1", "1/1": "1/1"}, {"0/0": "1/1", "0/1": "0/1"}]
    announced = [
        (float(number), EpochBegun(epoch=number, iteration=3, live_workers=2, workers=workers))
        for number, workers in enumerate(seats, start=1)
    ]
    epoch, leaves = timeline_events(announced)
    assert (epoch.kind, epoch.message) == ("epoch", "2, from iteration 3 on: 2 workers")
    assert (leaves.kind, leaves.worker, leaves.message) == ("leave", "1/1", "worker 1/1 moves to 0/0")


def test_what_is_slow_is_told() -> None:
    """Slow and broken links, slow workers and reliefs are events of the timeline; a worker's stands at its place."""
    seats = {"0/0": "0/0", "0/1": "1/1", "0/2": "0/2"}
    epoch = EpochBegun(epoch=1, iteration=3, live_workers=3, workers=seats)
    announced: list[Announcement] = [
        epoch,
        LinkSlowed(link="0/2-1/1", delay_s=0.03),
        WorkerSlowed(worker="1/1", factor=1.5),
        PlanKept(reason="no other plan: too large"),
        replace(epoch, epoch=2, delegated=("0/2-1/1",), detours={"0/0-1/1": "0/2"}),
        replace(epoch, epoch=3, sidesteps={"0/0-1/1": 1}),
        Relieved(link="0/2-1/1"),
        Relieved(worker="1/1"),
        LinkBroken(link="0/2-1/1"),
    ]
    told = timeline_events((float(number), one) for number, one in enumerate(announced))
    assert [(event.kind, event.worker, event.message) for event in told] == [
        ("slow_link", None, "link 0/2-1/1 is slow: 30 ms"),
        ("slow_worker", "0/1", "worker 1/1 is slow: 1.5 times as long as planned"),
        ("kept", None, "no other plan: too large"),
        (
            "epoch",
            None,
            "2, from iteration 3 on: 3 workers; by delegates 0/2-1/1; 0/2 passes on what 0/0-1/1 have for each other",
        ),
        ("epoch", None, "3, from iteration 3 on: 3 workers; 0/0-1/1 goes by interface 1"),
        ("relief", None, "link 0/2-1/1 is well again"),
        ("relief", "0/1", "worker 1/1 is well again"),
        ("broken_link", None, "link 0/2-1/1 is broken"),
    ]
