"""A loop as torchft's train_ddp.py has it, with one import changed: replicas die, others go on, new ones heal.

The file is also the program of one replica, which notes each step that counted, with the rows that it had in it. So the
whole training can be done again by one process, whoever was there when.
"""

import os
import random
import signal
import socket
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from rtk.manager import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    PGTransport,
    ProcessGroupGloo,
    ProcessGroupNCCL,
    WorldSizeMode,
    plan_of_replicas,
)
from rtk.runners.resilience.protocol import Vote
from rtk.runners.torch.manager import _leave_at_exit
from rtk.runners.training import COORDINATOR, SECRET, JobConfig, TrainingConfig
from rtk.schemas.check import check_plan
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError, RuntimeFailedError
from rtk.schemas.plan import Plan

if __name__ != "worker":
    from ..warm import fork
    from .processes import ProcessJob

ROWS, WIDTH, CLASSES = 8, 16, 4
MANY = 100_000
RATE = 0.01


def make_model(seed: int) -> nn.Sequential:
    """A small model; each replica makes another one."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)).double()


def make_rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one step of a replica."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(0, CLASSES, (ROWS,), generator=generator)


Death = Literal["quorum", "giving", "taking", "backward", "vote", "step", "leaving"]


def dying(do: Callable[..., Any], live: Callable[[], None], once: type | None = None) -> Callable[..., Any]:
    """What lives before it does something; or after that, where it was given something of a type."""

    def both(*given: Any) -> Any:
        if once is None:
            live()
        done = do(*given)
        if once is not None and isinstance(given[0], once):
            live()
        return done

    return both


def doom(death: Death, after: int, manager: Manager, model: nn.Module, optimizer: Optimizer, states: Any) -> Any:
    """Let this process die: in `start_quorum`, while it gives its state or takes another's, in its backward pass, as it
    has voted in `should_commit`, or before it steps although all have committed; or shut down amid a step.

    Args:
        death: in what.
        after: which step is its last; of `giving` and `taking` it is the first occasion that counts.
        manager, model, optimizer, states: of the loop.

    Returns:
        What gives and takes the loop's state.
    """
    give, take = states

    def live(*_: Any) -> None:
        if manager.current_step() >= after:
            die()

    if death == "backward":
        next(model.parameters()).register_hook(live)  # type: ignore[no-untyped-call]
    elif death == "vote":
        vars(manager._link)["send"] = dying(manager._link.send, live, once=Vote)
    elif death == "step":
        optimizer.optim.register_step_pre_hook(live)
    elif death == "quorum":
        vars(manager)["start_quorum"] = dying(manager.start_quorum, live)
    elif death == "giving":
        return dying(give, live), take
    elif death == "taking":
        return give, lambda state: die()
    return give, take


def train(
    number: int,
    folder: Path,
    environment: dict[str, str],
    dies: tuple[Death, int] | None,
    fails_at: int,
    has_spares: bool,
) -> None:
    """torchft's loop: until the step that the file `steps` says; in one step it may die, or report an error."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    model = make_model(number)
    own = random.Random(os.getpid())

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optim": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=2 if has_spares else 1,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if has_spares else WorldSizeMode.DYNAMIC,
        replica_id=f"train_ddp_{number}",
        timeout=timedelta(seconds=10),
    )
    replica = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, optim.AdamW(replica.parameters(), lr=RATE))
    states = state_dict, load_state_dict
    give, take = states if dies is None else doom(*dies, manager, model, optimizer, states)
    manager.register_state_dict_fn("default", take, give)
    with (folder / f"steps-{number}").open("a", buffering=1) as notes:
        while manager.current_step() < int((folder / "until").read_text()):
            seed = own.randrange(2**31)
            inputs, labels = make_rows(seed)
            optimizer.zero_grad()
            if dies is not None and dies[0] == "leaving" and manager.current_step() >= dies[1]:
                break
            loss = F.cross_entropy(replica(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            manager.report_loss(loss)
            if manager.current_step() == fails_at:
                fails_at = -1
                manager.report_error(RuntimeError("wrong numbers"))
            before = manager.current_step()
            notes.write(f"tries {before} {seed}\n")
            optimizer.step()
            if manager.current_step() > before:
                notes.write(f"{before} {seed} {manager.num_participants()} {manager.batches_committed()}\n")
            else:
                (folder / f"missed-{number}").touch()
            time.sleep(0.002)
    torch.save([model.state_dict(), manager.state_dict()], folder / f"end-{number}")
    manager.shutdown()


def die() -> NoReturn:
    """Without a word."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


class ReplicaJob(ProcessJob if __name__ != "worker" else object):  # type: ignore[misc]
    """Replicas that a coordinator leads.

    Args:
        folder: where they note what they do.
        replicas: how many.
        steps: until which they go on, unless `until` says otherwise.
        dies: by number, in what and from which step on a replica dies.
        fails_at: and reports an error.
        spares: only two replicas count.
    """

    def __init__(
        self,
        folder: Path,
        replicas: int,
        steps: int = MANY,
        dies: dict[int, tuple[Death, int]] | None = None,
        fails_at: dict[int, int] | None = None,
        spares: bool = False,
    ) -> None:
        self.spares = spares
        self.folder, self.dies, self.fails_at = folder, dies or {}, fails_at or {}
        self.until(steps)
        write_document(str(folder / "plan.json"), plan_of_replicas(replicas))
        how = JobConfig(iterations=MANY if steps == MANY else steps)
        super().__init__(plan_of_replicas(replicas), how, TrainingConfig(), is_watchful=False)

    def launch(self, name: str, not_before: int, lifeline: str | None) -> Any:
        """The process of a replica; only the first one of a number dies or fails."""
        number = int(name.partition("/")[0])
        environment = {
            "RTK_PLAN": str(self.folder / "plan.json"),
            COORDINATOR: self.addresses[0],
            SECRET: self.secret.decode(),
        }
        ends = self.dies.pop(number, None), self.fails_at.pop(number, -1), self.spares
        return fork(__file__, number, self.folder, environment, *ends)

    def until(self, step: int) -> None:
        """Let all go on to a step."""
        file = self.folder / "until.new"
        file.write_text(str(step))
        file.rename(self.folder / "until")

    def steps(self) -> int:
        """How many counted so far."""
        return sum(one["event"] == "iteration" and not one.get("skipped") for one in list(self.said))

    def wait_for_step(self, step: int, timeout_s: float = 90.0) -> None:
        """Wait until so many have counted."""
        deadline_s = time.monotonic() + timeout_s
        while self.steps() < step:
            assert time.monotonic() < deadline_s, f"no step {step}; last: {self.said[-5:]}"
            time.sleep(0.02)

    def wait_for_end(self, timeout_s: float = 90.0) -> None:
        """Wait until all processes have ended, by themselves, and with them the job."""
        for process in self.processes.values():
            process.join(timeout_s)
            assert process.exitcode == 0, f"{process.exitcode}; last: {self.said[-5:]}"
        finished = self.result()
        assert (finished.exit_code, finished.reason) == (0, "all workers are at their own end")


def committed(notes: Path) -> list[str]:
    """What a replica noted of steps that counted."""
    return [line for line in notes.read_text().splitlines() if not line.startswith("tries")]


def check_trajectory(folder: Path, replicas: int, first: int = 0) -> int:
    """One process, with the rows of those who took part in each step, comes to the same parameters, which all have.

    Returns:
        How many steps counted.
    """
    rows: dict[int, list[int]] = defaultdict(list)
    tried: dict[int, dict[int, int]] = defaultdict(dict)
    counts: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for number in range(replicas):
        for line in (folder / f"steps-{number}").read_text().splitlines():
            step, seed, *told = map(int, line.removeprefix("tries ").split())
            if told:
                del tried[step][number]
                rows[step].append(seed)
                counts[step].add((told[0], told[1]))
            else:
                tried[step][number] = seed
    for step, found in counts.items():
        ((count, _),) = found  # all say the same
        if count > len(rows[step]):  # somebody was killed between the commit and its note
            rows[step] += tried[step].values()
        assert len(rows[step]) == count
    ends = [torch.load(folder / f"end-{number}") for number in range(replicas)]
    assert all(state == ends[0][1] for _, state in ends)
    assert sorted(rows) == list(range(ends[0][1]["step"]))
    model = make_model(first)
    optimizer = optim.AdamW(model.parameters(), lr=RATE)
    done = 0
    for step in sorted(rows):
        optimizer.zero_grad()
        for seed in rows[step]:
            inputs, labels = make_rows(seed)
            (F.cross_entropy(model(inputs), labels) / len(rows[step])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += len(rows[step])
        assert {total for _, total in counts[step]} == {done}  # what all said of the batches so far
    for state, _ in ends:
        for name, value in model.state_dict().items():
            torch.testing.assert_close(state[name], ends[0][0][name], atol=0, rtol=0)
            torch.testing.assert_close(state[name], value, atol=1e-11, rtol=0)
    return len(rows)


def test_a_replica_dies_amid_backward_and_a_new_one_heals(tmp_path: Path) -> None:
    """Three processes; the step of the death is done again by two, and the third has their state when it is back."""
    with ReplicaJob(tmp_path, 3, dies={1: ("backward", 4)}) as job:
        job.wait_for_step(10)
        job.start("1/0")
        since = job.wait_for(lambda one: one["event"] == "join")
        job.until(job.steps() + 20)
        job.wait_for_end()
    assert (tmp_path / "missed-0").exists()  # the step in which it died
    assert any(one["event"] == "failure" for one in job.said[:since])
    assert check_trajectory(tmp_path, 3) >= 30
    counts = [int(line.split()[2]) for line in committed(tmp_path / "steps-0")]
    assert {*counts[:4]} == {3}
    assert counts[4] == 2
    assert counts[-1] == 3


DEATHS: list[Death] = ["vote", "step", "backward", "quorum", "taking", "leaving", "giving"]


def test_whatever_a_replica_is_at_when_it_dies_the_others_go_on(tmp_path: Path) -> None:
    """In each verb once, also as it comes back, and as it gives another one its state; and who leaves amid a step."""
    with ReplicaJob(tmp_path, 3, dies={0: ("vote", 3)}) as job:
        since = 0
        for number, death in enumerate(DEATHS):
            if death == "giving":  # somebody has to come
                job.signal("2/0", signal.SIGKILL)
                job.wait_for(lambda one: one["event"] == "failure" and one["worker"] == "2/0", since=since)
                job.wait_for_step(job.steps() + 1)
                job.start("2/0")
            told = "leave" if death == "leaving" else "failure"
            since = job.wait_for(lambda one: one["event"] == told and one["worker"] == "0/0", since=since)  # noqa: B023
            job.processes["0/0"].join(30)
            if number + 1 < len(DEATHS):
                job.dies[0] = DEATHS[number + 1], job.steps() + 2
            job.start("0/0")
        since = job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 3, since=since)
        job.until(job.steps() + 10)
        job.wait_for_end()
    check_trajectory(tmp_path, 3)


def test_two_of_three_are_killed_at_once(tmp_path: Path) -> None:
    """The third one goes on alone, and gives both their state when they are back; so with whichever two."""
    with ReplicaJob(tmp_path, 3) as job:
        for alone in range(3):
            job.wait_for_step(job.steps() + 3)
            since, others = len(job.said), [f"{number}/0" for number in range(3) if number != alone]
            for name in others:
                job.signal(name, signal.SIGKILL)
            since = job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 1, since=since)
            for name in others:
                job.start(name)
            job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 3, since=since)
        job.until(job.steps() + 5)
        job.wait_for_end()
    check_trajectory(tmp_path, 3)


@pytest.mark.parametrize("kills", [int(os.environ.get("RTK_TEST_KILLS", "4"))])
def test_replicas_are_killed_at_random(tmp_path: Path, kills: int) -> None:
    """Whoever dies when, somebody goes on, nothing hangs, and what is trained is what one process trains."""
    chance = random.Random(kills)
    with ReplicaJob(tmp_path, 3) as job:
        job.wait_for_step(3)
        for _ in range(kills):
            name = f"{chance.randrange(3)}/0"
            time.sleep(chance.uniform(0.0, 0.3))
            job.signal(name, signal.SIGKILL)
            since = len(job.said)
            job.processes[name].join(10)
            job.wait_for_step(job.steps() + chance.randrange(1, 4))
            job.start(name)
            job.wait_for(lambda one: one["event"] == "join", since=since)
        job.until(job.steps() + 20)
        job.wait_for_end()
    check_trajectory(tmp_path, 3)


def test_an_error_takes_the_step_from_all(tmp_path: Path) -> None:
    """Who reports one votes against the step, and nobody takes it; the job ends with its iterations."""
    with ReplicaJob(tmp_path, 2, steps=8, fails_at={1: 3}) as job:
        assert job.result().exit_code == 0
        skipped = [one["iteration"] for one in job.said if one["event"] == "iteration" and one.get("skipped")]
    assert skipped == [3]
    assert (tmp_path / "missed-0").exists() and (tmp_path / "missed-1").exists()
    steps = [line.split()[0] for line in committed(tmp_path / "steps-0")]
    assert steps == [str(step) for step in range(7)]  # the skipped iteration is one of the eight


def test_the_plan_of_replicas() -> None:
    """Valid, of one stage and one micro-batch a replica."""
    plan = plan_of_replicas(3)
    assert check_plan(plan) == []
    assert [worker.name for worker in plan.workers] == ["0/0", "1/0", "2/0"]
    with pytest.raises(InvalidInputError, match="0 replicas"):
        plan_of_replicas(0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"world_size": 2}, "process 0 of a replica of 2"),
        ({"WORLD_SIZE": "4"}, "process 0 of a replica of 4"),
        ({"rank": 1}, "process 1 of a replica of 1"),
        ({"min_replica_size": 0, "world_size_mode": WorldSizeMode.FIXED_WITH_SPARES}, "0 replicas take no step"),
        ({"min_replica_size": -1}, "-1 replicas take no step"),
        ({"replica_id": "train_3"}, "the plan has no replica 3"),
        ({"replica_id": None}, "replica_id is not given"),
        ({"lighthouse_addr": None}, "lighthouse_addr is not given"),
        ({"secret": None}, "secret is not given"),
        ({"plan": None}, "plan is not given"),
        ({"lighthouse_addr": "nowhere"}, "nowhere"),
    ],
)
def test_what_is_missing_or_wrong_is_said(given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is connected, with the argument and the variable that would say it."""
    for name in ("RTK_PLAN", COORDINATOR, SECRET, "REPLICA_GROUP_ID"):
        monkeypatch.delenv(name, raising=False)
    right: dict[str, Any] = {
        "lighthouse_addr": "127.0.0.1:1",
        "replica_id": "r0",
        "plan": plan_of_replicas(2),
        "secret": "0" * 32,
    }
    if "WORLD_SIZE" in given:  # as torchrun sets it
        monkeypatch.setenv("WORLD_SIZE", given["WORLD_SIZE"])
        given = {}
    with pytest.raises(InvalidInputError) as caught:
        Manager(**{**right, **given})
    assert words in f"{caught.value.what} {caught.value.where}"


def make_manager(**given: Any) -> Manager:
    """A replica that nobody leads."""
    plan: Plan = plan_of_replicas(2)
    return Manager(lighthouse_addr="127.0.0.1:1", replica_id="r0", plan=plan, secret="0" * 32, **given)


def test_verbs_before_the_first_step() -> None:
    """No step is voted on that was not begun; a future's error is reported; counts are those of a checkpoint."""
    manager = make_manager(timeout=timedelta(seconds=0.2))
    assert (manager.num_participants(), manager.is_participating(), manager.errored()) == (0, False, None)
    with pytest.raises(InvalidInputError, match="no step has been begun"):
        manager.should_commit()
    manager.load_state_dict({"step": 7, "batches_committed": 21})
    assert (manager.current_step(), manager.batches_committed()) == (7, 21)
    assert manager.state_dict() == {"step": 7, "batches_committed": 21}
    future: torch.futures.Future[int] = torch.futures.Future()
    wrapped = manager.wrap_future(future, 5)
    future.set_exception(ValueError("no"))  # type: ignore[arg-type]
    assert wrapped.wait() == 5
    assert isinstance(manager.errored(), Exception)
    manager.register_state_dict_fn("more", lambda state: None, dict)
    with pytest.raises(InvalidInputError, match="two parts"):
        manager.register_state_dict_fn("more", lambda state: None, dict)
    manager.report_loss(torch.ones((), requires_grad=True) * 2)  # without a warning of torch's
    assert manager._loss == 2.0
    with pytest.raises(InvalidInputError, match="averages and sums"):
        manager.allreduce(torch.ones(2), reduce_op=torch.distributed.ReduceOp.MAX)
    with pytest.raises(InvalidInputError, match="no step has been begun"):
        manager.allreduce(torch.ones(2))  # an average of nobody's
    with pytest.raises(RuntimeFailedError):
        manager.start_quorum()  # there is no coordinator
    manager.shutdown()
    manager.shutdown()
    with pytest.raises(RuntimeFailedError, match="has left the job"):
        manager.start_quorum()


def test_what_torchft_takes_may_stand_there_and_nothing_else() -> None:
    """Arguments of its lighthouse and its copies change nothing; an argument that it does not have is none."""
    pg = ProcessGroupNCCL(timeout=timedelta(seconds=30))
    given = {"checkpoint_transport": PGTransport(pg, timeout=timedelta(seconds=10)), "quorum_timeout": timedelta(1)}
    manager = make_manager(pg=pg, quorum_retries=3, store_addr="nowhere", **given)
    manager.set_state_dict_fns(lambda state: None, dict)
    manager.shutdown()
    with pytest.raises(TypeError, match="no argument 'min_replicas'"):
        make_manager(min_replicas=1)


@pytest.mark.parametrize(
    ("doing", "error", "is_well"),
    [("preparing", None, True), ("computing", None, False), ("preparing", ValueError(), False)],
)
def test_a_process_that_ends_amid_a_step_or_by_an_error_is_not_at_its_own_end(
    doing: Literal["preparing", "computing"], error: Exception | None, is_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does by sys.exit(1), whose code Python tells nobody at that time: the coordinator counts it as lost."""
    manager, said = make_manager(), list[bool]()
    manager._activity.be(doing, "step 3")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(manager, "_shut_down", lambda is_well: said.append(is_well))
        _leave_at_exit(weakref.ref(manager))
    manager.shutdown()
    assert said == [is_well]


def test_spares_add_nothing_to_an_average_of_so_many(tmp_path: Path) -> None:
    """Of three replicas two count: their sums are halved, the third one's are zeros, and it takes the same steps; who
    dies is replaced by the spare. The coordinator announces the mean loss of those two alone."""
    with ReplicaJob(tmp_path, 3, spares=True) as job:
        job.wait_for_step(3)
        since = len(job.said)
        job.signal("0/0", signal.SIGKILL)
        job.wait_for(lambda one: one["event"] == "iteration" and one["live_workers"] == 2, since=since)
        job.until(job.steps() + 5)
        for number in (1, 2):
            job.processes[f"{number}/0"].join(60)
            assert job.processes[f"{number}/0"].exitcode == 0
    ends = [torch.load(tmp_path / f"end-{number}") for number in (1, 2)]
    assert ends[0][1] == ends[1][1]
    assert ends[0][1]["batches_committed"] == 2 * ends[0][1]["step"]
    for name, value in ends[0][0].items():
        torch.testing.assert_close(ends[1][0][name], value, atol=0, rtol=0)
    model = make_model(0)
    first = []
    for number in (0, 1):
        step, seed = (tmp_path / f"steps-{number}").read_text().split()[1:3]  # what it tried first
        inputs, labels = make_rows(int(seed))
        first.append(F.cross_entropy(model(inputs), labels).item())
        assert step == "0"
    losses = {one["iteration"]: one["loss"] for one in job.said if one["event"] == "iteration"}
    assert losses[0] == pytest.approx(sum(first) / 2, rel=1e-9)


def test_a_replica_that_never_began_lets_go_of_its_port() -> None:
    """shutdown closes the place where others would meet it, though no coordinator was found, or asked for."""
    manager = make_manager()
    host, _, port = manager._meeting.address.rpartition(":")
    socket.create_connection((host, int(port)), 5).close()
    manager.shutdown()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), 5)


def test_replicas_read_rows_of_their_own() -> None:
    """As torchft's sampler: a share for each replica that there may be."""
    data: Any = range(12)
    shares = [list(DistributedSampler(data, number, 3, shuffle=False)) for number in range(3)]
    assert sorted(row for share in shares for row in share) == list(range(12))


if __name__ == "worker":
    train(*globals()["ARGUMENTS"])
