"""Templates for tests: random ones, and ones that cut equal layers as evenly as can be."""

from itertools import pairwise

from hypothesis import strategies as st

from rtk.schemas.plan import Link, Planner, Stage
from rtk.schemas.profile import Connection, Network
from rtk.schemas.templates import LayerState, PipelineTemplate, Templates

from ..strategies import BYTES, DELAYS

MADE_BY = Planner("templates", "1", {"model": "toy", "microbatch_size": 4, "sequence_length": 8})
LAYER_TIMES = st.one_of(st.sampled_from([1.0, 2.0]), st.floats(0.01, 10.0))


def even_templates(
    layers: int,
    smallest: int,
    largest: int,
    fault_tolerance: int = 1,
    *,
    gpus_per_node: int = 1,
    times_s: list[float] | None = None,
    delay_s: float = 0.0,
    network: Network | None = None,
) -> Templates:
    """Templates of one GPU a stage, which cut the layers as evenly as can be.

    Args:
        layers: of the model, each of 8 bytes of parameters and 24 of state.
        smallest, largest: nodes of a template.
        fault_tolerance: f.
        gpus_per_node: stages of a node.
        times_s: F, I and W of each layer, one number; 1 unless given.
        delay_s: of every link.
        network: the paths between GPUs.
    """
    return Templates(
        planner=MADE_BY,
        objective="four-per-stage",
        fault_tolerance=fault_tolerance,
        nodes=largest + fault_tolerance * smallest,
        gpus_per_node=gpus_per_node,
        templates=tuple(
            _even(nodes, nodes * gpus_per_node, times_s or [1.0] * layers, delay_s)
            for nodes in range(smallest, largest + 1)
        ),
        layers=(LayerState(8.0, 24.0),) * layers,
        network=network or Network(),
        inputs={"profile": "0" * 64},
    )


def _even(nodes: int, depth: int, times_s: list[float], delay_s: float) -> PipelineTemplate:
    ends = [index * len(times_s) // depth for index in range(depth + 1)]
    stages = tuple(_stage(first, stop, sum(times_s[first:stop])) for first, stop in pairwise(ends))
    iteration_s = sum(3 * sum(times_s[first:stop]) for first, stop in pairwise(ends))
    return PipelineTemplate(nodes, iteration_s, 4 * depth, stages, (Link(delay_s),) * (depth - 1))


def _stage(first: int, stop: int, time_s: float) -> Stage:
    """F, I and W take equally long; a layer holds one byte a micro-batch."""
    return Stage((first, stop), time_s, time_s, time_s, optimizer_s=0.5, activation_bytes=float(stop - first))


@st.composite
def random_templates(draw: st.DrawFn, most_layers: int = 10) -> Templates:
    """Templates of random layers, sizes, delays and network, which may leave gaps between the nodes they can use."""
    layers, gpus = draw(st.integers(2, most_layers)), draw(st.integers(1, 2))
    smallest = draw(st.integers(1, layers // gpus))
    times_s = draw(st.lists(LAYER_TIMES, min_size=layers, max_size=layers))
    connection = st.one_of(st.none(), st.builds(Connection, DELAYS, st.one_of(st.none(), BYTES.filter(bool))))
    return even_templates(
        layers,
        smallest,
        draw(st.integers(smallest, layers // gpus)),
        draw(st.integers(0, 2)),
        gpus_per_node=gpus,
        times_s=times_s,
        delay_s=draw(DELAYS),
        network=Network(draw(connection), draw(connection)),
    )
