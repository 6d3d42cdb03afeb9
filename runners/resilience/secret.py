"""The job's secret, and the proof of knowing it that does not give it away."""

import hashlib
import hmac
import secrets
from pathlib import Path

from ...schemas.errors import InvalidInputError

SHORTEST_BYTES = 16


def make_secret() -> bytes:
    """A new secret of 256 bits, as hexadecimal characters, so that it fits into a file or an environment variable."""
    return secrets.token_hex(32).encode()


def read_secret(file: str | Path) -> bytes:
    """The secret in a file, without the white space around it.

    Args:
        file: its path.

    Raises:
        InvalidInputError: the file cannot be read, or holds less than 16 bytes.
    """
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise InvalidInputError(
            f"the job's secret cannot be read: {error.strerror}", where=str(file), fix="name a file that you can read"
        ) from None
    if len(secret) < SHORTEST_BYTES:
        raise InvalidInputError(
            f"a secret of {len(secret)} bytes is too easy to guess",
            where=str(file),
            fix="make one with: openssl rand -hex 32",
        )
    return secret


def prove(secret: bytes, nonce: str) -> str:
    """HMAC-SHA256 of a challenge's nonce under the secret, in hexadecimal."""
    return hmac.new(secret, nonce.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_proof(proof: str, secret: bytes, nonce: str) -> bool:
    """Whether whoever said `proof` knows the secret; takes the same time for every wrong one."""
    # Bytes, for compare_digest refuses to compare strings that are not ASCII, and strangers say what they like.
    return hmac.compare_digest(proof.encode("utf-8", "surrogatepass"), prove(secret, nonce).encode())
