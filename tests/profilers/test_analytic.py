"""Computed profiles: parameters, FLOPs and bytes against papers and torch; times against their formulas."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from rtk.profilers.analytic.configuration import MODELS, known_model
from rtk.profilers.analytic.costs import ACTIVATIONS, DecoderShape, MicrobatchShape
from rtk.profilers.analytic.estimate import (
    Correction,
    Corrections,
    analytic_profile,
    calibration_of,
    forward_flops,
    profile_analytic,
    rates_of,
)
from rtk.profilers.measure import measure_profile
from rtk.profilers.models.gpt import gpt_layers
from rtk.profilers.models.load import load_model
from rtk.profilers.models.presets import PRESETS, GptConfig, gpt_parameters
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.gpus import GPUS, gpu
from rtk.schemas.profile import Connection, Network, NodeNetwork, Profile

H100 = gpu("h100-sxm")
TIMES = ("forward_s", "backward_input_s", "backward_weight_s", "optimizer_s")


@st.composite
def shapes(draw: st.DrawFn) -> DecoderShape:
    """Any decoder we can describe."""
    heads, head_size = draw(st.sampled_from([4, 8, 16])), draw(st.sampled_from([8, 64, 128]))
    return DecoderShape(
        blocks=draw(st.integers(1, 4)),
        width=heads * head_size,
        heads=heads,
        key_value_heads=draw(st.sampled_from([1, 2, 4])),
        head_size=head_size,
        inner=draw(st.integers(1, 5000)),
        vocabulary=draw(st.integers(1, 10**5)),
        positions=4096,
        position_rows=draw(st.sampled_from([0, 4096])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        activation=draw(st.sampled_from(sorted(ACTIVATIONS))),
        is_gated=draw(st.booleans()),
        is_fused=draw(st.booleans()),
        is_parallel=draw(st.booleans()),
        has_query_bias=draw(st.booleans()),
        has_output_bias=draw(st.booleans()),
        has_inner_bias=draw(st.booleans()),
        has_head_norms=draw(st.booleans()),
        is_tied=draw(st.booleans()),
    )


batches = st.builds(MicrobatchShape, st.integers(1, 8), st.integers(1, 4096), st.sampled_from(["fp32", "bf16", "fp16"]))


def computed(
    shape: DecoderShape, batch: MicrobatchShape, degrees: tuple[int, ...] = (1,), checkpointing: bool = False
) -> Profile:
    """A profile on an H100."""
    rates = rates_of(H100, batch.dtype)
    return analytic_profile("x", shape, batch, H100, rates, is_checkpointing=checkpointing, degrees=degrees)


@given(shapes(), batches)
def test_profile_is_valid(shape: DecoderShape, batch: MicrobatchShape) -> None:
    """Whatever the shape: a valid document, positive times, and the layers hold its parameters, tied ones once."""
    profile = computed(shape, batch, (1, 2, 4))
    profile.validate()
    assert profile.origin == "analytic"
    assert profile.device.name == "h100-sxm (analytic)"
    assert all(cost.forward_s > 0 and cost.backward_input_s > 0 for layer in profile.layers for cost in layer.costs)
    held_bytes = sum(layer.parameter_bytes - (layer.tied_bytes or 0) for layer in profile.layers)
    assert held_bytes == shape.parameters * batch.element_bytes


@given(shapes(), batches)
def test_ranks_share_the_work(shape: DecoderShape, batch: MicrobatchShape) -> None:
    """Twice the tensor-parallel ranks take at least half of the time for W, and never longer."""
    for layer in computed(shape, batch, (1, 2, 4)).layers:
        for cost, next_cost in zip(layer.costs, layer.costs[1:], strict=False):
            whole_s, half_s = cost.backward_weight_s, next_cost.backward_weight_s
            assert whole_s / 2 * (1 - 1e-12) <= half_s <= whole_s


@given(shapes(), batches)
def test_checkpointing_adds_forward(shape: DecoderShape, batch: MicrobatchShape) -> None:
    """With checkpointing I of a block takes F and W longer, and the block keeps its input only; the ends stay."""
    kept, again = computed(shape, batch), computed(shape, batch, checkpointing=True)
    assert (kept.layers[0], kept.layers[-1]) == (again.layers[0], again.layers[-1])
    before, after = kept.layers[1], again.layers[1]
    old, new = before.costs[0], after.costs[0]
    assert new.backward_input_s == old.backward_input_s + old.forward_s + old.backward_weight_s
    assert new.backward_weight_s == 0
    assert (after.activation_bytes, after.weight_stash_bytes) == (after.output_bytes, 0)
    assert again.model["recomputed_bytes"] == before.activation_bytes
    assert again.model["checkpointing"] is True


# Narayanan et al., 2021, table 1.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("1.7b", 1.7),
        ("3.6b", 3.6),
        ("7.5b", 7.5),
        ("18.4b", 18.4),
        ("39.1b", 39.1),
        ("76.1b", 76.1),
        ("145.6b", 145.6),
        ("310b", 310.1),
        ("530b", 529.6),
        ("1t", 1008.0),
    ],
)
def test_megatron_sizes(name: str, billions: float) -> None:
    """Parameters and FLOPs are those of the paper's formulas; only the last norm's 2h the paper leaves out."""
    shape = MODELS[f"megatron-{name}"].shape
    blocks, h, s, vocabulary, b = shape.blocks, shape.width, 2048, 51200, 3
    formula = 12 * blocks * h**2 * (1 + 13 / (12 * h) + (vocabulary + s) / (12 * blocks * h))
    assert shape.parameters == pytest.approx(formula + 2 * h, rel=1e-15)
    assert round(shape.parameters / 1e9, 1) == billions
    of_blocks, of_head = forward_flops(shape, MicrobatchShape(b, s, "bf16"))
    recomputing = 96 * b * s * blocks * h**2 * (1 + s / (6 * h) + vocabulary / (16 * blocks * h))
    assert 4 * of_blocks + 3 * of_head == pytest.approx(recomputing, rel=1e-15)


# Brown et al., 2020, table D.1: millions of parameters, and FLOPs of 300e9 tokens. Llama team, 2024: table 3, and
# 3.8e25 FLOPs for 15.6e12 tokens.
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt3-2.7b", 2650),
        ("gpt3-6.7b", 6660),
        ("gpt3-13b", 12850),
        ("gpt3-175b", 174600),
        ("llama3-8b", 8030),
        ("llama3-70b", 70550),
        ("llama3-405b", 405850),
    ],
)
def test_paper_parameters(name: str, millions: int) -> None:
    """GPT-3 and Llama-3 have the parameters that their authors give, to all their digits; GPT-3's head is tied."""
    shape = MODELS[name].shape
    tied = replace(shape, is_tied=shape.is_tied or name.startswith("gpt3"))
    assert round(tied.parameters / 1e7) * 10 == millions


