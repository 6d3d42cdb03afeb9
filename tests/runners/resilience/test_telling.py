"""What a coordinator has announced, as the events of a timeline."""

from typing import Any

from rtk.runners.resilience.telling import timeline_events


def test_a_place_given_up_is_told() -> None:
    """A worker that moves leaves its place, which is an event of the timeline."""
    epochs = [{"0/0": "0/0", "0/1": "0/1", "1/1": "1/1"}, {"0/0": "1/1", "0/1": "0/1"}]
    announced = [
        (float(number), {"event": "epoch", "epoch": number, "iteration": 3, "live_workers": 2, "workers": workers})
        for number, workers in enumerate(epochs, start=1)
    ]
    epoch, leaves = timeline_events(announced)
    assert (epoch.kind, epoch.message) == ("epoch", "2, from iteration 3 on: 2 workers")
    assert (leaves.kind, leaves.worker, leaves.message) == ("leave", "1/1", "worker 1/1 moves to 0/0")


def test_what_is_slow_is_told() -> None:
    """Slow and broken links, slow workers and reliefs are events of the timeline; a worker's stands at its place."""
    seats = {"0/0": "0/0", "0/1": "1/1", "0/2": "0/2"}
    epoch = {"event": "epoch", "iteration": 3, "live_workers": 3, "workers": seats}
    announced: list[dict[str, Any]] = [
        {**epoch, "epoch": 1},
        {"event": "slow_link", "link": "0/2-1/1", "delay_s": 0.03},
        {"event": "slow_worker", "worker": "1/1", "factor": 1.5},
        {"event": "kept", "reason": "no other plan: too large"},
        {**epoch, "epoch": 2, "delegated": ["0/2-1/1"], "detours": {"0/0-1/1": "0/2"}},
        {**epoch, "epoch": 3, "sidesteps": {"0/0-1/1": 1}},
        {"event": "relief", "link": "0/2-1/1", "delay_s": None},
        {"event": "relief", "worker": "1/1", "factor": None},
        {"event": "broken_link", "link": "0/2-1/1"},
    ]
    told = timeline_events((float(number), fields) for number, fields in enumerate(announced))
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
