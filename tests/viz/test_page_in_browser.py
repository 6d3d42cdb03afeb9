"""Pages in a real browser, offline: what is shown, and what the mouse and the keyboard do."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtk.runners.undisturbed import columns_of_plan
from rtk.schemas.columns import columns_of
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.viz.gantt import gantt_html
from rtk.viz.memory import memory_curves, peak_bytes
from rtk.viz.style import LOOKS, tint

from ..strategies import hand_plan

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        own = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield own
        own.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page of timelines; when the test is over, nothing may have been said on the console nor asked for."""
    said: list[str] = []
    contexts = []

    def opened(*timelines: Any, **wanted: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(gantt_html([(f"t{n}", one) for n, one in enumerate(timelines)], "A page"))
        context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900}, **wanted)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.evaluate("rtk.ready")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [one for one in said if not one.startswith("data:")] == []


def state(page: Any) -> Any:
    page.evaluate("new Promise(requestAnimationFrame)")
    return page.evaluate("rtk.state()")


def point_at(page: Any, worker: str, op: str) -> None:
    x, y = page.evaluate("([worker, op]) => rtk.place(worker, op)", [worker, op])
    page.mouse.move(x, y)


def test_hover_says_all_of_a_bar(open_page: Open, rerouted_plan: Plan) -> None:
    """Pointing at a bar shows operation, worker, layers, start, end, duration and iteration, and its re-routing."""
    page = open_page(columns_of_plan(rerouted_plan))
    point_at(page, "2/1", "F1.2")
    lines = state(page)["tip"].splitlines()
    assert lines[:3] == [
        "F1.2  forward of micro-batch 1.2, re-routed", "worker 2/1 (pipeline 2, stage 1)", "holds layers 1 to 1",
    ]  # fmt: skip
    assert lines[5:] == ["takes 10 ms", "iteration 0"]
    page.mouse.move(1, 1)
    assert state(page)["tip"] == ""


def test_chunks_are_told_apart(open_page: Open) -> None:
    """A V's bars say their virtual stage and its layers, are found by it, and its memory is that of all seats."""
    orders = {"0/0": "0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1",
              "0/1": "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1"}  # fmt: skip
    columns = columns_of_plan(hand_plan(dict(orders), 2, limit_bytes=4.0, placement=((0, 3), (1, 2))))
    page = open_page(columns)
    point_at(page, "0/0", "3I1")
    lines = state(page)["tip"].splitlines()
    assert lines[:3] == [
        "3I1  backward, input gradients of micro-batch 0.1",
        "worker 0/0 (pipeline 0, virtual stage 3)",
        "layers 3 to 3",
    ]
    peaks = {worker: peak_bytes(points) for worker, points in memory_curves(columns).items()}
    assert state(page)["peaks"] == {worker: f"peak {peak:g} B of 4 B" for worker, peak in peaks.items()}
    assert [page.evaluate("text => rtk.find(text)", text) for text in ("3F1", "F1", "1", "2I0", "4F0")] == [
        1,
        4,
        12,
        1,
        0,
    ]
    words = page.locator("#legend").inner_text()
    assert "first chunk: virtual stages 0, 1" in words and "second chunk: virtual stages 3, 2" in words
    page.evaluate("rtk.find('')")
    state(page)
    colours = page.evaluate(
        """(ops) => {
            const canvas = document.getElementById("canvas"), box = canvas.getBoundingClientRect();
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return ops.map((op) => {
                const [x, y] = rtk.place("0/0", op);  // beside the number
                const at = Math.round(y - box.top) * canvas.width + Math.round(x - box.left) + 14;
                return [...pixels.slice(4 * at, 4 * at + 3)];
            });
        }""",
        ["0F0", "3F0"],
    )
    assert [bytes(one) for one in colours] == [bytes.fromhex(tint(LOOKS["F"].colour, chunk, 2)[1:]) for chunk in (0, 1)]


def test_zoom_by_wheel_drag_and_keys(open_page: Open, small: Timeline) -> None:
    """Ctrl and the wheel, dragging, the keys and double-clicking choose the times that are shown."""
    page = open_page(small)
    whole = state(page)
    assert (whole["from_s"], whole["until_s"]) == (0, 9)
    point_at(page, "0/0", "B1")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    zoomed = state(page)
    assert 0 < zoomed["from_s"] < 6 < zoomed["until_s"] < 9
    x, y = page.evaluate("rtk.place('0/0', 'B1')")
    page.mouse.dblclick(x, y)
    assert state(page) == {**whole, "tip": state(page)["tip"]}
    left, _ = page.evaluate("rtk.place('0/0', 'F1')")
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move(x, y)
    page.mouse.up()
    dragged = state(page)
    assert (dragged["from_s"], dragged["until_s"]) == pytest.approx((1.5, 6), abs=0.05)
    page.focus("#view")
    for key, wider in (("+", False), ("-", True), ("0", True)):
        before = state(page)
        page.keyboard.press(key)
        after = state(page)
        assert (after["until_s"] - after["from_s"] > before["until_s"] - before["from_s"]) == wider
    assert (after["from_s"], after["until_s"]) == (0, 9)


def test_alike_pipelines_unfold(open_page: Open, make_plan: Callable[..., Plan]) -> None:
    """Of alike pipelines one is drawn; a click on the line above draws all, and another one folds them again."""
    page = open_page(columns_of_plan(make_plan(pipelines=5, stages=2)))
    folded = state(page)
    assert folded["rows"] == ["0/0", "0/1"]
    assert folded["heads"] == ["▸ pipelines 0 to 4 are alike: pipeline 0 is drawn (click to show all)"]
    box = page.locator("#canvas").bounding_box()
    page.mouse.click(box["x"] + 200, box["y"] + 45)
    assert len(state(page)["rows"]) == 10
    page.click("#fold")
    assert state(page)["rows"] == ["0/0", "0/1"]
    page.fill("#rows", "3-4/1")
    assert state(page)["rows"] == ["3/1"]