def test_paper_flops() -> None:
    """Six FLOPs a parameter and token, as papers count, are three forward passes without attention and look-ups."""
    for name, tokens, published in (("gpt3-175b", 300e9, 3.14e23), ("llama3-405b", 15.6e12, 3.8e25)):
        shape = MODELS[name].shape
        batch = MicrobatchShape(1, 2048, "bf16")
        attention = 4 * 2048**2 * shape.query_width * shape.blocks
        per_token = 3 * (sum(forward_flops(shape, batch)) - attention) / 2048
        assert per_token * tokens == pytest.approx(published, rel=0.01)


def test_presets() -> None:
    """The presets have the shapes and sizes that are measured under their names."""
    for name, preset in PRESETS.items():
        known, config = known_model(name), preset.config
        shape = known.shape
        assert (known.microbatch_size, known.sequence_length) == (preset.microbatch_size, preset.sequence_length)
        assert (shape.blocks, shape.width, shape.heads) == (config.blocks, config.width, config.heads)
        assert (shape.vocabulary, shape.positions) == (config.vocabulary, config.positions)
        assert shape.parameters == gpt_parameters(config)


def test_flops_of_torch() -> None:
    """On the meta device torch counts the FLOPs that we compute for a preset's layers."""
    config, shape = GptConfig(2, 512, 8, 1000, 512), replace(MODELS["gpt-tiny"].shape, blocks=2, width=512, heads=8)
    shape = replace(shape, key_value_heads=8, head_size=64, inner=2048, vocabulary=1000)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        value = torch.empty(2, 256, dtype=torch.long)
        for layer in gpt_layers(config):
            value = layer(value)
    assert sum(forward_flops(shape, MicrobatchShape(2, 256, "fp32"))) == counter.get_total_flops()


