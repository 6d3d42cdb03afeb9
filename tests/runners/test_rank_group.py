"""Ranks that are processes compute together what one computes alone: their layers are cut, and they sum over gloo."""

import os
import signal
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.presets import GptConfig
from rtk.profilers.models.sharding import Cut
from rtk.runners.torch.gloo import GlooTransport
from rtk.runners.torch.groups import PrefixStore, TCPStore
from rtk.runners.torch.rank_group import RankGroup
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import Loss, TorchStage
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.slices import CUT, TensorCut, pieces_for

if __name__ != "worker":
    from ..warm import fork

WIDTH, WORDS, LENGTH, MICROBATCHES = 32, 37, 5, 2
Found = dict[str, torch.Tensor]


class GroupedAttention(nn.Module):
    """Llama's attention with fewer heads of keys and values than of queries, and Qwen's norms of heads."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.n_rep = heads, groups, heads // groups
        narrow = WIDTH // heads * groups
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, narrow, bias=False), nn.Linear(WIDTH, narrow, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(WIDTH // heads), nn.RMSNorm(WIDTH // heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend causally."""
        query, key, value = (
            one(x).unflatten(-1, (-1, self.q_norm.normalized_shape[0])).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        key, value = (one.repeat_interleave(self.n_rep, 1) for one in (self.k_norm(key), value))
        mixed = F.scaled_dot_product_attention(self.q_norm(query), key, value, is_causal=True)
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class GroupedBlock(nn.Module):
    """A block of Llama's kind."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.self_attn = GroupedAttention(heads, groups)
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down_proj = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then a gated network."""
        x = x + self.self_attn(self.norms[0](x))
        y = self.norms[1](x)
        out: torch.Tensor = x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))
        return out


class Named(nn.Module):
    """A module under a name, which calls it."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the module."""
        out: torch.Tensor = self.get_submodule(self.name)(x)
        return out


LLAMA: dict[str, Cut] = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), "colwise")
LLAMA.update({"o_proj": "rowwise", "down_proj": "rowwise", "embed": "vocabulary", "lm_head": "vocabulary"})
PLANS = {"gpt": ModelCuts(TENSOR_PARALLEL), "llama": ModelCuts(LLAMA)}


def grouped_layers(groups: int = 4) -> list[nn.Module]:
    """All layers, with eight heads of queries and so many of keys and values."""
    head, embedding = nn.Linear(WIDTH, WORDS, bias=False), nn.Embedding(WORDS, WIDTH, padding_idx=WORDS - 1)
    blocks = (GroupedBlock(8, groups) for _ in range(2))
    return [Named("embed", embedding), *blocks, Named("lm_head", head)]


def layers_of(family: str) -> list[nn.Module]:
    """All layers of a small model in float64, the same each time; biases and norms as after some training."""
    torch.manual_seed(3)
    if family == "gpt":
        layers = gpt_layers(GptConfig(blocks=2, width=WIDTH, heads=8, vocabulary=WORDS, positions=LENGTH))
    else:
        layers = grouped_layers()
    for layer in layers:
        for parameter in layer.double().parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return layers


def trained(layers: Sequence[nn.Module], loss: Loss, is_split: bool) -> Found:
    """Losses and gradients, by the names of a whole stage, of some micro-batches by F and B, or by F, I and W."""
    stage = TorchStage(layers, loss, is_split)
    tokens = torch.randint(WORDS, (MICROBATCHES, 2, LENGTH + 1), generator=torch.Generator().manual_seed(7))
    tokens[0, 0, -2:] = WORDS - 1
    found = {}
    for number, rows in enumerate(tokens):
        targets = rows[:, 1:].clone()
        targets[0, 0] = -100  # is ignored
        found[f"loss {number}"] = stage.forward(number, rows[:, :-1], targets)
    for number in range(MICROBATCHES):
        if is_split:
            stage.backward_input(number)
            stage.backward_weight(number)
        else:
            stage.backward(number)
    for name, parameter in stage.layers.named_parameters():
        assert parameter.grad is not None, name
        found[name.replace(f"{CUT}.", "")] = parameter.grad
    return found


def trained_together(family: str, group: RankGroup, is_split: bool) -> Found:
    """The same of what a rank of a group has of the model."""
    cuts, layers = PLANS[family], layers_of(family)
    loss = cuts.loss(language_model_loss, layers[-1], group)
    return trained([cuts.cut(layer, group) for layer in layers], loss, is_split)


