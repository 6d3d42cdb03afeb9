"""How the ranks of a torchrun job learn where their coordinator is: through the store on which torchrun has them meet.

A process of its own, for its supervisor loads no torch. Rank 0 tells; what it tells is taken back as soon as all have
heard it, for the store asks nobody who he is: until then the job is as open as any under torchrun is all the time. A
secret that all ranks have already, in RTK_SECRET, never travels.
"""

import json
import os
import sys
import time
from datetime import timedelta

from ..processes import die_with_launcher
from ..resilience.supervisor import GIVEN
from ..training import COORDINATOR, SECRET
from .runner import environment_store

TOLD = "rtk/coordinator"
WITHIN = timedelta(minutes=10)  # ranks of other machines may come later


def main(arguments: list[str]) -> None:
    """Tell, or hear, where the coordinator is, and print it as JSON.

    Args:
        arguments: none.

    Raises:
        SystemExit: with 5, the store or a rank does not answer.
    """
    del arguments
    die_with_launcher()
    try:
        told = _tell() if os.environ["RANK"] == "0" else _hear()
    except RuntimeError as error:  # torch's, of a store that is gone, or of a time that is over
        print(f"error: torchrun's store does not answer: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(5)
    print(json.dumps(told), flush=True)


def _tell() -> dict[str, str]:
    own = {COORDINATOR: os.environ[COORDINATOR], SECRET: os.environ[SECRET]}
    travels = {name: value for name, value in own.items() if name == COORDINATOR or GIVEN not in os.environ}
    store = environment_store()
    store.set(TOLD, json.dumps(travels))
    others = [f"{TOLD}/{rank}" for rank in range(1, int(os.environ["WORLD_SIZE"]))]
    deadline_s = time.monotonic() + WITHIN.total_seconds()
    while others and not store.check(others):
        if time.monotonic() > deadline_s:
            raise RuntimeError("not all ranks are there")
        time.sleep(0.05)
    store.delete_key(TOLD)
    return own


def _hear() -> dict[str, str]:
    store = environment_store()
    store.wait([TOLD], WITHIN)
    heard: dict[str, str] = json.loads(store.get(TOLD))
    store.set(f"{TOLD}/{os.environ['RANK']}", "")
    given = {SECRET: os.environ[SECRET]} if SECRET in os.environ else {}
    return {**given, **heard}


if __name__ == "__main__":
    main(sys.argv[1:])
