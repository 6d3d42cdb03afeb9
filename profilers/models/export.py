"""A model's tensors in the form of files of Hugging Face's, as `save_pretrained` of transformers writes them."""

from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.checkpoint import HuggingFaceNames
from .huggingface import hollow_model


class HuggingFaceForm:
    """Turns tensors of layers into those of files.

    Args:
        names: of the model.
        where: what names it, for errors.

    Attributes:
        architecture: the class that reads the files.

    Raises:
        InvalidInputError: transformers is missing, or cannot make the model of the config.
    """

    def __init__(self, names: HuggingFaceNames, where: str) -> None:
        self._transposed = frozenset(names.transposed)
        self._model: Any = hollow_model(names.config, where)
        self.architecture = type(self._model).__name__

    def written(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of files that some of the model's become; on the meta device, only their shapes.

        Args:
            tensors: all of a layer, as it has them, by their names in the model.
        """
        from transformers.core_model_loading import revert_weight_conversion

        turned = {name: value.t() if name in self._transposed else value for name, value in tensors.items()}
        found: dict[str, torch.Tensor] = revert_weight_conversion(self._model, turned)
        return found
