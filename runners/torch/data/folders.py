"""Rows of a folder that `datasets` has written with `save_to_disk`: Arrow files, read where they are."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....schemas.errors import InvalidInputError, require_package
from ....schemas.text import joined
from .rows import IGNORED
from .tokens import Row

STATE, SPLITS = "state.json", "dataset_dict.json"  # of the folder of one dataset, and of several


class ArrowRows:
    """Rows of the columns `input_ids` and, where there is one, `labels`; a map-style dataset.

    As `transformers` trains causal models, every token's target is the next label, the last one has none (IGNORED), and
    so have those of which `attention_mask` says 0.

    Args:
        dataset: of the `datasets` library, with a column `input_ids`.
        path: its folder.
    """

    def __init__(self, dataset: Any, path: Path) -> None:
        self.name = str(path)
        columns = [name for name in ("input_ids", "labels", "attention_mask") if name in dataset.column_names]
        self._fingerprint = str(dataset._fingerprint)
        self._dataset = dataset.with_format("numpy", columns=columns)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> Row:
        """(inputs, targets), both of int64."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Row]:
        """Several rows."""
        columns = self._dataset[list(rows)]
        return [_row({name: values[place] for name, values in columns.items()}) for place in range(len(rows))]

    def where(self, row: int, place: int) -> str:
        """Where a row's token is."""
        return f"{self.name}, row {row}, token {place}"

    def fingerprint(self) -> dict[str, Any]:
        """The one that `datasets` keeps of every dataset."""
        return {"datasets": self._fingerprint}


def open_folder(path: Path) -> Any:
    """The dataset that a folder holds.

    Raises:
        InvalidInputError: it holds none, or several, or `datasets` is not installed.
    """
    if (path / SPLITS).is_file():
        splits = json.loads((path / SPLITS).read_text()).get("splits", [])
        raise InvalidInputError(
            f"the folder holds {len(splits)} datasets: {joined(splits)}",
            where=str(path),
            fix=f"name the folder of one, such as {path / splits[0] if splits else path}",
        )
    if not (path / STATE).is_file():
        raise InvalidInputError(
            "the folder holds no dataset", where=str(path), fix="give one that `datasets` has written with save_to_disk"
        )
    require_package("datasets", str(path))
    import datasets

    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # whatever its readers raise
        raise InvalidInputError(
            f"the dataset cannot be read: {type(error).__name__}: {error}",
            where=str(path),
            fix="write it again with save_to_disk",
        ) from error


def _row(columns: dict[str, Any]) -> Row:
    inputs = np.asarray(columns["input_ids"], dtype=np.int64)
    labels = np.asarray(columns.get("labels", inputs), dtype=np.int64)
    if "attention_mask" in columns:
        labels = np.where(np.asarray(columns["attention_mask"]) == 0, IGNORED, labels)
    targets = np.append(labels[1:], IGNORED)
    return torch.from_numpy(inputs.copy()), torch.from_numpy(targets)
