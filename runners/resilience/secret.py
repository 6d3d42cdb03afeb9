"""The job's secret, and the proof of knowing it that does not give it away."""

import hashlib
import hmac
import os
import secrets
import shlex
import stat
from pathlib import Path

from ...schemas.errors import InvalidInputError

SHORTEST_BYTES = 16
LONGEST_BYTES = 64 * 1024  # what is longer is cut off
OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def make_secret() -> bytes:
    """A new secret of 256 bits, as hexadecimal characters, so that it fits into a file or an environment variable."""
    return secrets.token_hex(32).encode()


def read_secret(file: str | Path) -> bytes:
    """The secret in a file, without the white space around it.

    Args:
        file: its path.

    Raises:
        InvalidInputError: the file cannot be read, is open to others than its owner, or holds less than 16 bytes.
    """
    try:
        with Path(file).open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            secret = stream.read(LONGEST_BYTES).strip()
    except OSError as error:
        raise InvalidInputError(
            f"the job's secret cannot be read: {error.strerror}", where=str(file), fix="name a file that you can read"
        ) from None
    if mode & OTHERS:
        raise InvalidInputError(
            f"others than its owner can read or change the job's secret (mode {stat.S_IMODE(mode):03o})",
            where=str(file),
            fix=f"chmod 600 {shlex.quote(str(file))}, or remove it and have `rtk coordinate` make another one",
        )
    if len(secret) < SHORTEST_BYTES:
        raise InvalidInputError(
            f"a secret of {len(secret)} bytes is too easy to guess",
            where=str(file),
            fix="make one with: (umask 077; openssl rand -hex 32 > FILE)",
        )
    return secret


def prove(secret: bytes, nonce: str, purpose: str = "") -> str:
    """The proof of knowing a secret that a challenge asks for.

    Args:
        secret: the job's.
        nonce: the challenge's.
        purpose: what the proof is for, so that whoever is shown it cannot show it elsewhere: empty at a coordinator.

    Returns:
        HMAC-SHA256 of purpose and nonce under the secret, in hexadecimal.
    """
    return hmac.new(secret, (purpose + nonce).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_proof(proof: str, secret: bytes, nonce: str, purpose: str = "") -> bool:
    """Whether whoever said `proof` knows the secret (see `prove`); takes the same time for every wrong one."""
    # Bytes, for compare_digest refuses to compare strings that are not ASCII, and strangers say what they like.
    return hmac.compare_digest(proof.encode("utf-8", "surrogatepass"), prove(secret, nonce, purpose).encode())
