"""Workers killed in the middle of iterations, for real: what is done is kept, and nothing is left out or counted twice.

The jobs are those of benchmarks/midway.py, which kills far more of them, and measures what it costs.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
midway = pytest.importorskip(
    "rtk.benchmarks.midway", reason="benchmarks are not part of the wheel", exc_type=ImportError
)

IN_A_SUM = None


def struck(case: Any, folder: Path, *moments: float | None) -> list[dict[str, Any]]:
    """What came of kills at these moments of iterations, by which nothing may differ from one process."""
    with midway.Job(case, folder).running() as job:
        rows = [midway.struck(midway.Strike(job, random.Random(1), moment)) for moment in moments]
    for row in rows:
        worst = row["worst"]
        assert worst["counted_wrong"] == 0
        assert max(worst[name] for name in ("loss", "norm", "gradients", "parameters")) < 1e-13, row
        assert row["resumed"] or row["redone"], row
    assert sum(row["worst"]["checked"] for row in rows) >= len(rows)
    return rows


def test_what_is_done_is_kept(tmp_path: Path) -> None:
    """The iteration goes on with what is left, also where the sum over a stage's gradients was broken off; stages that
    share weights have the gradients of one process."""
    resumed = [one for row in struck(midway.CASES["ties"], tmp_path, 0.5, IN_A_SUM) for one in row["resumed"]]
    assert any(one["kept"] for one in resumed)


@pytest.mark.parametrize("name", ["unlike", "neighbours"])
def test_every_gradient_is_that_of_one_process(name: str, tmp_path: Path) -> None:
    """Also where pipelines are re-formed, and where two neighbours die at once whose optimizers step ahead of the
    others."""
    struck(midway.CASES[name], tmp_path, 0.6)


def test_without_a_log_all_is_done_again(tmp_path: Path) -> None:
    """With --log-memory 0 nothing is kept, and the iteration is done anew."""
    with midway.Job(replace(midway.CASES["alike"], log_memory=0.0), tmp_path).running() as job:
        row = midway.struck(midway.Strike(job, random.Random(1), 0.6))
    assert not row["resumed"] and row["worst"]["counted_wrong"] == 0
    assert max(row["worst"][name] for name in ("loss", "norm", "gradients", "parameters")) < 1e-13
