"""SLURM's lists of hosts, against ClusterShell's reading of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.cluster_file import expand, fold
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.fields import MOST_NODES

NAMES = st.from_regex(r"[a-z]{1,2}[-.]?[0-9]{0,3}(-?[a-z][0-9]{0,2})?", fullmatch=True)
# Names that lie close together, so that there is something to fold.
NUMBERED = st.builds(
    lambda head, number, width, tail: f"{head}{number:0{width}d}{tail}",
    st.sampled_from(["n", "node", "rack1-n"]),
    st.integers(0, 120),
    st.integers(1, 3),
    st.sampled_from(["", "-ib"]),
)


@st.composite
def brackets(draw: st.DrawFn) -> str:
    """A list in brackets, with and without leading zeros, in any order."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        first, length, width = draw(st.integers(0, 99)), draw(st.integers(0, 4)), draw(st.sampled_from([1, 3]))
        last = first + length
        parts.append(f"{first:0{width}d}" + (f"-{last:0{width}d}" if length else ""))
    return f"[{','.join(parts)}]"


@given(st.lists(st.one_of(NAMES, NUMBERED), unique=True, min_size=1, max_size=12))
def test_a_folded_list_stands_for_the_same_names_in_the_same_order(names: list[str]) -> None:
    """`expand(fold(x))` is `x`."""
    assert expand(fold(names), "here") == tuple(names)


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1).map(sorted), st.integers(1, 4))
def test_neighbours_are_folded(numbers: list[int], width: int) -> None:
    """Sorted numbered names fold into one pair of brackets, or a few where their width changes."""
    names = [f"node{number:0{width}d}" for number in numbers]
    assert fold(names).count("node") == 1


@given(st.lists(st.tuples(st.sampled_from(["a", "b-"]), brackets(), st.sampled_from(["", "-x", "r"]), st.booleans())))
def test_lists_mean_what_clustershell_reads(parts: list[tuple[str, str, str, bool]]) -> None:
    """Whatever ClusterShell's NodeSet reads is read as the same set of names, unless one of them stands twice."""
    node_sets = pytest.importorskip("ClusterShell.NodeSet")
    text = ",".join(head + ranges + tail + ("[1-2]" if tail and again else "") for head, ranges, tail, again in parts)
    theirs = set(node_sets.NodeSet(text, resolver=node_sets.RESOLVER_NOGROUP))
    try:
        ours = expand(text, "here")
    except InvalidInputError as error:
        assert "twice" in error.what or not text
        return
    assert set(ours) == theirs
    assert len(ours) == len(theirs)


def test_the_order_is_the_list_s() -> None:
    """As it is written, for ranks follow it; of two brackets the last one counts fastest."""
    assert expand("node[4,1-2],head", "here") == ("node4", "node1", "node2", "head")
    assert expand("r[1-2]n[08-09]", "here") == ("r1n08", "r1n09", "r2n08", "r2n09")
    assert fold(["node099", "node100", "node1", "head"]) == "node[099-100,1],head"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no list of nodes"),
        ("node[001-016", "no list of nodes"),
        ("node]1[", "no list of nodes"),
        ("a,,b", "no list of nodes"),
        ("a b", "no list of nodes"),
        ("@all", "no list of nodes"),
        ("node[1-5]!node3", "no list of nodes"),
        ("node[3-1]", "'3-1' in [3-1] is no range"),
        ("node[a-b]", "no range"),
        ("node[]", "no range"),
        ("node[001-3]", "no range"),
        ("node[1-010]", "no range"),
        ("node[1-3],node2", "node2 is named twice"),
        ("node[1-999999999999]", f"more than {MOST_NODES}"),
        ("a[1-1000]b[1-1000]c[1-1000]", f"more than {MOST_NODES}"),
    ],
)
def test_what_is_no_list(text: str, says: str) -> None:
    """Each with its place and what to write; none takes long or fills the memory."""
    with pytest.raises(InvalidInputError) as caught:
        expand(text, "c.yaml, line 1, /nodes")
    assert says in caught.value.what
    assert caught.value.where == "c.yaml, line 1, /nodes"
    assert caught.value.fix
