"""What a hang and a failure cost, counted by hand."""

import math

import pytest

from rtk.profilers.doctor.costs import costs_of

from .jobs import job_of

NODES = "torchrun --nnodes 16 --nproc-per-node 8 --rdzv-backend c10d train.py"


def test_a_hang_costs_all_gpus_until_the_time_out() -> None:
    """128 GPUs for ten minutes, torch's default."""
    costs = costs_of(job_of(lines=[NODES]))
    assert (costs.gpus, costs.hang_s) == (128, 600.0)
    assert costs.hang_gpu_hours == pytest.approx(128 / 6)
    assert costs.hang_ended_by is not None and costs.hang_ended_by.place == "default of torch"


def test_the_first_of_several_ends_it() -> None:
    """A section of ft_launcher times out before the collective calls; heartbeats that are off never do."""
    line = "ft_launcher --ft-rank-heartbeat-timeout=none --ft-rank-section-timeouts=setup:900,step:120 train.py"
    assert costs_of(job_of(lines=[line])).hang_s == 120.0


def test_nothing_may_end_it() -> None:
    """Without error handling a hang has no end, and no price: neither is invented."""
    costs = costs_of(job_of("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", lines=[NODES]))
    assert (costs.hang_s, costs.hang_ended_by, costs.hang_gpu_hours) == (None, None, None)


def test_a_failure_costs_detection_restart_and_half_an_interval() -> None:
    """600 s + 300 s + 500 iterations of 10 s, on 128 GPUs; a shorter time-out and Young's interval save the rest."""
    costs = costs_of(
        job_of(lines=[NODES], iteration_s=10.0, checkpoint_every=1000, restart_s=300.0, save_s=50.0, mtbf_s=40_000.0)
    )
    assert costs.redone_s == 5000.0 and costs.missing == ()
    assert costs.failure_gpu_hours == pytest.approx(128 * 5900 / 3600)
    hang, save = costs.changes
    assert (hang.at, save.at) == ("hang", "failure")
    assert hang.saves_gpu_hours == pytest.approx(128 * (600 - 5 * 60) / 3600)
    assert math.sqrt(2 * 50 * 40_000) == 2000 and "every 200 iterations, not every 1000" in save.says
    assert save.saves_gpu_hours == pytest.approx(128 * (5000 - 1000) / 3600)


def test_what_is_not_known_is_named() -> None:
    """Without GPUs, interval, iteration and restart there is a time and no price, and the options that would help."""
    costs = costs_of(job_of("NCCL_DEBUG=INFO"))
    assert (costs.gpus, costs.redone_s, costs.failure_gpu_hours) == (None, None, None)
    options = ("--gpus", "--checkpoint-every", "--iteration-time", "--restart-time", "--mtbf")
    assert all(any(option in one for one in costs.missing) for option in options)


def test_without_checkpoints_nothing_is_taken_back_to_one() -> None:
    """An interval of checkpoints that are off is no interval."""
    toml = "[checkpoint]\nenable = false\ninterval = 10\n"
    assert costs_of(job_of(toml=toml, iteration_s=1.0)).redone_s is None
