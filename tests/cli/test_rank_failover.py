"""The coordinator of workers of several ranks is killed, and a rank meanwhile: another one goes on from its log."""

import signal
from pathlib import Path

import pytest

from ..ports import free_port
from .shell import Shell, wait_for
from .test_rank_jobs import folder, shell, undisturbed

__all__ = ["folder", "shell"]


def test_ranks_outlive_their_coordinator_and_one_of_them_does_not(
    shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker all of whose ranks come back goes on; the other one is lost with its dead rank, whose partner waits
    for the process that takes its place; no iteration is lost or redone, and losses are those of one process."""
    port = free_port()
    secret = ("--secret-file", "secret")
    led = ("coordinate", "plan2.json", "--iterations", "100000", *secret, "--log", "job.log", "--json")
    first = shell.rtk("first", *led, "--listen", f"127.0.0.1:{port}")
    wait_for(lambda: (folder / "secret").exists() or not first.is_running, "the secret is made")
    work = ("run", "plan2.json", "--script", "own.py", *secret, "--coordinator", f"127.0.0.1:{port}", "--worker")
    ranks = {name: shell.rtk(name.replace("/", "-"), *work, name) for name in ("0/0:0", "0/0:1", "1/0:0", "1/0:1")}
    wait_for(lambda: len(first.named("iteration")) > 3 or not first.is_running, f"training begins; {first.errors}")

    first.kill()
    ranks["1/0:1"].kill()
    again = shell.rtk("again", *led, "--listen", f"127.0.0.1:{port}")
    wait_for(lambda: len(again.named("iteration")) > 3, f"training goes on; {again.errors}")
    assert [one["worker"] for one in again.named("returned")] == ["0/0"]
    assert [one["worker"] for one in again.named("failure")] == ["1/0"]
    ranks["1/0:1"] = shell.rtk("another", *work, "1/0:1")
    wait_for(lambda: again.named("join") or not again.is_running, f"the worker is whole again; {again.errors}")
    since = len(again.named("iteration"))
    wait_for(lambda: len(again.named("iteration")) > since + 3, f"with all its workers; {again.errors}")
    assert [(one["worker"], one["ranks"]) for one in again.named("replaced")] == [("1/0", [1])]

    again.process.send_signal(signal.SIGINT)
    told = [
        *first.named("iteration"),
        *again.named("iteration"),
    ]  # read once: the job ends with the iteration under way
    found = {one["iteration"]: one["loss"] for one in told}
    assert len(found) == len(told)
    expected = dict(enumerate(undisturbed(folder, 20, monkeypatch)))
    assert {n: found[n] for n in expected if n in found} == pytest.approx(
        {n: loss for n, loss in expected.items() if n in found}, rel=1e-12
    )
