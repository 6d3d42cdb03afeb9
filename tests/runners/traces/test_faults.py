"""Lists of hardware faults, and arrays read piece by piece."""

import json
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.traces import files
from rtk.runners.traces.files import Source
from rtk.runners.traces.formats import SLOW_FAULTS, faults, whole_cluster
from rtk.runners.traces.read import TraceOptions, read_moments
from rtk.schemas.errors import InvalidInputError

from .told_in import at, events, source

DAY_S = 86_400


def fault(node: str, days: float, begins: bool, what: str = "GPU Lost") -> dict[str, Any]:
    """One entry of such a list."""
    kind = "fault_start" if begins else "fault_end"
    return {"node_id": node, "event_time": days, "event_type": kind, "fault_type": {"Level": "x", "Desc": what}}


def _events(entries: list[Any], slow: dict[str, float] | None = None) -> list[Any]:
    return events(partial(faults, slow=slow or {}), json.dumps(entries))


class _Drops(BytesIO):
    """A file that comes in drops."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(7)


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9) | st.integers() | st.booleans()), max_size=9),
    st.sampled_from([None, 1]),
)
def test_an_array_comes_item_by_item(items: list[Any], indent: int | None) -> None:
    """However the file is cut into pieces and laid out, its items are those of the array, each with its place."""
    data = json.dumps(items, indent=indent, ensure_ascii=False).encode()
    found = list(Source("f", _Drops(data)).items())
    assert found == [(f"f, /{index}", item) for index, item in enumerate(items)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[{"a": 1}', "cut short"),
        ('[{"a": ', "not valid JSON"),
        ('[{"a": 1} {"a": 1}]', "a comma is missing"),
        ("[{}] []", "something follows"),
        ('[{"a": 1, "a": 2}]', "stands twice"),
        ("[{},]", "not valid JSON"),
    ],
)
def test_an_array_that_is_none_is_refused(text: str, what: str) -> None:
    """Each mistake is one error."""
    with pytest.raises(InvalidInputError, match=what):
        list(source(text).items())


def test_an_endless_item_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never ends is given up, not held."""
    monkeypatch.setattr(files, "LONGEST_BYTES", 100)
    with pytest.raises(InvalidInputError, match="one value is larger than"):
        list(Source("f", BytesIO(b"[\n" + b'{"a": "' + b"x" * 10**6)).items())


def test_a_fault_takes_its_node_down_until_its_end() -> None:
    """Days become seconds; faults of a node that overlap are one; what a node can live with makes it slow if asked."""
    hot = "GPU Temperature High"
    entries = [fault("a", 1, True), fault("a", 2, True, hot), fault("a", 3, False), fault("a", 4, False, hot)]
    assert _events(entries) == [at(DAY_S, "fail", "a"), at(4 * DAY_S, "join", "a")]
    assert _events(entries, SLOW_FAULTS) == [
        at(DAY_S, "fail", "a"),
        at(3 * DAY_S, "join", "a"),
        at(3 * DAY_S, "slow_compute", "a", factor=1.3),
        at(4 * DAY_S, "recover", "a"),
    ]


@given(st.sets(st.text("abc", min_size=1), max_size=9), st.integers(0, 5), st.integers(0, 9))
def test_healthy_nodes_are_there_too(struck: set[str], healthy: int, seed: int) -> None:
    """The cluster has its size, every node with faults, and others with names of their own; in an order by the seed."""
    names = whole_cluster(tuple(sorted(struck)), len(struck) + healthy, seed, "f")
    assert len(set(names)) == len(names) == len(struck) + healthy
    assert set(names) - struck == {f"node{number}" for number in range(1, healthy + 1)}
    assert names == whole_cluster(tuple(sorted(struck)), len(struck) + healthy, seed, "f")


@pytest.mark.parametrize(("nodes", "what"), [(None, "not how many there are"), (1, "names 2 nodes, not 1")])
def test_the_clusters_size_must_be_given(tmp_path: Path, nodes: int | None, what: str) -> None:
    """Nobody guesses how many healthy nodes there are."""
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([fault("a", 1, True), fault("b", 1, True)]))
    with pytest.raises(InvalidInputError, match=what) as caught:
        list(read_moments(str(path), TraceOptions(nodes=nodes)))
    assert "--nodes 400" in (caught.value.fix or "")


def _wrong() -> Iterator[tuple[Any, str]]:
    good = fault("a", 1, True)
    for key in good:
        yield {name: value for name, value in good.items() if name != key}, "this is no fault"
    yield {**good, "event_type": "fault"}, "this is no fault"
    yield {**good, "event_time": -1}, "no time"
    yield {**good, "event_time": float("nan")}, "no time"
    yield {**good, "event_time": "1"}, "this is no fault"
    yield fault("a", 1, False), "ends at a, but never began"
    yield [], "this is no fault"


@pytest.mark.parametrize(("entry", "what"), list(_wrong()))
def test_an_entry_that_is_no_fault_is_refused(entry: Any, what: str) -> None:
    """Each mistake is an error with the entry's place."""
    with pytest.raises(InvalidInputError, match=what) as caught:
        _events([fault("z", 1, True), entry])
    assert caught.value.where == "a.csv, /1"
