"""A live page of a running job: a small server that gives a page, and the job's events as they come.

Nothing can be changed through it. It listens on loopback unless told otherwise, and answers only who has the token of
its address, for other users of the machine reach loopback, too.
"""

import heapq
import hmac
import json
import re
import secrets
import socket
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..schemas.errors import InvalidInputError

KEPT = 20_000  # iterations, and other events: a page that is opened later sees no older ones
ITERATIONS_KEPT = 3  # of operations: spans of one come in parts
POLL_S = 0.05  # how soon `close` is heard
OPTION = "--page"

_COUNT = re.compile(r"[0-9]{1,15}")
Spans = tuple[tuple[str, float, float, int], ...]

# A page that somebody else's script gets into could do nothing with it: it may load from its own server only.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """Serves a page, and keeps a job's events for it: a log (log_writers.py) that is read over HTTP.

    Args:
        target: `PORT` or `HOST:PORT`; port 0 is any free one.
        page: the page, as HTML.
        token: which a reader has to know; a new one by default.

    Attributes:
        url: where it is, with the token.

    Raises:
        InvalidInputError: the address is none, or is not to be had.
    """

    def __init__(self, target: str, page: str, token: str | None = None) -> None:
        from .addresses import format_address, parse_listening

        self._page, self._token = page.encode(), token or secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        # With their numbers; few events are no iterations, and the page's sums are of those.
        self._iterations: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._others: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._count = 0
        self._spans: dict[int, list[tuple[str, str, float, float]]] = {}
        self._committed = -1
        host, port = parse_listening(target, where=OPTION)
        try:
            self._server = _Server(self, host, port)
        except OSError as error:
            raise InvalidInputError(
                f"cannot serve a page there: {error.strerror}",
                where=f"{OPTION} {target}",
                fix="name another port, or an address of this machine",
            ) from None
        self.url = f"http://{format_address(host, self._server.server_port)}/?token={self._token}"
        serve = partial(self._server.serve_forever, poll_interval=POLL_S)
        self._thread = threading.Thread(target=serve, name="live page", daemon=True)
        self._thread.start()

    def write(self, said: Mapping[str, Any], words: str | None) -> None:
        """Keep an event."""
        line = json.dumps({**said, "words": words}, allow_nan=False)
        with self._lock:
            is_iteration = said["event"] == "iteration"
            (self._iterations if is_iteration else self._others).append((self._count, line))
            self._count += 1
            if is_iteration:
                self._committed = said["iteration"]
                for number in [one for one in self._spans if one <= self._committed - ITERATIONS_KEPT]:
                    del self._spans[number]

    def take(self, place: str, spans: Spans) -> None:
        """Keep what the worker at a place has executed: operation, start and end in s, iteration."""
        with self._lock:
            for op, start_s, end_s, iteration in spans:
                if iteration > self._committed - ITERATIONS_KEPT:
                    self._spans.setdefault(iteration, []).append((place, op, start_s, end_s))

    def close(self) -> None:
        """Stop serving; again does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def answer(self, path: str, asked: Mapping[str, list[str]]) -> tuple[HTTPStatus, str, bytes]:
        """What a reader gets: status, type and body.

        Args:
            path: `/` or `/events`.
            asked: the query: `token`, and for events `after`, how many are known already.
        """
        given = asked.get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return HTTPStatus.FORBIDDEN, "text/plain", b"the address needs the token that rtk has printed\n"
        match path:
            case "/":
                return HTTPStatus.OK, "text/html; charset=utf-8", self._page
            case "/events":
                after = asked.get("after", ["0"])[0]
                return HTTPStatus.OK, "application/json", self._told(int(after) if _COUNT.fullmatch(after) else 0)
        return HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n"

    def _told(self, after: int) -> bytes:
        """The events after so many, how many there are in all, and what the last iteration that is told whole did."""
        with self._lock:
            kept = heapq.merge(self._iterations, self._others)
            events = [line for number, line in kept if number >= after]
            whole = max((one for one in self._spans if one <= self._committed), default=None)
            drawn = {"iteration": whole, "spans": self._spans[whole]} if whole is not None else None
            count = self._count
        return f'{{"count": {count}, "events": [{", ".join(events)}], "drawn": {json.dumps(drawn)}}}'.encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.page = page

    def handle_error(self, *_: Any) -> None:
        """A reader that is gone, or asks for what is no address: as for `log_message`."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30.0  # of a reader that says nothing

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        status, kind, body = self.server.page.answer(parts.path, parse_qs(parts.query))
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """A run's terminal is not for who has asked for what."""
