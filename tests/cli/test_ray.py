"""`rtk sweep --executor ray` with Ray itself, where it is installed: `pip install -c constraints.txt -e '.[ray]'`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .shell import RTK, rtk
from .test_sweep import LONG, reports, runs, until

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

TASKS = """
import os
from rtk.runners.replay.sweep import executor_of
from rtk.schemas.errors import RuntimeFailedError

def fail():
    raise ValueError("on purpose")

def end():
    os._exit(9)

try:
    with executor_of("ray", 2) as ray:
        raised = ray.submit(fail).exception()
        ray.submit(end).result()
except RuntimeFailedError as error:
    print(raised, error)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a sweep of 9 replays, and a home and a place for temporary files that Ray must leave empty.

    It is none of pytest's, for Ray's sockets stand in it, and their paths may have 107 characters.
    """
    with TemporaryDirectory(prefix="rtk") as name:
        place = Path(name)
        (place / "spec.yaml").write_text(LONG.replace("seeds: 30", "seeds: 9"))
        for own in ("home", "tmp"):
            (place / own).mkdir()
        yield place
        assert [*(place / "home").iterdir(), *(place / "tmp").iterdir()] == []


def started(folder: Path, *command: str) -> "subprocess.Popen[str]":
    """A command in a session of its own."""
    surroundings = {**os.environ, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=surroundings, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for pid in psutil.pids():
        try:
            found += [pid] if os.getsid(pid) == leader and runs(pid) else []
        except ProcessLookupError:
            continue
    return found


def listens_at(pid: int) -> set[str]:
    """The addresses at which a process listens."""
    try:
        found = psutil.Process(pid).net_connections("inet")
    except psutil.NoSuchProcess:
        return set()
    return {one.laddr.ip.removeprefix("::ffff:") for one in found if one.status == psutil.CONN_LISTEN}


def replaying(leader: int) -> list[int]:
    """Ray's processes that are at a replay."""
    return [pid for pid in session(leader) if b"ray::replayed" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_sweep_survives_a_dead_worker_and_an_interruption(folder: Path) -> None:
    """A replay whose process is killed is made again; Ctrl-C leaves nothing running, and the next run does the rest.

    Ray listens on loopback only, and what it says of its processes is kept off standard output.
    """
    command = [*RTK, "sweep", "spec.yaml", "-o", "out", "--executor", "ray", "--jobs", "2"]
    with started(folder, *command) as running:
        until(lambda: replaying(running.pid))
        os.kill(replaying(running.pid)[0], signal.SIGKILL)
        until(lambda: len(list((folder / "out").glob("*.json"))) >= 3)
        addresses = set().union(*map(listens_at, session(running.pid)))
        os.killpg(running.pid, signal.SIGINT)
        told, remarks = running.communicate(timeout=60)
        assert (running.returncode, told, session(running.pid)) == (130, "", [])
    assert addresses == {"127.0.0.1"}
    assert "what is finished is kept" in remarks
    with started(folder, *command) as again:
        told, remarks = again.communicate(timeout=60)
        assert (again.returncode, session(again.pid)) == (0, [])
    assert remarks.endswith("of 9 reports are there already\n")
    assert rtk("sweep", "spec.yaml", "-o", "here", cwd=folder).stdout == told
    assert reports(folder / "out") == reports(folder / "here")


def test_what_a_worker_cannot_do_is_an_error(folder: Path) -> None:
    """What is raised there is raised here; who dies at it time and again is reported, and the cluster ends."""
    (folder / "tasks.py").write_text(TASKS)
    with started(folder, sys.executable, "tasks.py") as running:
        told, remarks = running.communicate(timeout=60)
        assert (running.returncode, session(running.pid)) == (0, []), remarks
    assert "ValueError: on purpose" in told
    assert "Ray could not finish a replay: The worker died unexpectedly" in told
