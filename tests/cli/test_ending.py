"""How a process that trains ends: with its own exit code, whatever its threads are doing."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time
import torch
from rtk.cli.console import SETTINGS, ends_itself

def compute():
    data = torch.ones(200, 200)
    while True:
        data @ data

@ends_itself()
def main():
    SETTINGS.trains = True
    for _ in range(4):
        threading.Thread(target=compute, daemon=True).start()
    time.sleep(0.1)
    print("the last word")
    {way_out}

main()
"""


@pytest.mark.parametrize(
    ("way_out", "code", "error"),
    [("sys.exit(5)", 5, ""), ("raise KeyError('lost')", 1, "KeyError: 'lost'"), ("raise KeyboardInterrupt", 1, "Key")],
)
def test_threads_inside_torch_abort_nobody(way_out: str, code: int, error: str) -> None:
    """The interpreter's own end would kill them, and the process with them: 134. All that was said is still read."""
    script = SCRIPT.format(way_out=way_out)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (code, "the last word\n"), done.stderr
    assert error in done.stderr
