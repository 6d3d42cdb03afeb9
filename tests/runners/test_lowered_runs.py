"""A worker of two ranks, each a real process, goes on with one, and with two again: losses are those of one process."""

import signal

import pytest

torch = pytest.importorskip("torch")

from rtk.runners.training import JobConfig, TrainingConfig  # noqa: E402
from rtk.running import _fit_to_lower  # noqa: E402
from rtk.schemas.errors import InvalidInputError  # noqa: E402

from .ranked import RankedJob, plan_of  # noqa: E402
from .test_ranked_survival import assert_exact, event  # noqa: E402
from .test_survival import FOREVER  # noqa: E402


def test_a_worker_goes_on_with_one_rank_and_comes_back_with_two() -> None:
    """Of 2 stages x 2 pipelines x 2 ranks, by F, I and W and with clipping, one rank dies: its partner takes over the
    whole stage, as a slow worker; a process in the dead one's place, and both have halves again."""
    plan = plan_of(2, 2, 4, 2, "zero-bubble")
    with RankedJob(plan, FOREVER, clip_norm=0.5, lower_degree=True) as job:
        at = job.wait_for_iteration(2)
        job.signal("1/0:1", signal.SIGKILL)
        at = job.wait_for(event("lowered", worker="1/0"), since=at)
        told = job.said[at]
        assert (told["degree"], told["of"], told["factor"], told["is_lowered"]) == (1, 2, 2.0, True)
        assert told["lowered_s"] < told["without_s"]
        at = job.wait_for(event("join", worker="1/0"), since=at)
        at = job.wait_for(event("iteration", live_workers=4), since=at)
        job.wait_for_iteration(job.said[at]["iteration"] + 2)
        partner = job.processes["1/0:0"]
        job.start("1/0:1")
        at = job.wait_for(event("raised", worker="1/0"), since=at)
        at = job.wait_for(event("join", worker="1/0"), since=at)
        at = job.wait_for(event("iteration", live_workers=4), since=at)
        job.wait_for_iteration(job.said[at]["iteration"] + 2)
        assert_exact(job, clip_norm=0.5)
        assert partner.is_alive()  # it was there all the time
        assert not [one for one in job.said if one["event"] == "failure" and one["worker"] != "1/0"]


def test_who_is_to_go_on_with_fewer_ranks_shares_no_optimizer() -> None:
    """Workers of three pipelines would share its state, and wait for lost ranks: not where nobody asks for that."""
    plan, lowers = plan_of(1, 3, 2, 2), JobConfig(lower_degree=True)
    asked = TrainingConfig("gpt-tiny")
    assert "--no-shard-optimizer" in _fit_to_lower(asked, plan, lowers).arguments()
    assert _fit_to_lower(asked, plan, JobConfig()) == asked
    with pytest.raises(InvalidInputError, match="share the optimizer's state"):
        _fit_to_lower(TrainingConfig("gpt-tiny", shard_optimizer=True), plan, lowers)
