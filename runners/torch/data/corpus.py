"""Bytes of text files as tokens, drawn at random places."""

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....schemas.errors import InvalidInputError
from ....schemas.plan import Plan
from .fingerprints import digest_of_bytes
from .provider import Provider


class ByteCorpus(Provider):
    """The bytes of some files, one after the other, as a source of language-model samples.

    A sample begins anywhere: with (iteration, global micro-batch) the places are drawn, so nothing is read in turn, and
    a byte may come again before all have been seen.

    Args:
        files: what to read; none for the text of the Python modules that this interpreter brings along.
        microbatch_size: samples a micro-batch.
        sequence_length: tokens a sample; a sample takes one byte more, the last target.
        seed: of the choice of samples.

    Raises:
        InvalidInputError: a file cannot be read, or all of them together are shorter than one sample.
    """

    def __init__(self, files: Sequence[str], microbatch_size: int, sequence_length: int, seed: int) -> None:
        paths = [Path(name) for name in files] or standard_library()
        self.data = np.frombuffer(b"".join(map(read_bytes, paths)), dtype=np.uint8)
        self.microbatch_size = microbatch_size
        self.sequence_length = sequence_length
        self.seed = seed
        if len(self.data) < sequence_length + 1:
            raise InvalidInputError(
                f"{len(self.data)} bytes of data are shorter than one sample of {sequence_length + 1}",
                where=", ".join(map(str, paths)),
                fix="give more text with --data, or a smaller --sequence-length",
            )

    def tokens_of(self, plan: Plan) -> int:
        """Tokens of one iteration of a plan."""
        return plan.total_microbatches() * self.microbatch_size * self.sequence_length

    def batch(self, iteration: int) -> "ByteBatch":
        """The micro-batches of one iteration."""
        return ByteBatch(self, iteration)

    def fingerprint(self) -> dict[str, Any]:
        """How many bytes there are, and a digest of some of them."""
        return {"bytes": len(self.data), "sample": digest_of_bytes(self.data)}


class ByteBatch:
    """One iteration's micro-batches by global number."""

    def __init__(self, corpus: ByteCorpus, iteration: int) -> None:
        self.corpus = corpus
        self.iteration = iteration

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets), both of shape (microbatch_size, sequence_length): targets are one byte further."""
        corpus = self.corpus
        generator = np.random.default_rng((corpus.seed, self.iteration, microbatch))
        starts = generator.integers(0, len(corpus.data) - corpus.sequence_length, corpus.microbatch_size)
        rows = corpus.data[starts[:, None] + np.arange(corpus.sequence_length + 1)].astype(np.int64)
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1], tokens[:, 1:]


def standard_library() -> list[Path]:
    """The top-level modules of the running Python's standard library, in alphabetical order."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def read_bytes(path: Path) -> bytes:
    """All of a file.

    Raises:
        InvalidInputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InvalidInputError:
    """The error of data that cannot be read."""
    return InvalidInputError(f"cannot read the data: {error.strerror or error}", where=str(path), fix="check the path")
