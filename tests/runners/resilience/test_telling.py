"""What a coordinator has announced, as the events of a timeline."""

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
