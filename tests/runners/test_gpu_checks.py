"""The checks of benchmarks/gpu.py, on a CPU: each runs and finds what it is to find; its figures are of no account.

They are there for GPUs, which these tests do not have.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rtk.profilers.analytic.estimate import profile_analytic

if TYPE_CHECKING:
    from rtk.benchmarks.gpu import Bench

gpu = pytest.importorskip("rtk.benchmarks.gpu", reason="benchmarks are not part of the wheel", exc_type=ImportError)
pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> "Bench":
    """As of `--device cpu --small`."""
    made: Bench = gpu.Bench("cpu", True, tmp_path_factory.mktemp("models"))
    return made


@pytest.mark.parametrize("name", sorted(gpu.CHECKS.keys() - {"memory"}))  # which tests/profilers has itself
def test_a_check_runs(bench: "Bench", name: str) -> None:
    """It gives figures, and no reason why not."""
    found = gpu.run(bench, [name])[name]
    assert "reason" not in found
    match name:
        case "profile":
            assert found["gpt-tiny"]["share_of_peak"] > 0
        case "overlap":
            assert 0.5 < found["gpt-tiny"] <= 1
        case "annotated":
            assert len(found["by_trace_s"]) == 4 * len("FIW")
            assert found["clock"] == "cpu"
        case "survive":
            assert found["loss_difference"] < 1e-5
        case "nccl":
            assert all(error is not None for error in found["errors"])
            assert found["death_to_sum_s"] < 5
        case "copies":
            assert found["bytes"] > 0
        case "delegates":
            assert found["delegated"] > 0
        case "plan":
            assert found["measured_s"] > 0


def test_a_check_that_fails_says_why(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """The others run nevertheless."""

    def fail(_: "Bench") -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setitem(gpu.CHECKS, "memory", fail)
    assert gpu.run(bench, ["memory"]) == {"memory": {"reason": "it failed: RuntimeError: CUDA out of memory"}}


def test_configurations_are_of_known_models(tmp_path: Path) -> None:
    """Embedding, blocks, head; the estimate reads what transformers reads."""
    large = gpu.Bench("cpu", False, tmp_path)
    for name, layers in (("gpt3-medium", 26), ("llama-1b", 18)):
        assert len(profile_analytic(large.models[name], gpu="h100-sxm").layers) == layers
