"""The coordinator's log: whose it is, what is in it after a kill at any byte, and what a full disk leaves behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.resilience.events import Arrived, Event, Lost, Planned, Restarted, Said, encode_event
from rtk.runners.resilience.journal import Journal, LockedError, read_events, take
from rtk.runners.resilience.protocol import Vote
from rtk.schemas.errors import InvalidInputError

from .toy import JOB, PLAN, hello

EVENTS: list[Event] = [
    Arrived(1.0, 0, hello("p")),
    Said(1.5, 0, Vote(0, 3, True, (0, 1), ((0, 0.1), (1, None)))),
    Planned(2.0, 3, '{"a":\n1}', (("0/0", "0/1"),)),
    Lost(2.5, 0, "conn\u00e9ction\nclosed"),
    Restarted(3.0),
]


def opened(path: Path, **changes: Any) -> Journal:
    return take(path, **{"plan": PLAN, "job": JOB, **changes})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with all kinds of events, closed."""
    journal = opened(tmp_path / "log")
    for event in EVENTS:
        journal.append(event)
    journal.close()
    return tmp_path / "log"


def test_events_come_back(log: Path) -> None:
    """What was appended is read again, equal and in order, and more can be appended."""
    journal = opened(log)
    assert list(journal.events()) == EVENTS
    journal.append(EVENTS[0])
    assert list(read_events(log)) == [*EVENTS, EVENTS[0]]
    journal.close()


@given(st.data())
def test_cut_at_any_byte(log: Path, data: st.DataObject) -> None:
    """A log that a kill has cut at any byte holds the events whose lines are whole, and goes on after them."""
    whole = log.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path = log.with_name("cut")
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    kept = EVENTS[: max(0, lines - 1)]
    journal = opened(path)
    assert list(journal.events()) == kept
    journal.append(Restarted(9.0))
    assert list(journal.events()) == [*kept, Restarted(9.0)]
    journal.close()
    assert whole.startswith(path.read_bytes()[: -len(encode_event(Restarted(9.0)))])


def test_one_coordinator_at_a_time(log: Path) -> None:
    """A log that is in use is refused; after its coordinator's end, it can be had."""
    first = opened(log)
    with pytest.raises(LockedError, match="another coordinator has this log"):
        opened(log)
    first.close()
    opened(log).close()


def test_a_forked_helper_does_not_keep_the_log(log: Path) -> None:
    """A process forked off by a coordinator does not hold its log when the coordinator is gone."""
    journal = opened(log)
    started, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(start, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(started, 1)
    journal.close()
    opened(log).close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(started)
    os.close(start)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"plan": "1" * 64}, "plan"), ({"job": {"seed": 2}}, "job/seed"), ({"job": {"seed": 1, "lr": 1.0}}, "job/lr")],
)
def test_another_job(log: Path, changes: dict[str, Any], named: str) -> None:
    """The log of another plan or other settings is refused, with what is different, and left as it is."""
    before = log.read_bytes()
    with pytest.raises(InvalidInputError, match=f"another job: {named} differ") as caught:
        opened(log, **changes)
    assert caught.value.where
    assert caught.value.fix
    assert log.read_bytes() == before
    opened(log).close()


@pytest.mark.parametrize("content", [b"dear diary", b"dear diary\n", b"[]\n", b'{"format":"rtk.plan"}\n', b"\xff\n"])
def test_no_log(tmp_path: Path, content: bytes) -> None:
    """A file that is something else is refused and left as it is."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="no coordinator's log"):
        opened(path)
    assert path.read_bytes() == content


def test_damage(log: Path) -> None:
    """A damaged line within a log is named, with what to do."""
    lines = log.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"kind":"said"}\n'
    log.write_bytes(b"".join(lines))
    journal = opened(log)
    with pytest.raises(InvalidInputError, match="damaged") as caught:
        list(journal.events())
    assert str(caught.value.where).endswith("line 3")
    journal.close()


def test_no_folder(tmp_path: Path) -> None:
    """A log that cannot be created is an error with a place."""
    with pytest.raises(InvalidInputError, match="No such file") as caught:
        opened(tmp_path / "missing" / "log")
    assert "missing" in str(caught.value.where)


def test_full_disk(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that does not fit leaves the log as it was; a log that misses one is refused to coordinators."""
    journal = opened(log)
    before = log.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    with pytest.raises(OSError, match="No space left"):
        journal.append(EVENTS[0])
    monkeypatch.undo()
    assert log.read_bytes() == before
    journal.abandon()
    journal.close()
    with pytest.raises(InvalidInputError, match="misses events"):
        opened(log)


def test_an_append_survives_a_kill(tmp_path: Path) -> None:
    """An event is in the log when `append` has returned, also when the process is killed that very moment."""
    script = (
        "import os, signal, sys; from rtk.runners.resilience.journal import take;"
        "from rtk.runners.resilience.events import Restarted;"
        f"j = take(sys.argv[1], plan={PLAN!r}, job={JOB!r}); [j.append(Restarted(float(i))) for i in range(1000)];"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "log")], check=False)
    journal = opened(tmp_path / "log")
    assert list(journal.events()) == [Restarted(float(i)) for i in range(1000)]
    journal.close()
