"""Still pictures of every kind that the tests look at: what words stand where, and what lies in them."""

import random
from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Literal
from xml.etree import ElementTree

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from rtk.schemas.detection import FailSlow, FileFindings, Scope
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.viz.detection import Panel, Thinned, detection_picture
from rtk.viz.painter import Boxes, Picture, painting
from rtk.viz.replay import replay_picture
from rtk.viz.timeline import timelines_picture

from .replays import replayed

SVG = "{http://www.w3.org/2000/svg}"
LONG = "a name that is much longer than anybody should give to a file " * 5

EVENT = FailSlow(100, 102, 111, 160, 1.52, "communication", Scope("link", ("1-2",)), ("a < b", "60 of 60 samples"))
FOUND = FileFindings("a & b.log", "megatron", 300, 0.5, (EVENT, FailSlow(200, None, 250, None, 2.5)))


def panel(found: FileFindings = FOUND) -> Panel:
    """Findings with a series that fits them, thinned."""
    thinned, noise = Thinned(), random.Random(0)
    for i in range(found.samples):
        slow = next((event.severity for event in found.events if event.onset <= i < (event.relief or 10**9)), 1.0)
        thinned.note((found.usual_s or 1.0) * slow * noise.gauss(1, 0.01) * (50 if i == 33 else 1))
    return Panel(found, thinned.points())


def eventful(source: Literal["simulated", "measured"] = "simulated") -> Timeline:
    """Four workers, three iterations, and more events at close times than there is room for words."""
    spans = tuple(
        Span(f"{k}/{i}", f"{kind}{j}", 10 * n + 2 * j + i + start, 10 * n + 2 * j + i + start + 0.9, n)
        for k in range(2)
        for i in range(2)
        for n in range(3)
        for j in range(2)
        for kind, start in (("F", 0.0), ("B", 5.0))
        if (k, i, n) != (1, 1, 1)
    )
    slow = tuple(Event(11.0 + 0.2 * n, "slow_compute", f"{n % 2}/0", f"factor {n} and more") for n in range(7))
    sizes = tuple(WorkerMemory(f"{k}/{i}", 3e9, 0.0, 8e10) for k in range(2) for i in range(2))
    return Timeline(
        source,
        spans,
        sizes,
        (
            Event(9.5, "failure", "1/1", "connection closed"),
            *slow,
            Event(25.0, "join", "1/1", "state from 0/1, and words beyond"),
        ),
    )


KINDS: dict[str, Callable[[], Picture]] = {
    "timeline": lambda: timelines_picture([("simulated", eventful())], "a < b & c"),
    "timelines": lambda: timelines_picture([(LONG, eventful()), ("measured", eventful("measured"))], LONG),
    "no timeline": lambda: timelines_picture([("simulated", Timeline("simulated", ()))], "nothing"),
    "findings": lambda: detection_picture([panel(), panel(FileFindings(LONG, "csv", 0, None, ()))], LONG),
    "replay": lambda: replay_picture([("r", replayed({f"policy {n}": 60.0 * n for n in range(6)}))]),
    "replays": lambda: replay_picture([(LONG, replayed({LONG: 10.0})), ("s", replayed({"b": 900.0}))], LONG),
}


@cache
def drawn(kind: str) -> Picture:
    """A picture of a kind, drawn once for all tests."""
    return KINDS[kind]()


def texts(picture: Picture) -> list[str]:
    """The words of a picture, as its SVG has them."""
    return [node.text or "" for node in ElementTree.fromstring(picture.svg()).iter(f"{SVG}text")]


def tips(picture: Picture) -> list[str]:
    """What is said to those who point at things."""
    root = ElementTree.fromstring(picture.svg())
    return [node.text or "" for group in root.iter(f"{SVG}g") for node in group.findall(f"{SVG}title")]


def boxes(picture: Picture) -> list[Bbox]:
    """Where boxes lie, in pixels from below."""
    return [place for artist in picture.figure.findobj(Boxes) for place in artist.places()]


def placed_words(picture: Picture) -> list[tuple[str, Bbox]]:
    """Words that are seen, and where they stand, in pixels from below."""
    with painting():
        canvas = FigureCanvasAgg(picture.figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
        found = [
            (one.get_text(), one.get_window_extent(renderer))
            for one in picture.figure.findobj(Text)
            if isinstance(one, Text) and one.get_text().strip() and one.get_visible()
        ]
    return found + [label for artist in picture.figure.findobj(Boxes) for label in artist.written()]


def overlapping(words: list[tuple[str, Bbox]]) -> list[tuple[str, str]]:
    """Words that stand on each other, by more than the pixel that letters may lean over."""
    ordered = sorted(words, key=lambda one: one[1].y0)
    return [
        (a, b)
        for (a, one), (b, other) in combinations(ordered, 2)
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 2.5
    ]
