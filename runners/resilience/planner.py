"""Plans made beside the coordinator's loop: in a thread, one at a time, in the order in which they are asked for."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ...schemas.errors import RtkError
from ...schemas.protocols import Replan, Replanned
from .events import MakePlan, Planned, planned


class Planner:
    """The thread that plans, and those who wait for it.

    Args:
        make_plan: plans anew, and may take long; what it raises becomes the reason why there is no plan.
        loop: the coordinator's, in which `ask` is called.
        answer: called in the loop with each answer; the time is to be filled in.
    """

    def __init__(self, make_plan: Replan, loop: asyncio.AbstractEventLoop, answer: Callable[[Planned], None]) -> None:
        self._make_plan, self._loop, self._answer = make_plan, loop, answer
        self._requests: deque[MakePlan] = deque()
        self._is_planning = False

    def ask(self, request: MakePlan) -> None:
        """Have a plan made, once those asked for before are there."""
        self._requests.append(request)
        self._go_on()

    def _go_on(self) -> None:
        if self._requests and not self._is_planning:
            self._is_planning = True
            # A daemon: a plan that takes minutes must not keep a coordinator that is done from ending.
            threading.Thread(target=self._plan, args=(self._requests.popleft(),), name="planner", daemon=True).start()

    def _plan(self, request: MakePlan) -> None:
        found: Replanned | None = None
        reason = ""
        try:
            found = self._make_plan(request.plan, request.crew, request.conditions)
        except RtkError as error:
            reason = error.what
        except Exception as error:
            reason = f"the planner failed: {error!r}"
        answer = planned(request.number, found, reason)
        with suppress(RuntimeError):  # the loop is closed: nobody wants the plan any more
            self._loop.call_soon_threadsafe(self._planned, answer)

    def _planned(self, answer: Planned) -> None:
        self._is_planning = False
        self._answer(answer)
        self._go_on()