def differences(family: str, whole: Found, ranks: Sequence[Found]) -> Iterator[tuple[str, float]]:
    """How far what ranks have, put together, is from the whole; what each has whole is compared for each."""
    cut: dict[str, TensorCut] = {
        f"{number}.{name}": one
        for number, layer in enumerate(layers_of(family))
        for name, one in PLANS[family].tensors(layer).items()
    }
    for name, wanted in whole.items():
        if name not in cut:
            yield from ((name, float((wanted - rank[name]).abs().max())) for rank in ranks)
            continue
        dimension, found = cut[name].dimension, []
        for piece in pieces_for(cut[name], 1, 0, len(ranks)):
            first, stop = piece.taken
            found.append(ranks[piece.source][name].narrow(dimension, first, stop - first))
        yield name, float((wanted - torch.cat(found, dimension)).abs().max())


CASES = [(family, degree, is_split) for family in PLANS for degree in (2, 4) for is_split in (False, True)]


def work(rank: int, port: int, folder: str) -> None:
    """A rank's process: all cases, those of two ranks by the first two."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    everyone, pair = (0, 1, 2, 3), (0, 1)
    transport = GlooTransport(store, rank, 4, [everyone, pair] if rank in pair else [everyone])
    found = {}
    for family, degree, is_split in CASES:
        if rank < degree:
            group = RankGroup(degree, rank, partial(transport.all_reduce, everyone[:degree]))
            found[family, degree, is_split] = trained_together(family, group, is_split)
    torch.save(found, Path(folder) / f"{rank}.pt")
    transport.all_reduce(everyone, torch.zeros(1))
    lose_rank(rank, store, Path(folder) / f"{rank}.txt")


DEAD = 2


def lose_rank(rank: int, store: TCPStore, said: Path) -> None:
    """Be one of the four ranks of a worker, of which one dies while the others compute; say what has become of it."""
    cost = LayerCost(1.0, 1.0, 1.0, tensor_parallel=4)
    plan = plan_pipeline(Profile((Layer((cost,)),) * 4), Shape(1, 1, 1, tensor_parallel=4), "gpipe")
    optimizer = partial(torch.optim.SGD, lr=0.1)
    runner = PlanRunner(
        plan,
        layers_of("gpt"),
        language_model_loss,
        optimizer,
        rank=rank,
        world_size=4,
        store=PrefixStore("dying", store),
        cuts=PLANS["gpt"],
    )
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    runner.step([(tokens, tokens)])
    if rank == DEAD:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        runner.step([(tokens, tokens)])
    except RuntimeFailedError as error:
        said.write_text(error.what)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, int, bool], Found]]:
    """What four processes have found, each of what it was in; of one that dies then all others learn."""
    folder = tmp_path_factory.mktemp("ranks")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [fork(__file__, rank, store.port, str(folder)) for rank in range(4)]
    for rank, process in enumerate(processes):
        process.join(120)
        assert process.exitcode == (-signal.SIGKILL if rank == DEAD else 0)
    for rank in {0, 1, 2, 3} - {DEAD}:
        assert "connection to another worker broke" in (folder / f"{rank}.txt").read_text()
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


@pytest.mark.parametrize(("family", "degree", "is_split"), CASES)
def test_ranks_learn_what_one_learns(
    family: str, degree: int, is_split: bool, ranks: list[dict[tuple[str, int, bool], Found]]
) -> None:
    """Losses and all gradients are those of the whole stage to 1e-12 of float64, whatever of it is cut, with B as with
    I and W: biases behind sums, norms, norms of heads, grouped heads, and words that the degree does not divide."""
    whole = trained(layers_of(family), language_model_loss, is_split)
    found = [rank[family, degree, is_split] for rank in ranks[:degree]]
    assert max(difference for _, difference in differences(family, whole, found)) < 1e-12


@pytest.mark.parametrize("family", list(PLANS))
def test_what_ranks_have_whole_is_equal_to_the_bit(
    family: str, ranks: list[dict[tuple[str, int, bool], Found]]
) -> None:
    """Norms, positions and biases of sums have equal gradients on all ranks, so that equal ones stay equal."""
    cut = {f"{n}.{name}" for n, layer in enumerate(layers_of(family)) for name in PLANS[family].tensors(layer)}
    first, *others = (rank[family, 4, True] for rank in ranks)
    whole = first.keys() - cut
    assert len(whole) > 4
    assert all(torch.equal(first[name], other[name]) for name in whole for other in others)


def test_what_is_put_off_waits_for_nobody() -> None:
    """F and I sum between the ranks, and W never: it may come at any time, on each rank at another."""
    sums: list[str] = []
    group = RankGroup(2, 0, lambda tensor: sums.append(phase))
    layers = layers_of("llama")
    stage = TorchStage([PLANS["llama"].cut(layer, group) for layer in layers[1:3]])
    phase = "F"
    stage.forward(0, torch.ones(1, LENGTH, WIDTH, dtype=torch.float64))
    phase = "I"
    stage.backward_input(0, torch.ones(1, LENGTH, WIDTH, dtype=torch.float64))
    phase = "W"
    stage.backward_weight(0)
    # Behind two matrices of each block; before attention and network, and each of two norms of heads.
    assert (sums.count("F"), sums.count("I"), sums.count("W")) == (4, 8, 0)


def test_what_is_random_is_alike_outside_and_unlike_inside() -> None:
    """Dropout of what all ranks have is the same on all, and that of a rank's own columns is its own."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
            self.inside: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = self.first(F.dropout(x, 0.5))
            self.inside.append(F.dropout(torch.ones_like(wide), 0.5))
            return F.dropout(torch.ones_like(self.last(wide)), 0.5)

    cuts, found = ModelCuts({"first": "colwise", "last": "rowwise"}), []
    for rank in range(2):
        share: Any = cuts.cut(Dropping(), RankGroup(2, rank))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            found.append((share(torch.ones(4, 64)), share.inside[0]))
    (outside, inside), (other_outside, other_inside) = found
    assert torch.equal(outside, other_outside)
    assert not torch.equal(inside, other_inside)


