"""How a process that trains ends: with its own exit code, whatever its threads are doing."""

from pathlib import Path

from .shell import endings

LOAD = """
import threading, time
import torch
from rtk.cli.console import SETTINGS, ends_itself

def compute():
    data = torch.ones(200, 200)
    while True:
        data @ data

@ends_itself()
def main(way_out):
    SETTINGS.trains = True
    for _ in range(4):
        threading.Thread(target=compute, daemon=True).start()
    time.sleep(0.1)
    print("the last word")
    exec(way_out)
"""
WAYS_OUT = {  # the exit code, and what is said
    "sys.exit(5)": (5, ""),
    "raise KeyError('lost')": (1, "KeyError: 'lost'"),
    "raise KeyboardInterrupt": (1, "Key"),
}


def test_threads_inside_torch_abort_nobody(tmp_path: Path) -> None:
    """The interpreter's own end would kill them, and the process with them: 134. All that was said is still read."""
    with (tmp_path / "said").open("wb") as said:
        found = endings(LOAD, [f"main({way_out!r})" for way_out in WAYS_OUT], said.fileno(), tmp_path)
    for (code, error), (expected, words) in zip(found, WAYS_OUT.values(), strict=True):
        assert code == expected, error
        assert words in error
    assert (tmp_path / "said").read_text() == "the last word\n" * len(WAYS_OUT)
