"""In what form a model is trained: which of its modules are layers, in which numbers, and what is computed again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import InvalidInputError

DataType = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class ModelForm:
    """What a profile, and a run of its plans, must have in common beside the model's name.

    Attributes:
        cut: names of the modules that are layers, such as `model.layers.*`; None: those the model is known to have.
        dtype: of parameters, gradients, the optimizer's state and activations.
        checkpointing: each layer keeps its input only, and computes the rest again before its backward pass.

    Raises:
        InvalidInputError: there is no such form.
    """

    cut: str | None = None
    dtype: DataType = "fp32"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        known = get_args(DataType)
        if self.dtype not in known:
            raise InvalidInputError(f"{self.dtype!r} is no type", where="dtype", fix=f"take {' or '.join(known)}")
        if not isinstance(self.cut, str | None):
            raise InvalidInputError(f"{self.cut!r} is no name", where="cut", fix="write a name such as layers.*")
        if not isinstance(self.checkpointing, bool):
            raise InvalidInputError(f"{self.checkpointing!r} is not true or false", where="checkpointing")

    def options(self) -> dict[str, Any]:
        """What is not as by default, by name: for a profile's `model`, and a plan's options."""
        found = {"cut": self.cut, "dtype": self.dtype, "checkpointing": self.checkpointing}
        return {name: value for name, value in found.items() if value != getattr(AS_USUAL, name)}


AS_USUAL = ModelForm()


def form_of(options: Mapping[str, Any]) -> ModelForm:
    """The form that options say, those of a plan or a profile's `model`; what they do not say is as by default."""
    names = ModelForm.__dataclass_fields__
    return ModelForm(**{name: value for name, value in options.items() if name in names})
