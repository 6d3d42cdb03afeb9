"""Profile: its defaults and its contradictions."""

import json
from typing import Any

import pytest

from rtk.schemas.documents import parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Connection, Device, Network, Profile

COST = {"forward_s": 1, "backward_input_s": 2, "backward_weight_s": 3}


def _parse(**keys: Any) -> Profile:
    tree = {"format": "rtk.profile", "format_version": "1.0", "layers": [{"costs": [COST]}], **keys}
    return parse_document(json.dumps(tree).encode(), Profile, "p.json")


def test_costs_are_all_that_is_needed() -> None:
    """Of a profile only `layers[].costs` must stand; the rest is zero or null."""
    profile = _parse()
    layer = profile.layers[0]
    assert (layer.costs[0].forward_s, layer.costs[0].tensor_parallel, layer.costs[0].optimizer_s) == (1.0, 1, 0.0)
    assert (layer.name, layer.parameter_bytes, layer.activation_bytes, layer.output_bytes) == (None, 0, 0, 0)
    assert (profile.device, profile.network) == (Device(), Network())
    assert (profile.origin, profile.microbatch_size, profile.sequence_length) == ("given", None, None)


@pytest.mark.parametrize(
    ("keys", "what", "where"),
    [
        ({"layers": []}, "at least 1 item", "/layers"),
        ({"layers": [{"costs": []}]}, "at least 1 item", "/layers/0/costs"),
        ({"layers": [{}]}, "the key 'costs' is missing", "/layers/0/costs"),
        (
            {"layers": [{"costs": [COST]}, {"costs": [COST], "activation_bytes": 1, "weight_stash_bytes": 2}]},
            "weight_stash_bytes, 2 B, is more than the activation_bytes, 1 B, that it is a part of",
            "/layers/1/weight_stash_bytes",
        ),
        (
            {"layers": [{"costs": [COST]}, {"costs": [COST], "tied_to": 0, "tied_state_bytes": 2}]},
            "2 B of tied weights are more than the layer's state_bytes",
            "/layers/1",
        ),
        ({"layers": [{"costs": [COST], "tied_to": 0}]}, "layer 0 is tied to layer 0", "/layers/0/tied_to"),
        ({"layers": [{"costs": [COST, COST]}]}, "one tensor-parallel degree has two costs", "/layers/0/costs"),
        (
            {"layers": [{"costs": [{**COST, "tensor_parallel": 0}]}]},
            "greater than or",
            "/layers/0/costs/0/tensor_parallel",
        ),
        ({"origin": "guessed"}, "'measured', 'analytic' or 'given'", "/origin"),
        ({"microbatch_size": 0}, "greater than or equal to 1", "/microbatch_size"),
        (
            {"network": {"inter_node": {"bandwidth_bytes_per_s": 0}}},
            "greater than or equal to 0.001",
            "/network/inter_node/bandwidth_bytes_per_s",
        ),
        ({"device": {"memory_gb": 80}}, "unknown key 'memory_gb'", "/device/memory_gb"),
        ({"model": {"vocabulary": float("nan")}}, "nan is not a finite number", "/model/vocabulary"),
    ],
)
def test_bad_profile_is_refused_at_its_place(keys: dict[str, Any], what: str, where: str) -> None:
    """Each mistake is one error with its JSON pointer."""
    with pytest.raises(InvalidInputError) as caught:
        _parse(**keys)
    assert what in caught.value.what
    assert caught.value.where == f"p.json, {where}"


def test_wrong_unit_of_bytes_suggests_the_key() -> None:
    """A size in megabytes is refused, and the key in bytes is suggested."""
    with pytest.raises(InvalidInputError) as caught:
        _parse(device={"memory_gb": 80})
    assert caught.value.fix == "did you mean 'memory_bytes'?"


def test_between_workers_means_between_nodes_where_that_is_known() -> None:
    """Workers may sit on any nodes; a profile that knows no path between them has that within a node."""
    inside, outside = Connection(1.0, 2.0), Connection(3.0, 4.0)
    assert Network(inside, outside).between_workers == outside
    assert Network(inside).between_workers == inside
    assert Network().between_workers is None


def test_a_sender_and_a_receiver_do_one_copy_after_the_other() -> None:
    """Two copies to one receiver, or from one sender, follow each other; unlike pairs copy at once."""
    connection = Connection(1.0, 10.0)
    assert connection.copying_s([("a", "c", 10.0), ("b", "c", 30.0)]) == 6.0
    assert connection.copying_s([("c", "a", 10.0), ("c", "b", 30.0)]) == 6.0
    assert connection.copying_s([("a", "b", 10.0), ("b", "a", 30.0), ("c", "d", 20.0)]) == 4.0


def test_without_a_bandwidth_nobody_knows_how_long_copies_take() -> None:
    """None where there is something to copy, 0 where there is nothing."""
    assert Connection(1.0).copying_s([("a", "b", 1.0)]) is None
    assert Connection(1.0).copying_s([("a", "b", 0.0)]) == 0.0
    assert Connection(1.0, 10.0).copying_s([]) == 0.0
