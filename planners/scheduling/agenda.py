"""When workers decide next: a heap of them, the soonest first, of equal ones the first."""

from __future__ import annotations

from ...schemas.kernels import MutableFloats, MutableInts, kernel


@kernel
def decides_at(event_s: MutableFloats, heap: MutableInts, at: MutableInts, worker: int, time_s: float) -> None:
    """Set when a worker decides next, and move it to its place among all.

    Args:
        event_s: of each worker, when it decides next.
        heap: the workers, a heap by that; of equal ones the lower number comes first.
        at: of each worker, where it is in the heap.
        worker: whose time is set.
        time_s: what it becomes.
    """
    event_s[worker] = time_s
    place = at[worker]
    while place > 0:
        above = (place - 1) // 2
        other = heap[above]
        if event_s[other] < time_s or (event_s[other] == time_s and other < worker):
            break
        heap[place] = other
        at[other] = place
        place = above
    size = len(heap)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        other = heap[below]
        if below + 1 < size:
            second = heap[below + 1]
            if event_s[second] < event_s[other] or (event_s[second] == event_s[other] and second < other):
                below += 1
                other = second
        if time_s < event_s[other] or (time_s == event_s[other] and worker < other):
            break
        heap[place] = other
        at[other] = place
        place = below
    heap[place] = worker
    at[worker] = place
