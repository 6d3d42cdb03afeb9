"""Shares of layers: the parts of all ranks come to the whole, and what cannot be shared out is refused."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.profilers.models.gpt import TENSOR_PARALLEL, Block, Embedding, Head, language_model_loss
from rtk.profilers.models.load import load_model
from rtk.profilers.models.presets import GptConfig
from rtk.profilers.models.sharding import (
    Cut,
    TensorParallelPlan,
    VocabularyShare,
    check_share,
    reduction_s,
    shard_of,
    share_loss,
    transformers_plan,
)
from rtk.profilers.models.skeleton import Checkpointed
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Connection

SMALL = GptConfig(blocks=1, width=24, heads=6, vocabulary=11, positions=7)


@pytest.fixture(autouse=True, scope="module")
def _one_core() -> Iterator[None]:
    """Each rank is a thread already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Group:
    """Ranks as threads, which sum up tensors with one another."""

    def __init__(self, degree: int) -> None:
        self._barrier = threading.Barrier(degree, timeout=30)
        self._parts: list[torch.Tensor] = [torch.empty(0)] * degree

    def all_reduce(self, rank: int, part: torch.Tensor) -> torch.Tensor:
        self._parts[rank] = part
        self._barrier.wait()
        total = torch.stack(self._parts).sum(0)
        self._barrier.wait()
        return total

    def stop(self) -> None:
        self._barrier.abort()


def summed(layer: nn.Module, degree: int, plan: TensorParallelPlan, value: torch.Tensor) -> list[torch.Tensor]:
    """What each rank gives out if its partial sums meet those of the others where a real rank's would."""
    group, found = Group(degree), [torch.empty(0)] * degree

    def live(rank: int) -> None:
        try:
            share = shard_of(layer, degree, plan, rank)
            for module in summing(share, layer, plan):
                module.register_forward_hook(lambda _, inputs, output: group.all_reduce(rank, output))
            with torch.no_grad():
                found[rank] = share(value)
        except BaseException:
            group.stop()
            raise

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(degree)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def summing(share: nn.Module, layer: nn.Module, plan: TensorParallelPlan) -> Iterator[nn.Module]:
    rowwise = tuple(pattern for pattern, cut in plan.items() if cut == "rowwise")
    for name, module in share.named_modules():
        if isinstance(module, VocabularyShare) or (name and name.endswith(rowwise)):
            yield module


