"""What is said of layers that the memory is too small for."""

from ..schemas.errors import InfeasibleError
from ..schemas.profile import Profile


class DoesNotFitError(InfeasibleError):
    """Layers found no memory, each measured alone; the others were measured.

    Attributes:
        partial: the profile of those; None where there are none.
    """

    partial: Profile | None = None
