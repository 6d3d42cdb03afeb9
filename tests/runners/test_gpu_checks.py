"""The checks of benchmarks/gpu.py, on a CPU: that each runs and finds what it is to find; its figures are of no account.

They are there for GPUs, which these tests do not have.
"""

from pathlib import Path

import pytest

from rtk.benchmarks.gpu import CHECKS, Bench, run

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """As of `--device cpu --small`."""
    return Bench("cpu", True, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - {"memory"}))  # which tests/profilers has itself
def test_a_check_runs(bench: Bench, name: str) -> None:
    """It gives figures, and no reason why not."""
    found = run(bench, [name])[name]
    assert "reason" not in found
    match name:
        case "profile":
            assert found["gpt-tiny"]["share_of_peak"] > 0
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


def test_a_check_that_fails_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others run nevertheless."""

    def fail(_: Bench) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setitem(CHECKS, "memory", fail)
    assert run(bench, ["memory"]) == {"memory": {"reason": "it failed: RuntimeError: CUDA out of memory"}}


def test_configurations_are_of_models_that_load(tmp_path: Path) -> None:
    """The large models' configurations are read by transformers; nothing is allocated."""
    pytest.importorskip("transformers")
    from rtk.profilers.models.huggingface import HuggingFace

    large = Bench("cpu", False, tmp_path)
    for name, parameters in (("gpt2-medium", 406e6), ("llama-1b", 1.5e9)):
        layers = HuggingFace(large.models[name], random_weights=True).load(1, 32).layers
        assert sum(one.numel() for layer in layers for one in layer.parameters()) == pytest.approx(parameters, rel=0.02)
