"""How a document shows itself in a notebook: by whoever has been told here to draw it, for the ground draws nothing."""

from collections.abc import Callable
from typing import Any, ClassVar


class Displayed:
    """A document that a notebook shows as a picture, once the library's face has named who draws it."""

    __slots__ = ()
    render_svg: ClassVar[Callable[[Any], str] | None] = None

    def _repr_svg_(self) -> str | None:
        """What Jupyter asks for: an SVG image; None where nobody draws."""
        render = Displayed.render_svg
        return None if render is None else render(self)
