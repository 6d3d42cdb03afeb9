"""Components: stages that share layers, chained, and so end an iteration together (docs/semantics.md).

Where all pipelines cut the layers at the same places a component is one stage, held by its peers.
"""

from collections.abc import Iterable

from ...schemas.plan import Layers


def components(held: Iterable[Layers]) -> dict[Layers, Layers]:
    """The component of each stage, both by their layers; in ascending order.

    A component's layers are consecutive, as those of each stage are.

    Args:
        held: the layers of all live workers' stages.
    """
    found: list[tuple[Layers, list[Layers]]] = []
    for first, stop in sorted(set(held)):
        if found and first < found[-1][0][1]:
            (begin, end), members = found.pop()
            found.append(((begin, max(end, stop)), [*members, (first, stop)]))
        else:
            found.append(((first, stop), [(first, stop)]))
    return {stage: component for component, members in found for stage in members}
