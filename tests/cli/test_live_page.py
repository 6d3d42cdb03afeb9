"""`rtk run --page`: the page of a running job in a real browser, while one of its workers is killed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rtk as rtk_library
from rtk.runners.live_page import LivePage
from rtk.viz.live import live_html

from .shell import Command, Shell, rtk, rtk_forked, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

KILLED, JOINS, ITERATIONS = 10, 30, 10**6
FAULTS = f"""{{"iteration": {KILLED}, "kind": "fail", "worker": "1/0"}}
{{"iteration": {JOINS}, "kind": "join", "worker": "1/0"}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a plan for two workers, and what happens to one of them."""
    (tmp_path / "faults.jsonl").write_text(FAULTS)
    profile = "profile gpt-tiny --analytic --gpu a100-sxm --microbatch-size 1 --sequence-length 16 -o p.json"
    for asked in (profile, "plan pipeline p.json --schedule 1f1b --pp 1 --dp 2 --microbatches 2 -o plan.json"):
        done = rtk(*asked.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.fixture
def job(folder: Path) -> Iterator[Command]:
    """A running job, one of whose two workers is killed early, and replaced."""
    asked = f"run plan.json --model gpt-tiny --iterations {ITERATIONS} --page 0 --inject faults.jsonl"
    with Shell(folder) as shell:
        yield shell.rtk("job", *asked.split())


def test_a_page_shows_a_death_while_it_happens(job: Command) -> None:
    """Loss and speed are drawn, the dead worker's place is empty, its row says what it cost, and the place is taken
    again; the browser asks for nothing else and complains of nothing; when the job is gone the page says so."""
    url = wait_for(lambda: re.search(r"live page: (http://127\.0\.0\.1:\d+/\?token=\S+)", job.errors), "the address")[1]
    complaints: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda one: complaints.append(one.url) if not one.url.startswith(url.split("?")[0]) else None
        )
        page.goto(url)
        page.wait_for_selector("#happened tr.bad", timeout=60_000)
        failed: Any = page.locator("#happened tr.bad", has_text="worker 1/0 failed")
        playwright.expect(failed.locator("td").last).to_have_text(re.compile(r"\d.* lost"), timeout=30_000)
        playwright.expect(page.locator("#happened")).to_contain_text("worker 1/0 joined", timeout=60_000)
        playwright.expect(page.locator("#grid [data-place='1/0']")).to_have_class("", timeout=30_000)
        assert page.locator("#loss polyline").count() == 1 and page.locator("#speed polyline").count() == 3
        assert page.locator("#drawn rect").count() >= 4  # F and B of two micro-batches
        assert page.locator("#drawn-title").inner_text().startswith("Iteration ")
        assert "gpt-tiny" in page.title() or "gpt-tiny" in page.locator("#title").inner_text()
        assert complaints == []
        job.kill()
        playwright.expect(page.locator("#state")).to_have_text("The job does not answer any more.", timeout=30_000)
        browser.close()


def test_names_are_text_and_ten_thousand_events_are_drawn(folder: Path) -> None:
    """Nothing of a name is taken for HTML, a long iteration is drawn, and who comes in a slow worker's place is not
    slow."""
    evil = "</script><img src=x onerror=document.title='owned'>"
    server = LivePage("0", live_html(rtk_library.read(folder / "plan.json"), evil, None))
    story: list[dict[str, Any]] = [
        {"event": "slow_worker", "worker": "1/0", "factor": 2.0},
        {"event": "failure", "worker": "1/0", "place": "1/0"},
        {"event": "epoch", "workers": {"0/0": "0/0", "1/0": "spare"}, "failed": [], "live_workers": 2},
        {"event": "slow_worker", "worker": "0/0", "factor": 1.5},
    ]
    for number in range(10_000):
        took_s = 7.0 if number == 1234 else 0.1
        server.write({"event": "iteration", "iteration": number, "loss": 2.0, "iteration_time_s": took_s,
                      "live_workers": 2, "unix_time_s": 1.0}, None)  # fmt: skip
    for one in story:
        server.write({**one, "unix_time_s": 1.0}, f"{one['event']} of {evil}")
    server.take("0/0", tuple((evil, 0.0, 1.0, 9_999) for _ in range(130_000)))
    server.take("1/0", (("F0", 0.0, 1.0, 9_999),))
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.url)
        playwright.expect(page.locator("#happened tr")).to_have_count(4, timeout=30_000)
        assert page.locator("#happened tr").first.inner_text().strip().endswith(f"slow_worker of {evil}")
        assert page.locator("#title").inner_text().startswith(f"{evil}: 2 pipelines")
        playwright.expect(page.locator("#grid [data-place='0/0']")).to_have_text(re.compile("0/0 . 1.50"))
        playwright.expect(page.locator("#grid [data-place='1/0']")).to_have_class("")
        playwright.expect(page.locator("#drawn-title")).to_have_text("Iteration 9999: 1.00 s")
        assert page.locator("img").count() == 0 and "owned" not in page.title()
        assert page.locator("#kinds").inner_text() == "F: forward"  # what nobody knows has no legend
        assert page.locator("#marks").inner_text() == "a failure"
        # Of ten thousand iterations as many points of the first as of the last, and the one that took long among them.
        assert page.evaluate("job.losses.map((one) => one[0])") == list(range(0, 10_000, 8))
        assert page.evaluate("Math.max(...job.times.map((one) => one[1]))") == 7.0
        plan, bound = (page.locator("#speed text", has_text=word).bounding_box() for word in ("plan", "bound"))
        assert plan and bound and abs(plan["y"] - bound["y"]) >= 10  # though the lines lie on each other
        server.close()
        browser.close()


def test_an_address_that_is_none_is_refused(folder: Path) -> None:
    """No worker is started."""
    done = rtk_forked("run", "plan.json", "--model", "gpt-tiny", "--page", "here", cwd=folder)
    assert done.returncode == 2 and "'here' is no address" in done.stderr and "at: --page" in done.stderr
    assert "starting" not in done.stdout + done.stderr
