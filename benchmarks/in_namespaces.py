"""A job of real processes whose links are real sockets, slowed and broken while it runs (benchmarks/slow_network).

`python -m rtk.benchmarks.in_namespaces PLAN --model gpt-tiny --iterations 40 --trace links.jsonl -o metrics.jsonl`

The coordinator and every worker have a network namespace each. The trace says what becomes of links when an iteration
has been committed, or so many seconds after the first one: `slow_link` with `delay_s` (both ways), `fail` (its packets
are lost and its connections break, though both workers live) and `recover`. Needs root.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from rtk.benchmarks.slow_network.network import SlowNetwork
from rtk.schemas.documents import canonical, read_document
from rtk.schemas.plan import Plan
from rtk.schemas.trace import Trace, TraceEvent, read_trace

COORDINATOR, PORT = "coordinator", 29400
RTK = (sys.executable, "-m", "rtk.cli.main")


def run_job(
    plan: Plan,
    model: str,
    iterations: int,
    trace: Trace = Trace(()),  # noqa: B008
    leading: Sequence[str] = (),
    working: Sequence[str] = (),
    networks: Sequence[str] = ("10.88.0",),
    errors: IO[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run a plan's job, and give what the coordinator says, with `at_s` since its start, as it says it.

    Args:
        plan: what is executed, by one process for each live worker.
        model: as for `rtk run --model`.
        iterations: how many.
        trace: events of links.
        leading: more options of `rtk coordinate`.
        working: more options of `rtk run`.
        networks: as for SlowNetwork.
        errors: where the standard errors go; nowhere by default.
    """
    names = [worker.name for worker in plan.live_workers()]
    with tempfile.TemporaryDirectory() as folder, SlowNetwork([COORDINATOR, *names], networks) as network:
        file, secret = Path(folder) / "plan.json", Path(folder) / "secret"
        file.write_bytes(canonical(plan))
        secret.touch(0o600)
        secret.write_bytes(b"a secret for this job only")
        address, shared = f"{network.address(COORDINATOR)}:{PORT}", [str(file), "--secret-file", str(secret)]
        options: dict[str, Any] = {"stderr": errors or subprocess.DEVNULL, "text": True}
        lead = [*RTK, "coordinate", *shared, "--listen", address, "--iterations", str(iterations), "--json", *leading]
        coordinator = network.run(COORDINATOR, lead, stdout=subprocess.PIPE, **options)
        for name in names:
            work = [*RTK, "run", *shared, "--model", model, "--coordinator", address, "--worker", name, *working]
            worker = network.run(name, work, stdout=subprocess.DEVNULL, **options)
            threading.Thread(target=_watch, args=(worker, coordinator), daemon=True).start()
        assert coordinator.stdout is not None
        yield from _told(coordinator.stdout, network, trace)


def _watch(worker: "subprocess.Popen[str]", coordinator: "subprocess.Popen[str]") -> None:
    """Let nobody wait for a worker that has failed, and that nobody starts again."""
    if worker.wait():
        coordinator.terminate()


def _told(lines: IO[str], network: SlowNetwork, trace: Trace) -> Iterator[dict[str, Any]]:
    """What is said, while links change as the trace wants; seconds count from the first commit on."""
    start_s, first_s, left = time.monotonic(), None, list(trace.events)
    for line in lines:
        said, now_s = json.loads(line), time.monotonic()
        yield said | {"at_s": now_s - start_s}
        if said["event"] == "iteration":
            first_s = first_s or now_s
            while left and _is_due(left[0], said["iteration"], now_s - first_s):
                change(network, left.pop(0))


def _is_due(event: TraceEvent, iteration: int, elapsed_s: float) -> bool:
    return iteration >= event.iteration if event.iteration is not None else elapsed_s >= (event.time_s or 0.0)


def change(network: SlowNetwork, event: TraceEvent) -> None:
    """Let a link become what an event says."""
    assert event.link is not None, "only links can change here"
    one, other = event.link.split("-")
    for source, to in ((one, other), (other, one)):
        network.delay(source, to, (event.delay_s or 0.0) if event.kind == "slow_link" else 0.0)
        network.cut(source, to, event.kind == "fail")
    if event.kind == "fail":
        network.reset(one, other)


def main() -> None:
    """Run one job, and write what it says as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("--model", default="gpt-tiny")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--trace", help="a trace of links, JSON lines or CSV")
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("-o", "--output", type=argparse.FileType("w"), default=sys.stdout)
    options = parser.parse_args()
    trace = read_trace(options.trace) if options.trace else Trace(())
    working = ["--paced"] if options.paced else []
    plan = read_document(options.plan, Plan)
    for said in run_job(plan, options.model, options.iterations, trace, working=working, errors=sys.stderr):
        print(json.dumps(said), file=options.output, flush=True)


if __name__ == "__main__":
    main()
