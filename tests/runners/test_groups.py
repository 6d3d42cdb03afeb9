"""Process groups: what becomes of them as the interpreter ends."""

import subprocess
import sys

# Two ranks in one process, each with a thread for messages and one for sums.
SCRIPT = """
import atexit
from pathlib import Path

def threads():
    return sum("pt_gloo_runloop" in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir())

atexit.register(lambda: print("at the end:", threads()))  # the first to be registered is the last to run

import threading
import time
from torch.distributed import HashStore
from rtk.runners.torch.gloo import GlooTransport
from rtk.runners.torch.iteration import meet

store, ranks = HashStore(), [None, None]

def work(rank):
    ranks[rank] = GlooTransport(store, rank, 2, [(0, 1)])
    meet(ranks[rank], (0, 1))

workers = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
ranks.append(ranks)  # only the interpreter's last collection would find it
while threads() < 4:  # they take their names in their own time
    time.sleep(0.01)
print("before:", threads())
"""


def test_threads_that_sum_end_before_the_interpreter_does() -> None:
    """Else one that lets go of a tensor meanwhile aborts the process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "before: 4\nat the end: 2\n", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
