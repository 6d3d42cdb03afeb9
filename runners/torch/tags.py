"""The numbers of messages, by which both ends know them."""

from ...schemas.orders import Operation
from ...schemas.plan import Plan
from ..program import Message

# Above the tags of all messages of a program; state_copy.py has those above it.
EXAMINATION_TAG, PROBE_TAG = 0x6FFFFFFE, 0x6FFFFFFF


class Tags:
    """A number for every message of a plan, unlike in two neighbouring iterations."""

    def __init__(self, plan: Plan) -> None:
        self._links = max(len(template.links) for template in plan.templates)
        self._offsets = [plan.microbatch_offset(k) for k in range(len(plan.pipelines))]

    def of(self, message: Message, iteration: int) -> int:
        """The tag of a message in an iteration."""
        number = self._offsets[message.pipeline] + message.microbatch
        parts = 2 * (number * self._links + message.link) + (message.kind == "gradient")
        return 2 * parts + iteration % 2

    def microbatch(self, operation: Operation) -> int:
        """The global number of the micro-batch that an operation works on."""
        return self._offsets[operation.pipeline] + operation.microbatch
