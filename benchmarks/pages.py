"""Pages of large plans: `python benchmarks/pages.py [-o FILE] [--shots FOLDER] [--without-trace]`.

How long `rtk viz PLAN -o page.html` takes, how large the page is, when chromium (offline, without a GPU) has drawn it,
and how many frames a second it draws while somebody zooms; and what a Chrome trace of a million operations takes.
Needs playwright and chromium. Wall-clock seconds; medians of three, of the trace one run.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.documents import write_document
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

RTK = Path(sys.executable).with_name("rtk")
RUNS = 3
SHAPES: dict[str, tuple[int, int, int, Schedule]] = {
    "small": (2, 2, 8, "1f1b"),
    "middle": (16, 8, 64, "zero-bubble"),
    "large": (64, 32, 256, "1f1b"),
}
LARGE, UNLIKE = "large", "large, all pipelines unlike"
LAUNCHER = """
import resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], check=True)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
# Zooms from the whole into a hundredth of it and out again for two seconds, once a frame.
ZOOMING = """async () => {
  const whole = rtk.state().until_s, times = [];
  const begin = performance.now();
  for (let now = begin, before = begin; now - begin < 2000; before = now) {
    now = await new Promise(requestAnimationFrame);
    const share = 0.505 + 0.495 * Math.cos((now - begin) / 400);
    rtk.zoom(0.3 * whole * (1 - share), 0.3 * whole + 0.7 * whole * share);
    times.push(now - before);
  }
  return times;
}"""
# What is photographed of the large page: what it does before, and what it shows.
SHOTS = {
    "whole": "document.getElementById('fit').click()",
    "worker": "document.getElementById('fit').click(), rtk.select('5/20'), rtk.zoom(0.2 * rtk.state().until_s, "
    "0.27 * rtk.state().until_s)",
    "microbatch": "rtk.select(''), rtk.all(), rtk.find('3.100')",
}


def plans() -> Iterator[tuple[str, Plan]]:
    """The plans that are drawn, by name."""
    layers = tuple(
        Layer((LayerCost(0.025, 0.03, 0.02, optimizer_s=0.01),), activation_bytes=3e9, weight_stash_bytes=2e9)
        for _ in range(64)
    )
    for name, (pp, dp, microbatches, schedule) in SHAPES.items():
        plan = plan_pipeline(Profile(layers, {"name": "64 equal layers"}), Shape(pp, dp, microbatches), schedule)
        yield name, plan
        if name == LARGE:
            slow = tuple(replace(worker, slowdown=1 + worker.pipeline / 1000) for worker in plan.workers)
            yield UNLIKE, replace(plan, prediction=None, workers=slow)


def measured(*command: str) -> tuple[float, int]:
    """Wall-clock seconds of a command, and the most memory that it held, in bytes."""
    # From a process of its own: a child begins with the memory of the process that starts it.
    found = subprocess.run([sys.executable, "-c", LAUNCHER, *command], check=True, capture_output=True, text=True)
    seconds, size = found.stdout.split()
    return float(seconds), int(size)


def written(plan: str, picture: Path, runs: int) -> dict[str, Any]:
    """What drawing a plan into a file takes."""
    taken = [measured(str(RTK), "viz", plan, "-o", str(picture)) for _ in range(runs)]
    return {
        "written_s": median(seconds for seconds, _ in taken),
        "peak_memory_bytes": max(size for _, size in taken),
        "size_bytes": picture.stat().st_size,
    }


def opened(browser: Any, page_file: Path, shots: Path | None) -> dict[str, Any]:
    """What opening a page in a browser takes, and how fluently it zooms."""
    usable_s, frames_ms, messages = [], [], []
    for run in range(RUNS):
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.on("console", lambda message: messages.append(message.text))
        start_s = time.perf_counter()
        page.goto(page_file.as_uri())
        page.evaluate("rtk.ready.then(() => new Promise(requestAnimationFrame))")
        usable_s.append(time.perf_counter() - start_s)
        frames_ms += page.evaluate(ZOOMING)[2:]
        if shots is not None and run == 0:
            page.evaluate("rtk.all()")
            photograph(page, shots, page_file.stem)
        operations = page.evaluate("rtk.state().operations")
        page.close()
    return {
        "usable_s": median(usable_s),
        "frames_per_s": 1000 * len(frames_ms) / sum(frames_ms),
        "slowest_frame_ms": max(frames_ms),
        "stored_operations": operations,
        "console_messages": len(messages),
    }


def photograph(page: Any, folder: Path, name: str) -> None:
    """Screenshots of a page: as it opens, and of a large one the whole, a worker and a micro-batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for shot, before in {"open": "0", **(SHOTS if name.startswith(LARGE) else {})}.items():
        page.evaluate(f"({before}, new Promise(requestAnimationFrame))")
        page.wait_for_timeout(100)
        page.screenshot(path=str(folder / f"{name}-{shot}.png"))


def main() -> None:
    """Make the plans, draw and open them, and write the result."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--without-trace", action="store_true")
    asked = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, plan in plans():
            stem = name.replace(", ", "-").replace(" ", "-")
            plan_file, page_file = str(Path(folder, f"{stem}.json")), Path(folder, f"{stem}.html")
            write_document(plan_file, plan)
            operations = sum((worker.order or "").count(" ") + 1 for worker in plan.workers)
            page = {**written(plan_file, page_file, RUNS), **opened(browser, page_file, asked.shots)}
            result[name] = {"operations": operations, "page": page}
            if name == LARGE and not asked.without_trace:
                result[name]["trace"] = written(plan_file, Path(folder, "trace.json.gz"), 1)
        browser.close()
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
