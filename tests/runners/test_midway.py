"""Workers killed in the middle of iterations, for real: what is done is kept, and nothing is left out or counted twice.

The jobs are those of benchmarks/midway.py, which says how often, and measures what it costs.
"""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
midway = pytest.importorskip(
    "rtk.benchmarks.midway", reason="benchmarks are not part of the wheel", exc_type=ImportError
)


def told(case: Any, seed: int, cycles: int) -> list[dict[str, Any]]:
    """What came of some strikes at a job, in which nothing may differ from a training that nothing happens to."""
    rows = list(midway.tell(case, seed, cycles))
    for row in rows:
        worst = row["worst"]
        assert worst["counted_wrong"] == 0
        assert max(worst[name] for name in ("loss", "norm", "gradients", "parameters")) < 1e-13, row
    assert sum(row["worst"]["checked"] for row in rows) >= cycles
    return rows


@pytest.mark.parametrize(("name", "cycles"), [("alike", 3), ("unlike", 2), ("ties", 2), ("neighbours", 2)])
def test_what_is_done_is_kept(name: str, cycles: int) -> None:
    """The iteration goes on with what is left; its gradients are those of one process, to the last digits of float64.

    Also of pipelines that are re-formed, of layers that share weights, and where two neighbours of a pipeline die at
    once, with optimizers that may have stepped already.
    """
    rows = told(midway.CASES[name], 1, cycles)
    resumed = [one for row in rows for one in row["resumed"]]
    assert resumed and any(one["kept"] for one in resumed), rows


def test_another_death_on_the_way() -> None:
    """Somebody else dies while the others regroup, or do what is left: what they have by then is kept as well."""
    assert any(row["resumed"] for row in told(midway.CASES["second"], 1, 2))


def test_without_a_log_all_is_done_again() -> None:
    """With --log-memory 0 nothing is kept, and the iteration is done anew."""
    rows = told(replace(midway.CASES["alike"], log_memory=0.0), 1, 1)
    assert not any(row["resumed"] for row in rows)
