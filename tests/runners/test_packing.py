"""Tensors by name go from rank to rank in few messages, whatever they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rtk.runners.torch.packing import PackedEntries  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402

from .test_iteration import Alone  # noqa: E402

TYPES = (torch.float32, torch.float64, torch.int64, torch.bool)


class Post(Alone):
    """Keeps what is sent until it is received; an announcement has to say as much, of the same type."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[tuple[int, int], Any] = {}
        self.announced: dict[int, Any] = {}

    def send(self, tag: int, to: int, tensor: Any) -> None:
        self.sent[tag, to] = tensor

    def post_receive(self, tag: int, source: int, like: Any) -> None:
        self.announced[tag] = like

    def receive(self, tag: int, source: int) -> Any:
        like, found = self.announced.pop(tag), self.sent[tag, source]
        assert (like.numel(), like.dtype) == (found.numel(), found.dtype)
        return found.clone()


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(TYPES)), max_size=12),
    st.integers(1, 200),
    st.booleans(),
    st.booleans(),
)
def test_what_is_packed_is_unpacked(
    shapes: list[tuple[list[int], Any]], limit_bytes: int, in_copies: bool, is_checked: bool
) -> None:
    """All arrive, with their names, shapes, types and values; no message of several is over the limit, and none could
    have gone with the one of its type before it."""
    entries = {f"{number}": torch.randint(0, 9, shape).to(kind) for number, (shape, kind) in enumerate(shapes)}
    likes = {name: torch.empty_like(value) for name, value in entries.items()}
    post = Post()
    sent, awaited = (PackedEntries(ones, (7).__add__, limit_bytes, in_copies, is_checked) for ones in (entries, likes))
    sent.send(post, 1, 2)
    awaited.announce(post, 1)
    waited: list[int] = []
    found = dict(awaited.received(post, 1, lambda: waited.append(1)))
    assert found.keys() == entries.keys() and not post.announced
    assert len(waited) == len(sent.messages) + is_checked == len(post.sent) // 2
    for name, value in entries.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
        assert torch.equal(found[name], value)
    small: dict[Any, list[int]] = {}
    for names in sent.messages:
        (kind,) = {entries[name].dtype for name in names}
        size = sum(entries[name].nbytes for name in names)
        assert size <= limit_bytes or len(names) == 1
        if size <= limit_bytes:
            small.setdefault(kind, []).append(size)
            first = entries[names[0]].nbytes
            assert len(small[kind]) == 1 or small[kind][-2] + first > limit_bytes


def test_what_is_large_is_copied_only_where_that_is_asked_for() -> None:
    """A state needs no second copy of itself on its way; what may change before it is taken goes in copies."""
    large = torch.arange(4.0)
    for in_copies in (False, True):
        post = Post()
        PackedEntries({"large": large}, int, 8, in_copies).send(post, 0)
        (found,) = post.sent.values()
        assert (found.data_ptr() == large.data_ptr()) != in_copies


def test_what_has_come_otherwise_than_it_was_sent_is_not_taken() -> None:
    """One number of one message is another one: where fingerprints come with them, that is an error."""
    entries = {"a": torch.arange(4.0), "b": torch.arange(4)}
    post = Post()
    packed = PackedEntries(entries, int, in_copies=True, is_checked=True)
    packed.send(post, 0)
    packed.announce(post, 0)
    post.sent[1, 0][2] += 1
    with pytest.raises(RuntimeFailedError, match="not what has come"):
        dict(packed.received(post, 0))
