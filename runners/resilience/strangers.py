"""Those who have connected and not shown yet that they know the job's secret, and what keeps them from doing harm."""

import secrets
from collections.abc import Callable

from .connection import Connection, Phase
from .messages import Challenge, encode
from .secret import is_proof

HELLO_S = 10.0
MOST = 256


class Strangers:
    """Who is challenged, by arrival; nobody else is listened to beyond one line of `STRANGER_BYTES`.

    Args:
        secret: the job's, which they are to know.
        refuse: tells one why it is not let in, and parts with it.
        purpose: what the proof is for (see `prove`).
        hello_s: how long one may take to show it.
        most: how many there may be at a time; the one that has been here longest makes room.
        nonce: what one has to sign; never the same twice.
    """

    def __init__(
        self,
        secret: bytes,
        refuse: Callable[[Connection, str], None],
        *,
        purpose: str = "",
        hello_s: float = HELLO_S,
        most: int = MOST,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._secret, self._purpose = secret, purpose
        self._refuse = refuse
        self._hello_s, self._most, self._nonce = hello_s, most, nonce
        self._here: dict[Connection, None] = {}  # by arrival

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._here

    def challenge(self, stranger: Connection) -> None:
        """Somebody has connected, and is to prove that it knows the secret."""
        if len(self._here) >= self._most:
            self._make_room()
        self._here[stranger] = None
        stranger.nonce = self._nonce()
        stranger.write(encode(Challenge(stranger.nonce)))
        stranger.after(self._hello_s, lambda: self._refuse(stranger, "it said nothing in time"))

    def has_proven(self, stranger: Connection, proof: str) -> bool:
        """Whether `proof` answers the challenge of this connection."""
        return is_proof(proof, self._secret, stranger.nonce, self._purpose)

    def forget(self, connection: Connection) -> None:
        """It is gone, or no stranger any more."""
        self._here.pop(connection, None)

    def _make_room(self) -> None:
        oldest = next(iter(self._here))
        if oldest.phase is Phase.STRANGER:
            self._refuse(oldest, "too many others are waiting to say hello")
        self.forget(oldest)
        oldest.abort()
