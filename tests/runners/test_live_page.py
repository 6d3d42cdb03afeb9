"""The server of a live page: what it gives, to whom, and what it keeps."""

import json
import socket
import struct
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners import live_page
from rtk.runners.live_page import ITERATIONS_KEPT, LivePage
from rtk.schemas.errors import InvalidInputError

TOKEN = "a-token"


def asked(page: LivePage, path: str) -> tuple[int, bytes, dict[str, str]]:
    address = urlsplit(page.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def iteration(number: int) -> dict[str, Any]:
    return {"event": "iteration", "iteration": number, "loss": 1.5, "unix_time_s": 1.0}


@pytest.fixture
def page() -> Any:
    made = LivePage("0", "<p>the page</p>", TOKEN)
    yield made
    made.close()
    made.close()


def test_only_who_has_the_token_gets_anything(page: LivePage) -> None:
    """Without it, or with another, neither the page nor events are given; nothing may be kept or framed."""
    page.write({"event": "failure", "unix_time_s": 1.0}, "worker 1/1 failed")
    for path in ("/", "/events", "/?token=", "/?token=another", "/events?token=a-toke", "/events?token=%C3%A4"):
        status, body, _ = asked(page, path)
        assert status == 403 and b"worker" not in body and b"page" not in body
    status, body, headers = asked(page, f"/?token={TOKEN}")
    assert (status, body) == (200, b"<p>the page</p>") and page.url.endswith(f"/?token={TOKEN}")
    assert headers["Cache-Control"] == "no-store" and "default-src 'none'" in headers["Content-Security-Policy"]
    assert asked(page, f"/rtk.toml?token={TOKEN}")[0] == 404


def test_a_port_alone_is_on_loopback(page: LivePage) -> None:
    """And two pages have two tokens."""
    assert page.url.startswith("http://127.0.0.1:")
    one, other = LivePage("0", ""), LivePage("127.0.0.1:0", "")
    assert urlsplit(one.url).query != urlsplit(other.url).query
    one.close()
    other.close()


def test_what_is_not_to_be_had_is_refused() -> None:
    """A port that is taken, and what is no address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for target in (str(taken.getsockname()[1]), "here", "127.0.0.1:99999", "http://127.0.0.1:80"):
            with pytest.raises(InvalidInputError) as caught:
                LivePage(target, "")
            assert caught.value.where is not None and caught.value.where.startswith("--page")


@given(st.lists(st.integers(1, 6), max_size=6))
def test_a_reader_hears_of_each_event_once(batches: list[int]) -> None:
    """However many come between two questions, each is told once and in order."""
    page = LivePage("0", "", TOKEN)
    try:
        known, heard, told = 0, [], 0
        for count in batches:
            for _ in range(count):
                page.write(iteration(told), None)
                told += 1
            body = json.loads(page.answer("/events", {"token": [TOKEN], "after": [str(known)]})[2])
            known = body["count"]
            heard += [one["iteration"] for one in body["events"]]
        assert heard == list(range(told))
    finally:
        page.close()


def test_a_late_reader_gets_the_latest_events(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long job old iterations are forgotten, and what they did; a failure is not, for the page counts them."""
    monkeypatch.setattr(page, "_iterations", type(page._iterations)(maxlen=5))
    page.write({"event": "failure", "unix_time_s": 1.0}, "worker 1/1 failed")
    for number in range(20):
        page.take("0/0", (("F0", float(number), number + 0.5, number),))
        page.write(iteration(number), None)
    page.take("0/1", (("F0", 19.0, 19.5, 19), ("F0", 20.0, 20.5, 20)))
    body = json.loads(page.answer("/events", {"token": [TOKEN]})[2])
    assert body["count"] == 21 and [one.get("iteration") for one in body["events"]] == [None, 15, 16, 17, 18, 19]
    assert json.loads(page.answer("/events", {"token": [TOKEN], "after": ["1"]})[2])["events"] == body["events"][1:]
    assert body["drawn"] == {"iteration": 19, "spans": [["0/0", "F0", 19.0, 19.5], ["0/1", "F0", 19.0, 19.5]]}
    assert len(page._spans) <= ITERATIONS_KEPT + 1
    assert live_page.KEPT >= 1000


def test_strange_readers_are_no_concern_of_the_terminal(page: LivePage, capfd: pytest.CaptureFixture[str]) -> None:
    """Who leaves amid an answer, asks for what is no address, or has heard of more than there can be: nothing is said
    on the run's terminal, and others are answered."""
    page.write({"event": "failure", "unix_time_s": 1.0}, "x" * 5_000_000)
    address = urlsplit(page.url)
    with socket.create_connection((address.hostname or "", address.port or 0)) as gone:
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(f"GET /events?token={TOKEN} HTTP/1.0\r\n\r\n".encode())
        gone.recv(10)
    with socket.create_connection((address.hostname or "", address.port or 0)) as strange:
        strange.sendall(b"GET http://[ HTTP/1.0\r\n\r\n")
        assert strange.recv(10) == b""
    status, body, _ = asked(page, f"/events?token={TOKEN}&after={'9' * 5000}")
    assert status == 200 and json.loads(body)["count"] == 1
    assert capfd.readouterr() == ("", "")
