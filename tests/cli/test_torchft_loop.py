"""The example of docs/torchft.md as people run it: a coordinator and replicas, each a command, and whatever dies."""

import signal
import socket
from pathlib import Path

from rtk.manager import plan_of_replicas
from rtk.schemas.documents import write_document

from .shell import Command, Shell, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchft_ddp.py"
SECRET = "a secret for one test only"


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_loop_of_torchft_begins_with_two_of_three_and_survives_its_coordinator(tmp_path: Path) -> None:
    """Two replicas begin without the third one; the coordinator is killed, and taken over from its log, without a lost
    step; the third one comes and has their state; one is killed. Then all end by themselves, and so does the job."""
    write_document(str(tmp_path / "replicas.json"), plan_of_replicas(3))
    listen = f"127.0.0.1:{free_port()}"
    environment = {"RTK_PLAN": "replicas.json", "RTK_COORDINATOR": listen, "RTK_SECRET": SECRET}
    with Shell(tmp_path) as shell:

        def lead(name: str) -> Command:
            asked = (
                "--iterations",
                "100000",
                "--min-workers",
                "2",
                "--join-wait",
                "500ms",
                "--log",
                "job.log",
                "--json",
            )
            return shell.rtk(name, "coordinate", "replicas.json", "--listen", listen, *asked, RTK_SECRET=SECRET)

        def replica(number: int) -> Command:
            told = {**environment, "REPLICA_GROUP_ID": str(number)}
            return shell.program(f"replica-{number}", str(EXAMPLE), "--steps", "500", **told)

        first, two = lead("first"), [replica(0), replica(1)]
        wait_for(lambda: len(first.named("iteration")) > 3, f"two begin; {first.errors}")
        assert "waiting for 3 workers, or for 2 if no other comes for 500 ms" in first.errors
        assert first.named("start")[0]["live_workers"] == 2
        first.kill()
        again = lead("again")
        third = replica(2)
        wait_for(lambda: again.named("join"), f"the third one comes; {again.errors}")
        assert [len(again.named(event)) for event in ("restarted", "returned", "failure")] == [1, 2, 0]
        wait_for(lambda: again.named("iteration")[-1]["live_workers"] == 3, "all three train")
        two[1].process.send_signal(signal.SIGKILL)
        wait_for(lambda: again.named("failure"), "it is missed")
        assert [one.ended() for one in (two[0], third, again)] == [0, 0, 0]
        end = again.named("end")[0]
        assert (end["exit_code"], end["reason"]) == (0, "all workers are at their own end")
        assert [len(again.named(event)) for event in ("failure", "leave")] == [1, 2]
        losses = [one["loss"] for one in (*first.named("iteration"), *again.named("iteration"))]
        assert None not in losses
        assert sum(losses[-50:]) < 0.5 * sum(losses[:50])
        assert "[500] 2 replicas, loss" in third.output