def test_search_highlights_and_zooms(open_page: Open, make_plan: Callable[..., Plan]) -> None:
    """A micro-batch is found in all rows, of folded pipelines in its own; Enter zooms to it, a wrong word is said."""
    page = open_page(columns_of_plan(make_plan(pipelines=3, stages=2)))
    page.fill("#search", "2.1")
    found = state(page)
    assert found["found"] == 4 and found["rows"] == ["2/0", "2/1"]
    page.press("#search", "Enter")
    assert state(page)["until_s"] - state(page)["from_s"] < found["until_s"] * 0.9
    page.fill("#search", "F1")
    assert state(page)["found"] == 2
    page.fill("#search", "what")
    assert "write a micro-batch" in page.inner_text("#found")


def test_the_legend_hides_a_kind(open_page: Open, small: Timeline) -> None:
    """A click on the legend hides a kind, whose bars are then not found under the mouse, and shows it again."""
    page = open_page(small)
    page.click("#legend button:has-text('forward')")
    assert state(page)["hidden"] == ["F"]
    point_at(page, "0/0", "F0")
    assert state(page)["tip"].startswith("idle")
    page.click("#legend button:has-text('forward')")
    point_at(page, "0/0", "F0")
    assert state(page)["tip"].startswith("F0  forward")


def pixel(page: Any, worker: str, op: str) -> list[int]:
    x, y = page.evaluate("([worker, op]) => rtk.place(worker, op)", [worker, op])
    page.evaluate("new Promise(requestAnimationFrame)")
    found: list[int] = page.evaluate(
        """([x, y]) => { const canvas = document.getElementById('canvas'), box = canvas.getBoundingClientRect();
        return [...canvas.getContext('2d').getImageData(x - box.left, y - box.top - 8, 1, 1).data]; }""",
        [x, y],
    )
    return found


def test_colours_light_and_dark(open_page: Open, small: Timeline) -> None:
    """Bars have their kind's colour; the page follows the system's light or dark, and the button changes it."""
    page = open_page(small, color_scheme="dark")
    assert state(page)["theme"] == "dark"
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 23, 29)"
    assert pixel(page, "0/0", "F0")[:3] == [0x56, 0xB4, 0xE9]
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert pixel(open_page(small, color_scheme="light"), "0/0", "F0")[:3] == [0x56, 0xB4, 0xE9]


def test_thin_bars_are_shares(open_page: Open) -> None:
    """Where bars are thinner than a pixel a column is shared out by time: here half forward, a quarter idle."""
    spans = [
        Span("0/0", f"{kind}{n}", 4.0 * n + start, 4.0 * n + end)
        for n in range(20_000)
        for kind, start, end in (("F", 0, 2), ("B", 2, 3))
    ]
    page = open_page(columns_of(Timeline("measured", tuple(spans))))
    colours = page.evaluate(
        """() => { const box = document.getElementById('canvas'), pen = box.getContext('2d');
        const [x, y] = rtk.place('0/0', 'F9000'), top = box.getBoundingClientRect().top;
        return [...pen.getImageData(Math.round(x), Math.round(y - top - 10), 1, 20).data]; }"""
    )
    column = [tuple(colours[n : n + 3]) for n in range(0, len(colours), 4)]
    assert column.count((0x56, 0xB4, 0xE9)) == pytest.approx(10, abs=2)
    assert column.count((0xE8, 0x74, 0x3B)) == pytest.approx(5, abs=2)
    assert state(page)["operations"] == 40_000


def test_memory_failures_and_overlays(open_page: Open, make_plan: Callable[..., Plan], rerouted: Timeline) -> None:
    """Peaks are those of `memory_curves`; gaps and marks say what happened; timelines lie over each other."""
    page = open_page(columns_of(rerouted))
    peaks = {worker: peak_bytes(points) for worker, points in memory_curves(rerouted).items()}
    shown = state(page)["peaks"]
    assert shown.keys() == peaks.keys()
    for worker, peak in peaks.items():
        size, unit = shown[worker].split()[1:3]
        assert float(size) * {"B": 1, "KiB": 1024}[unit] == pytest.approx(peak, rel=1e-3)
    failed = Timeline(
        "measured",
        (Span("0/0", "F0", 0, 1), Span("0/0", "F0", 6, 8, 1), Span("1/0", "F0", 0, 1), Span("1/0", "F0", 3, 5, 1)),
        (WorkerMemory("0/0", 10.0),),
        (Event(2, "failure", "0/0", "connection closed"),),
    )
    page = open_page(failed)
    _, y = page.evaluate("rtk.place('0/0', 'F0')")
    right, _ = page.evaluate("rtk.place('1/0', 'F0', 1)")
    page.mouse.move(right, y)
    assert state(page)["tip"] == "worker 0/0 failed at 2 s, back at 6 s"
    page = open_page(columns_of_plan(make_plan(1, 2)), columns_of(rerouted))
    assert state(page)["rows"][:3] == ["0/0 t0", "0/0 t1", "0/1 t0"]


def test_printing_draws_all_rows(open_page: Open, make_plan: Callable[..., Plan]) -> None:
    """On paper the page is light, has no tools, and its canvas holds all rows."""
    page = open_page(columns_of_plan(make_plan(1, 40)), color_scheme="dark")
    height = "document.getElementById('canvas').height"
    before = page.evaluate(height)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(height) > before and not page.is_visible("#tools")
    assert state(page)["theme"] == "light"
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert state(page)["theme"] == "dark" and page.evaluate(height) == before
