"""The one painter of still pictures: laws that hold for pictures of every kind."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.viz.painter import PNG_SCALE, WIDTH, Sheet, painting, stepped
from rtk.viz.style import LOOKS, STILL_ENDINGS, apart, in_lanes, measured, shortened, wrapped

from .pictures import KINDS, boxes, drawn, overlapping, placed_words, texts

STARTS = {".svg": b"<svg ", ".png": b"\x89PNG", ".pdf": b"%PDF"}
words = st.text(st.characters(exclude_categories=["C"]), max_size=40)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_lies_outside_the_image(kind: str) -> None:
    """Words and boxes lie within the picture, and no box is wider than nothing to the left."""
    picture = drawn(kind)
    width, height = picture.size
    assert width == WIDTH
    for name, place in [*placed_words(picture), *(("box", place) for place in boxes(picture))]:
        assert -0.5 <= place.x0 <= place.x1 <= width + 0.5, name
        assert -0.5 <= place.y0 <= place.y1 <= height + 0.5, name


@pytest.mark.parametrize("kind", KINDS)
def test_no_words_stand_on_others(kind: str) -> None:
    """However long names are and however close events: words that are drawn can be read."""
    assert overlapping(placed_words(drawn(kind))) == []


@pytest.mark.parametrize(
    ("kind", "ending"), [*((kind, ".svg") for kind in KINDS), *(("timeline", ending) for ending in STILL_ENDINGS[1:])]
)
def test_the_same_twice(kind: str, ending: str) -> None:
    """Drawn twice, the bytes are the same, and of the kind that the ending names."""
    data = drawn(kind).data(ending)
    assert data.startswith(STARTS[ending])
    assert KINDS[kind]().data(ending) == data


def test_the_same_in_other_processes() -> None:
    """Neither the time nor a process's own seed of hashes is in the bytes, and a user's settings change nothing."""
    script = (
        "import hashlib, matplotlib; matplotlib.rcParams['font.size'] = 30\n"
        "from rtk.schemas.timeline import Span, Timeline\n"
        "from rtk.viz.timeline import timelines_picture\n"
        "p = timelines_picture([('s', Timeline('s', (Span('0/0', 'F0', 0, 1), Span('1/0', 'F0.1', 1, 2))))], 't')\n"
        "print(*(hashlib.sha256(p.data(e)).hexdigest() for e in ('.svg', '.png', '.pdf')))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
        for environment in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "SOURCE_DATE_EPOCH": "7"})
    ]
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.parametrize("kind", KINDS)
def test_an_svg_is_well_formed_and_says_its_title(kind: str) -> None:
    """The element has a size in pixels, its title, and words as words; nothing in it has the same name."""
    picture = drawn(kind)
    root = ElementTree.fromstring(picture.svg())
    assert (float(root.get("width", "")), float(root.get("height", ""))) == pytest.approx(picture.size, abs=0.01)
    assert root.findtext("{http://www.w3.org/2000/svg}title") == picture.title
    assert texts(picture)
    names = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(names) == len(set(names))


def test_a_png_has_two_pixels_a_pixel() -> None:
    """Its header says so."""
    picture = drawn("timeline")
    data = picture.data(".png")
    size = tuple(int.from_bytes(data[start : start + 4]) for start in (16, 20))
    assert size == tuple(int(PNG_SCALE * length) for length in picture.size)


def test_colours_of_operations_tell_apart() -> None:
    """No two kinds of operations look alike, neither in colour nor, next to each other, in grey."""
    colours = [tuple(bytes.fromhex(look.colour[1:])) for look in LOOKS.values()]
    for one, other in combinations(colours, 2):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 60


@given(words, st.floats(20, 400))
@settings(max_examples=40, deadline=None)
def test_what_is_shortened_or_wrapped_fits(said: str, length: float) -> None:
    """Shortened words are no longer than they may be, or as they were; wrapped ones are all there where each fits."""
    with painting():
        short, lines = shortened(said, length), wrapped(said, length)
        assert short == said or measured(short) <= length
        assert all(measured(line) <= length for line in lines)
        if all(measured(word) <= length for word in said.split()):
            assert " ".join(lines).split() == said.split()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).map(sorted))
@settings(max_examples=25, deadline=None)
def test_labels_keep_apart(wanted: Sequence[float]) -> None:
    """Labels are in the order of their lines, a line apart, and none hangs over as long as there is room."""
    places = apart(wanted, 15, 200)
    assert all(right - left >= 15 - 1e-9 for left, right in pairwise(places))
    assert places[-1] <= 200
    if len(wanted) == 1:
        assert places == list(wanted)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=20), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_lanes_hold_what_does_not_touch(wanted: list[tuple[float, float]], most: int) -> None:
    """What is in one lane does not overlap, and what is in none fits into none."""
    stretches = [(start, start + length) for start, length in wanted]
    lanes = in_lanes(stretches, most)
    for place, (one, lane) in enumerate(zip(stretches, lanes, strict=True)):
        before = list(zip(stretches[:place], lanes[:place], strict=True))
        taken = {other for (start, end), other in before if start < one[1] and one[0] < end}
        assert lane not in taken if lane is not None else set(range(most)) <= taken


@given(st.lists(st.floats(-1, 3), min_size=1, max_size=30))
@settings(max_examples=25, deadline=None)
def test_steps_stay_steps(values: list[float]) -> None:
    """A step line turns at right angles, stays within its panel, and spans it."""
    with painting():
        plot = Sheet("t").panel(100, 0, 100, (0, 30), (0, 2))
    xs, ys = stepped(plot, [*range(len(values)), 30.0], values, 100)
    assert (xs[0], xs[-1]) == (0, 30) and all(0 <= y <= 2 for y in ys)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(zip(xs, ys, strict=True)))