class Middle(nn.Module):
    """Dropout between two matrices; the masks are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 64), nn.Linear(64, 8)
        self.masks: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.first(x)
        self.masks.append(F.dropout(torch.ones_like(wide), 0.5))
        out: torch.Tensor = self.last(wide * self.masks[-1])
        return out


def test_recomputation_draws_the_masks_again() -> None:
    """Of several micro-batches under way each one's masks are drawn again as they were, though torch does not recompute
    a layer to its end."""
    share: Any = ModelCuts({"first": "colwise", "last": "rowwise"}).cut(Middle(), RankGroup(2, 1))
    outputs = []
    with torch.random.fork_rng(devices=[]):
        for number in range(3):
            torch.manual_seed(number)
            outputs.append(checkpoint(share, torch.ones(4, 8, requires_grad=True), use_reentrant=False))
        for output in outputs:
            output.sum().backward()
    assert len(share.masks) == 6
    assert all(torch.equal(share.masks[number], share.masks[number + 3]) for number in range(3))
    assert not torch.equal(share.masks[0], share.masks[1])


def test_tokens_beyond_the_vocabulary_are_no_words_of_others() -> None:
    """A token or target that no rank has fails, as in a whole layer, and is not taken for another rank's."""
    layers, group = layers_of("gpt"), RankGroup(2, 0)
    tokens = torch.tensor([[0, WORDS - 1, WORDS]])
    first, loss = PLANS["gpt"].cut(layers[0], group), PLANS["gpt"].loss(language_model_loss, layers[-1], group)
    first(tokens[:, :2])
    with pytest.raises(RuntimeError, match="beyond the vocabulary"):
        first(tokens)
    logits = torch.zeros(1, 3, TensorCut(0, WORDS).width(2))
    loss(logits[:, :2], tokens[:, :2])
    with pytest.raises(RuntimeError, match="beyond the vocabulary"):
        loss(logits, tokens)


@pytest.mark.parametrize("is_leaf", [True, False])
def test_what_has_entered_is_freed(is_leaf: bool) -> None:
    """Of a micro-batch that is over a cut layer keeps nothing, whether its input was received or computed."""
    share = ModelCuts({"first": "colwise", "last": "rowwise"}).cut(Middle(), RankGroup(2, 0))
    given = torch.ones(4, 8, requires_grad=True)
    entering = given if is_leaf else given * 2
    share(entering).sum().backward()
    seen = weakref.ref(entering)
    del given, entering
    assert seen() is None


if __name__ == "worker":
    work(*globals()["ARGUMENTS"])
