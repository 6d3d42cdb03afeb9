"""What a node's network leaves to rings and hops, against counting who sits where."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.cluster import Cluster, seats_of_shape
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.machines import MACHINES, machine
from rtk.schemas.network import PipelineSeats, rings_of_nodes
from rtk.schemas.profile import Connection, Network, NodeNetwork
from rtk.schemas.site import read_cluster

INSIDE, BETWEEN = Connection(1e-6, 1e12), Connection(1e-3, 10.0)


def _network(gpus: int, side_by_side: str) -> Network:
    return Network(INSIDE, BETWEEN, NodeNetwork(gpus, 8.0, side_by_side))  # type: ignore[arg-type]


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(2, 8),
    st.sampled_from(["stages", "peers"]),
)
def test_a_ring_has_its_share_of_the_nodes_network(gpus: int, pp: int, dp: int, order: str) -> None:
    """A ring gets what a node has over the rings that leave one, counted from the seats; no more in uneven nodes."""
    network = _network(gpus, order)
    cluster = Cluster(tuple(f"n{i}" for i in range(pp * dp)), gpus, network=network)
    seats = seats_of_shape(cluster, pp, dp)
    of_rings = [{seats[k, i][0][0] for k in range(dp)} for i in range(pp)]
    apart = 1 if order == "peers" else pp
    found = PipelineSeats(pp, dp).rings(network, 0).path(dp)
    leaving = max(sum(len(nodes) > 1 and f"n{n}" in nodes for nodes in of_rings) for n in range(pp * dp))
    if not leaving:
        assert found == INSIDE
        return
    assert found.bandwidth_bytes_per_s is not None
    assert found.latency_s == BETWEEN.latency_s
    assert found.bandwidth_bytes_per_s <= 8.0 / leaving
    if (dp * apart) % gpus == 0 and max(apart, gpus) % min(apart, gpus) == 0:
        assert found.bandwidth_bytes_per_s == 8.0 / leaving


@given(st.integers(1, 9), st.integers(2, 6), st.integers(1, 6), st.sampled_from(["stages", "peers"]), st.data())
def test_a_hop_leaves_the_node_where_its_gpus_are_in_two(
    gpus: int, pp: int, dp: int, order: str, data: st.DataObject
) -> None:
    """A hop takes the way between nodes just where the seats of some pipeline say so."""
    network, here = _network(gpus, order), data.draw(st.integers(0, pp - 2))
    cluster = Cluster(tuple(f"n{i}" for i in range(pp * dp)), gpus, network=network)
    seats = seats_of_shape(cluster, pp, dp)
    crosses = any(seats[k, here][0][0] != seats[k, here + 1][0][0] for k in range(dp))
    path = BETWEEN if crosses else INSIDE
    assert PipelineSeats(pp, dp).hop_s(network, 40.0, here, here + 1) == path.transfer_s(40.0)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 9), st.floats(0, 1e12))
def test_without_a_node_all_is_as_one_pair_has_it(pp: int, dp: int, degree: int, size: float) -> None:
    """A network that says nothing of nodes gives every ring, and every whole message, the path between workers."""
    network = Network(INSIDE, BETWEEN)
    assert PipelineSeats(pp, dp, degree).rings(network, 0).ring_s(size, dp) == BETWEEN.ring_s(size, dp)
    assert rings_of_nodes(network, 8).ring_s(size, dp) == BETWEEN.ring_s(size, dp)
    assert PipelineSeats(pp, dp, degree).hop_s(network, size, 0, 1) == BETWEEN.transfer_s(size)


def test_gradients_of_a_stage_take_as_long_as_gpus_share_a_node() -> None:
    """With peers side by side, time goes with parameters of a stage times the degree: 8 rings of an eighth each."""
    network = _network(8, "peers")
    whole = PipelineSeats(4, 16).rings(network, 0).ring_s(800.0, 16)
    assert PipelineSeats(4, 16, 8).rings(network, 0).ring_s(100.0, 16) == pytest.approx(whole, rel=0.01)


def test_a_machine_by_name_is_a_cluster() -> None:
    """`48xdgx-a100` has what the table says of a DGX A100, and names are known in any spelling."""
    found = read_cluster("48xdgx-a100")
    assert (len(found.nodes), found.gpus_per_node, found.gpu) == (48, 8, "a100-sxm")
    assert found.network == MACHINES["dgx-a100"].network()
    assert found.network.node == NodeNetwork(8, 0.9 * 8 * 25e9)
    assert machine("DGX_A100", "") is MACHINES["dgx-a100"]
    with pytest.raises(InvalidInputError, match="there is no machine 'dgx-a10'") as error:
        read_cluster("2xdgx-a10")
    assert "did you mean dgx-a100" in str(error.value.fix)


def test_a_file_says_what_a_node_has(tmp_path: Path) -> None:
    """A machine's name fills in what a file leaves open; cards or a bandwidth say it; an order needs one of them."""
    file = tmp_path / "c.yaml"
    file.write_text("nodes: 4\nmachine: p4d\nnetwork: {node_bandwidth: 9.2GB/s, side_by_side: peers}\n")
    found = read_cluster(str(file))
    assert (found.gpus_per_node, found.gpu) == (8, "a100-sxm-40gb")
    assert found.network.node == NodeNetwork(8, 9.2e9, "peers")
    assert found.network.inter_node == Connection(14e-6, 9.2e9)  # no wider than the node
    file.write_text("nodes: 4\ngpus_per_node: 4\nnetwork: {nics: 2x100Gbit/s}\n")
    assert read_cluster(str(file)).network.node == NodeNetwork(4, 0.9 * 25e9)
    for wrong, what in (
        ("{side_by_side: peers}", "nothing says what those who sit in a node share"),
        ("{nics: 100Gbit/s}", "says no network cards"),
        ("{nics: 4x100Gbit/s, side_by_side: friends}", "cannot sit side by side"),
    ):
        file.write_text(f"nodes: 4\ngpus_per_node: 8\nnetwork: {wrong}\n")
        with pytest.raises(InvalidInputError, match=what):
            read_cluster(str(file))