def test_bytes_of_a_measured_model() -> None:
    """Activations of a preset are those that are measured, to 2 %; stash, parameters, state and output exactly."""
    measured = measure_profile(load_model("gpt-tiny", 2, 64), TorchStage, repeats=1)
    shape = MODELS["gpt-tiny"].shape
    estimate = computed(shape, MicrobatchShape(2, 64, "fp32"))
    assert len(estimate.layers) == len(measured.layers)
    for ours, theirs in zip(estimate.layers, measured.layers, strict=True):
        assert ours.activation_bytes == pytest.approx(theirs.activation_bytes, rel=0.02)
        assert ours.weight_stash_bytes == theirs.weight_stash_bytes
        assert (ours.parameter_bytes, ours.state_bytes) == (theirs.parameter_bytes, theirs.state_bytes)
        assert ours.output_bytes == theirs.output_bytes


def test_efficiency_is_a_share_of_the_peak() -> None:
    """With an efficiency W of a block without biases is its FLOPs over that share of the peak."""
    shape, batch = MODELS["llama3-70b"].shape, MicrobatchShape(1, 4096, "bf16")
    profile = analytic_profile("x", shape, batch, H100, rates_of(H100, "bf16", 0.5))
    flops = 2 * batch.tokens * shape.block_matrices
    assert profile.layers[1].costs[0].backward_weight_s == pytest.approx(flops / (0.5 * 989e12), rel=1e-12)


def test_larger_products_are_more_efficient() -> None:
    """The share of the peak that W reaches grows with the width of the matrices, up to what the GPU can reach."""
    shares = []
    for name in ("megatron-1.7b", "megatron-18.4b", "megatron-145.6b", "megatron-1t"):
        shape, batch = MODELS[name].shape, MicrobatchShape(1, 2048, "bf16")
        weight_s = computed(shape, batch).layers[1].costs[0].backward_weight_s
        shares.append(2 * batch.tokens * shape.block_matrices / weight_s / H100.peaks["bf16"])
    assert shares == sorted(shares)
    assert 0.4 < shares[0] < shares[-1] < H100.matrix_share


def test_all_reduces_of_a_group() -> None:
    """On a slower path F and I of a block grow by two ring all-reduces of the stream each, and W by none."""
    shape, batch = MODELS["llama3-8b"].shape, MicrobatchShape(1, 2048, "bf16")
    slow = replace(H100, intra_node=replace(H100.intra_node, latency_s=1.0))
    rates = rates_of(H100, "bf16")
    fast, late = (
        analytic_profile("x", shape, batch, on, rates, degrees=(4,)).layers[1].costs[0] for on in (H100, slow)
    )
    added_s = 2 * (slow.intra_node.ring_s(0.5, 4) - H100.intra_node.ring_s(0.5, 4))
    assert late.forward_s - fast.forward_s == pytest.approx(added_s)
    assert late.backward_input_s - fast.backward_input_s == pytest.approx(added_s)
    assert late.backward_weight_s == fast.backward_weight_s


def measured_like(profile: Profile, corrections: Corrections) -> Profile:
    """What would be measured if a device were as the corrections say."""
    shape, batch = MODELS["gpt-tiny"].shape, MicrobatchShape(4, 128, "fp32")
    calibration = dict.fromkeys(("embedding", "block", "head"), corrections)
    rates = rates_of(H100, "fp32")
    made = analytic_profile("gpt-tiny", shape, batch, H100, rates, corrections=calibration)  # type: ignore[arg-type]
    return replace(profile, layers=made.layers, origin="measured", model={"name": "gpt-tiny"})