def bytes_of(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([1, 2, 3, 6]), st.sampled_from([6, 12]), st.integers(0, 99))
def test_parts_of_a_block_sum_up_to_the_block(degree: int, heads: int, seed: int) -> None:
    """With the true slices of its matrices, all ranks' partial sums come to what the whole block gives: biases once."""
    torch.manual_seed(seed)
    block = Block(GptConfig(1, 24, heads, vocabulary=11, positions=7))
    stream = torch.randn(2, 5, 24)
    with torch.no_grad():
        whole = block(stream)
    for output in summed(block, degree, TENSOR_PARALLEL, stream):
        torch.testing.assert_close(output, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_vocabulary_that_is_not_divided_is_filled_up(degree: int) -> None:
    """Ranks hold a part of 11 tokens, rounded up: vectors sum up to the embedding's, logits joined are the head's."""
    embedding, head = Embedding(SMALL), Head(SMALL)
    tokens, stream = torch.randint(11, (2, 5)), torch.randn(2, 5, 24)
    with torch.no_grad():
        vectors, logits = embedding(tokens), head(stream)
    for output in summed(embedding, degree, TENSOR_PARALLEL, tokens):
        torch.testing.assert_close(output, vectors)
    parts = summed(head, degree, TENSOR_PARALLEL, stream)
    assert {part.shape[-1] for part in parts} == {-(-11 // degree)}
    torch.testing.assert_close(torch.cat(parts, -1)[..., :11], logits)


@pytest.mark.parametrize(
    "family",
    [
        {"model_type": "llama", "num_key_value_heads": 4, "intermediate_size": 48},
        {"model_type": "llama", "num_key_value_heads": 2, "intermediate_size": 48},
        {"model_type": "gpt2"},
    ],
)
def test_parts_of_a_transformers_model_sum_up(family: dict[str, Any], tmp_path: Path) -> None:
    """So they do in models of a config.json: with grouped-query attention, also of fewer key-value heads than ranks,
    and with GPT-2's fused and tied matrices."""
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 8, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps({**family, **sizes}))
    model = load_model(str(tmp_path), 2, 7)
    assert model.tensor_parallel is not None
    value = model.example(0)[0]
    for layer in model.layers:
        with torch.no_grad():
            whole = layer.eval()(value)
        parts = summed(layer, 4, model.tensor_parallel, value)
        found = torch.cat(parts, -1)[..., :50] if layer is model.layers[-1] else parts[3]
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
        value = whole


def test_ranks_that_no_key_value_heads_go_round_for_are_refused() -> None:
    """Each rank has whole heads, or all heads have equally many ranks."""
    attention: Any = nn.Module()
    attention.q_proj, attention.k_proj, attention.o_proj = nn.Linear(12, 12), nn.Linear(12, 4), nn.Linear(12, 12)
    attention.num_heads, attention.num_kv_heads, attention.n_rep = 6, 2, 3
    plan: dict[str, Cut] = {"q_proj": "colwise", "k_proj": "colwise", "o_proj": "rowwise"}
    share: Any = shard_of(attention, 6, plan, rank=4)
    assert (share.num_heads, share.num_kv_heads, share.n_rep) == (1, 1, 1)
    assert torch.equal(share.k_proj.weight, attention.k_proj.weight[2:])
    with pytest.raises(InvalidInputError, match=r"degree 3 does not divide the 2 key-value heads(.|\n)*or a multiple"):
        shard_of(attention, 3, plan)


def test_transposed_matrices_are_cut_too() -> None:
    """So are the linear layers of transformers whose matrix is transposed."""
    made: Any = pytest.importorskip("transformers.pytorch_utils").Conv1D
    last, stream = made(4, 12), torch.randn(3, 4)
    nn.init.normal_(last.bias)
    layer = nn.Sequential(made(12, 4), nn.ReLU(), last)
    with torch.no_grad():
        whole = layer(stream)
    for output in summed(layer, 3, {"0": "colwise", "2": "rowwise"}, stream):
        torch.testing.assert_close(output, whole)


def test_a_share_has_the_shapes_of_one_rank() -> None:
    """Columns, rows and vocabulary are divided; norms, positions and the biases of sums are whole; the layer stays."""
    block, embedding = Block(SMALL), Embedding(SMALL)
    before = bytes_of(block)
    share: Any = shard_of(block.to(torch.bfloat16), 3, TENSOR_PARALLEL)
    assert (share.qkv.out_features, share.attention_out.in_features, share.mlp_norm.weight.numel()) == (24, 8, 24)
    assert (share.mlp_in.weight.shape, share.mlp_in.bias.shape) == ((32, 24), (32,))
    assert (share.mlp_out.weight.shape, share.mlp_out.bias.shape) == ((24, 32), (24,))
    assert all(parameter.dtype == torch.bfloat16 and parameter.requires_grad for parameter in share.parameters())
    assert (block.heads, block.qkv.out_features, bytes_of(block)) == (6, 72, before // 2)
    assert bytes_of(shard_of(embedding, 2, TENSOR_PARALLEL)) == 4 * 24 * (6 + 7)
    assert shard_of(block, 1, None) is block


def test_a_share_learns_as_its_layer() -> None:
    """Gradients reach the input and all parameters of a share, also of a checkpointed one."""
    share = shard_of(Checkpointed(Block(SMALL)), 2, TENSOR_PARALLEL)
    stream = torch.randn(2, 5, 24, requires_grad=True)
    torch.autograd.backward(share(stream).sum())
    assert stream.grad is not None
    assert all(parameter.grad is not None for parameter in share.parameters())


def test_a_layer_may_itself_be_cut() -> None:
    """The empty name stands for a layer that is a matrix."""
    plan: TensorParallelPlan = {"": "vocabulary"}
    rows: Any = shard_of(nn.Embedding(10, 4, padding_idx=9), 2, plan)
    assert rows(torch.tensor([[9, 1]])).shape == (1, 2, 4)
    assert rows.rows.weight.shape == (5, 4)
    assert (rows(torch.tensor([9, 1])) == 0).all(-1).tolist() == [True, False]
    head: Any = shard_of(nn.Linear(4, 10), 2, plan)
    assert head(torch.zeros(3, 4)).shape == (3, 5)


def test_targets_are_folded_into_a_part_of_the_vocabulary() -> None:
    """The loss of a part of the logits takes whole-number targets modulo the part, and others as they are."""
    logits = torch.randn(2, 3, 4)
    folded = share_loss(language_model_loss)(logits, torch.full((2, 3), 9))
    torch.testing.assert_close(folded, language_model_loss(logits, torch.full((2, 3), 1)))
    assert share_loss(lambda output, target: target)(logits, torch.tensor(9.5)) == 9.5


@pytest.mark.parametrize(
    ("degree", "plan", "message"),
    [
        (4, TENSOR_PARALLEL, "degree 4 does not divide the 6 heads"),
        (0, TENSOR_PARALLEL, "0 is no tensor-parallel degree"),
        (5, {"mlp_in": "vocabulary", "mlp_out": "rowwise", "qkv": "colwise"}, "degree 5 does not divide the 6 heads"),
        (2, None, "says no tensor-parallel plan"),
        (2, {"mlp_in": "colwise"}, "mlp_in is cut colwise, and nothing of its layer rowwise"),
        (2, {"mlp_out": "rowwise"}, "mlp_out is cut rowwise, and nothing of its layer colwise"),
        (2, {"mlp_norm": "colwise"}, "mlp_norm is a LayerNorm, which cannot be cut colwise"),
        (2, {"": "vocabulary"}, "the layer Block is a Block, which cannot be cut vocabulary"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(degree: int, plan: TensorParallelPlan | None, message: str) -> None:
    """A degree that divides no heads, and a plan that does not suit the layer, are errors that say so."""
    for refuse in (shard_of, check_share):
        with pytest.raises(InvalidInputError, match=message):
            refuse(Block(SMALL), degree, plan)


def test_matrices_without_heads_must_be_divisible() -> None:
    """A degree that does not divide a matrix is refused by the matrix's name."""
    layer = nn.Sequential(nn.Linear(4, 10), nn.Linear(10, 4))
    with pytest.raises(InvalidInputError, match="degree 4 does not divide the 10 outputs of 0"):
        shard_of(layer, 4, {"0": "colwise", "1": "rowwise"})


def test_reductions_are_counted() -> None:
    """A block sums twice in F and twice in I, an embedding in F, a head in I; repeating F repeats all but its last."""
    network, size = Connection(1.0, 100.0), 400.0
    ring_s = 2 * 3 * (1.0 + 1.0)
    layers = (Embedding(SMALL), Block(SMALL), Checkpointed(Block(SMALL)), Head(SMALL), nn.LayerNorm(3))
    found = [reduction_s(layer, TENSOR_PARALLEL, size, 4, network) for layer in layers]
    counts = [(forward / ring_s, backward / ring_s) for forward, backward in found]
    assert counts == [(1, 0), (2, 2), (2, 3), (0, 1), (0, 0)]
    assert reduction_s(layers[1], None, size, 1, network) == (0.0, 0.0)


def test_plans_of_transformers() -> None:
    """A plan of transformers becomes ours, norms of heads whole; one that gathers, or none, becomes none."""
    own = {
        "layers.*.mlp.up": "colwise",
        "layers.*.mlp.down": "rowwise",
        "layers.*.norm": "replicated_with_grad_allreduce",
    }
    plan = transformers_plan("llama", own)
    assert plan is not None
    assert (plan["mlp.up"], plan["mlp.down"], plan["embed_tokens"], plan.get("norm")) == (
        "colwise",
        "rowwise",
        "vocabulary",
        None,
    )
    assert transformers_plan("phi3", {"layers.*.qkv": "colwise_gather_output"}) is None
    assert transformers_plan("bloom", None) is None
