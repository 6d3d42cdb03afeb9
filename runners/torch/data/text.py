"""Text as tokens, by the tokenizer in a folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ....schemas.errors import InvalidInputError, require_package
from .corpus import read_bytes
from .tokens import TokenArray, TokenRows


class TextRows(TokenRows):
    """Rows of text: every file, or row of a folder, is a document, and its last token is followed by the end of text.

    All tokens are in memory, 4 bytes each; of more than some hundred MB of text make a `.bin` once.

    Args:
        documents: texts.
        name: where they come from.
        tokenizer: a folder as `save_pretrained` writes it, or the `tokenizer.json` in it; nothing is downloaded.
        sequence_length: tokens a row.

    Raises:
        InvalidInputError: there is no tokenizer in that folder, `transformers` is not installed, or the text is
            shorter than one row.
    """

    def __init__(self, documents: Iterable[str], name: str, tokenizer: str | Path, sequence_length: int) -> None:
        encode = load_tokenizer(Path(tokenizer))
        end = [] if encode.eos_token_id is None else [encode.eos_token_id]
        parts = [np.array(encode.encode(text, add_special_tokens=False) + end, np.int32) for text in documents]
        tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
        super().__init__([TokenArray(name, tokens)], sequence_length)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in a folder, or in the folder of a file.

    Raises:
        InvalidInputError: there is none, or `transformers` is not installed.
    """
    require_package("transformers", "--tokenizer")
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        raise InvalidInputError(
            "there is no folder of a tokenizer",
            where=str(folder),
            fix="give one with tokenizer.json, or tokenizer.model",
        )
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever its many readers raise
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(
            f"the folder's tokenizer cannot be read: {reason}",
            where=str(folder),
            fix="give a folder as save_pretrained writes it, with tokenizer.json",
        ) from error
    found.model_max_length = int(1e30)  # documents are cut into rows
    return found


def read_text(path: Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        InvalidInputError: it cannot be read, or is no text.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"this is no text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
            where=str(path),
            fix="give text; of tokens the name ends in .bin, .npy or .idx",
        ) from error
