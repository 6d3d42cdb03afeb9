"""What `--data` names, by what stands on disk."""

from collections.abc import Sequence
from pathlib import Path

from ....schemas.errors import InvalidInputError
from .corpus import ByteCorpus, standard_library
from .feed import RowFeed
from .folders import ArrowRows, open_folder
from .provider import Provider
from .rows import MapStyle
from .text import TextRows, read_text
from .tokens import Tokens, megatron_parts


def open_data(
    paths: Sequence[str], sequence_length: int, *, dtype: str | None = None, tokenizer: str | None = None
) -> MapStyle:
    """The rows that files, or a folder, hold.

    Args:
        paths: files of tokens (`.bin`, `.npy`, Megatron's `.idx` or the name that it shares with its `.bin`); or text;
            or one folder that `datasets` has written. None: the text of Python's own modules.
        sequence_length: tokens a row; rows of a folder are as they were saved.
        dtype: of the tokens in a `.bin` without an index.
        tokenizer: a folder with the tokenizer of text; None: text is bytes, and a byte is a token.

    Raises:
        InvalidInputError: something is not there, is not what it seems, or fits nothing else that was given.
    """
    places = [Path(one) for one in paths]
    kinds = {_kind(place) for place in places} or {"text"}
    if len(kinds) > 1 or (kinds == {"folder"} and len(places) > 1):
        raise InvalidInputError(
            "files of several kinds, or several folders, are no one data set",
            where=", ".join(map(str, paths)),
            fix="give files of one kind, or one folder",
        )
    kind = kinds.pop()
    if tokenizer is not None and kind == "tokens":
        raise InvalidInputError("these are tokens already", where=", ".join(paths), fix="leave --tokenizer out")
    if dtype is not None and kind != "tokens":
        raise InvalidInputError(
            "only files of tokens have a dtype", where=", ".join(paths) or "--data-dtype", fix="leave the dtype out"
        )
    if kind == "tokens":
        return Tokens(places, dtype, sequence_length=sequence_length)
    if kind == "folder":
        return _folder(places[0], sequence_length, tokenizer)
    files = places or standard_library()
    if tokenizer is None:
        return Tokens(files, "uint8", sequence_length=sequence_length)
    return TextRows(map(read_text, files), ", ".join(paths), tokenizer, sequence_length)


def open_provider(
    paths: Sequence[str],
    microbatch_size: int,
    microbatches: int,
    sequence_length: int,
    *,
    seed: int = 0,
    dtype: str | None = None,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
    loader_workers: int = 0,
    shuffle: bool = True,
) -> Provider:
    """The micro-batches of what `--data` names: of text without a tokenizer, shuffled, samples of its bytes; else rows.

    Args:
        paths, sequence_length, dtype, tokenizer: as of `open_data`.
        microbatch_size, microbatches, seed, vocabulary, loader_workers, shuffle: as of `RowFeed`.

    Raises:
        InvalidInputError: as of `open_data` and `RowFeed`.
    """
    if shuffle and are_bytes(paths, dtype, tokenizer):
        return ByteCorpus(paths, microbatch_size, sequence_length, seed)
    rows = open_data(paths, sequence_length, dtype=dtype, tokenizer=tokenizer)
    return RowFeed(
        rows,
        microbatch_size,
        microbatches,
        seed=seed,
        shuffle=shuffle,
        vocabulary=vocabulary,
        loader_workers=loader_workers,
    )


def are_bytes(paths: Sequence[str], dtype: str | None = None, tokenizer: str | None = None) -> bool:
    """Whether the tokens are the bytes of text, of which there are 256; arguments as of `open_data`."""
    return tokenizer is None and dtype is None and all(_kind(Path(one)) == "text" for one in paths)


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folder"
    is_tokens = path.suffix in (".bin", ".npy", ".idx") or (not path.exists() and megatron_parts(path) is not None)
    return "tokens" if is_tokens else "text"


def _folder(path: Path, sequence_length: int, tokenizer: str | None) -> MapStyle:
    dataset = open_folder(path)
    columns = dataset.column_names
    if tokenizer is not None and "text" in columns:
        return TextRows(dataset["text"], str(path), tokenizer, sequence_length)
    if "input_ids" in columns:
        return ArrowRows(dataset, path)
    raise InvalidInputError(
        f"the dataset has no column input_ids; its columns are {', '.join(columns)}",
        where=str(path),
        fix="give --tokenizer with its column text" if "text" in columns else "name the column of tokens input_ids",
    )