@given(*[st.floats(0.2, 5)] * 5)
def test_calibration_finds_the_corrections(
    weight: float, forward: float, back: float, ends: float, step: float
) -> None:
    """A block that was measured on a device tells how fast that is, so that another model's is predicted exactly."""
    found = Corrections(
        Correction(weight, forward), Correction(weight, back), Correction(weight, weight), Correction(step, step)
    )
    measured = measured_like(computed(MODELS["gpt-tiny"].shape, MicrobatchShape(4, 128, "fp32")), found)
    calibration = calibration_of(rates_of(H100, "fp32"), measured)
    for kind in ("block", "head"):
        for name in ("forward", "backward_input", "backward_weight", "optimizer"):
            ours, theirs = getattr(calibration[kind], name), getattr(found, name)
            assert ours.matrix == pytest.approx(theirs.matrix, rel=1e-9)
            assert ours.rest == pytest.approx(theirs.rest, rel=1e-6)


def test_a_calibration_keeps_the_measured_network() -> None:
    """Links that were measured, those of a whole node too, are the computed profile's; others are the GPU's."""
    node = NodeNetwork(8, 1e11, "peers")
    plain = profile_analytic("gpt-tiny", gpu="h100-sxm", dtype="fp32")
    measured = replace(measured_like(plain, Corrections()), network=Network(None, Connection(1e-5, 1e10), node))
    made = profile_analytic("gpt-tiny", gpu="h100-sxm", calibrate=measured)
    assert made.network == replace(measured.network, intra_node=plain.network.intra_node)


def test_unsuitable_calibrations() -> None:
    """A profile that was computed, is of another model, or says not of which, calibrates nothing."""
    rates = rates_of(H100, "fp32")
    profile = computed(MODELS["gpt-tiny"].shape, MicrobatchShape(4, 128, "fp32"))
    with pytest.raises(InvalidInputError, match="cannot calibrate: it was not measured"):
        calibration_of(rates, profile)
    measured = replace(profile, origin="measured")
    with pytest.raises(InvalidInputError, match="there is no model 'x'"):
        calibration_of(rates, measured)
    with pytest.raises(InvalidInputError, match="does not say of which model"):
        calibration_of(rates, replace(measured, model={}))
    with pytest.raises(InvalidInputError, match="it has 10 layers, and gpt-small"):
        calibration_of(rates, replace(measured, model={"name": "gpt-small"}))


def test_sizes_that_do_not_fit_together() -> None:
    """Ranks that do not divide the heads, and sequences longer than the positions, are refused."""
    shape = MODELS["gpt-tiny"].shape
    with pytest.raises(InvalidInputError, match="3 tensor-parallel ranks cannot share 4 heads"):
        computed(shape, MicrobatchShape(1, 8, "fp32"), (1, 3))
    with pytest.raises(InvalidInputError, match="512 positions, fewer than a sequence of 513"):
        computed(shape, MicrobatchShape(1, 513, "fp32"))


def test_gpu_names() -> None:
    """A GPU is found whatever the case and the separators; one that is not known is met with those that are alike."""
    assert gpu("H100 SXM") is gpu("nvidia-h100_sxm") is GPUS["h100-sxm"]
    with pytest.raises(InvalidInputError) as raised:
        gpu("h100")
    assert "did you mean h100-sxm or h100-pcie?" in str(raised.value)
    with pytest.raises(InvalidInputError, match=r"did you mean mi300x\?"):
        gpu("mi300")
    with pytest.raises(InvalidInputError, match="do: known are v100-sxm"):
        gpu("?")


def test_numbers_and_shares_that_a_gpu_does_not_have() -> None:
    """bf16 on a V100, and an efficiency of more than all, are refused."""
    with pytest.raises(InvalidInputError, match="v100-sxm does not compute in bf16"):
        rates_of(gpu("v100-sxm"), "bf16")
    for efficiency in (0.0, 1.5):
        with pytest.raises(InvalidInputError, match="is no share of the peak"):
            rates_of(H100, "bf16", efficiency)


def test_unknown_models() -> None:
    """A name that is not known is met with the nearest, and a file of Python with what to do instead."""
    with pytest.raises(InvalidInputError, match=r"did you mean llama3-70b\?"):
        known_model("llama3-70")
    with pytest.raises(InvalidInputError, match="cannot be told without running it"):
        known_model("mine.py:layers")
