"""What one rank of a tensor-parallel group holds of a layer, and what the sums between the ranks cost.

Megatron-LM's way (Shoeybi et al., 2019, section 3): of two matrices after one another the first is cut by columns, its
outputs, and the second by rows, its inputs, so that each rank computes a part of the sum that the whole layer gives
out, and one all-reduce makes it whole. Attention is cut between heads. An embedding and the head are cut by vocabulary.

A share is measured without its group: it does what a rank does between two all-reduces, on matrices of their true
shapes, and `reduction_s` tells what the all-reduces add.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import TreeSpec

from ...schemas.errors import InvalidInputError
from ...schemas.profile import Connection
from ...schemas.slices import TensorCut
from ...schemas.text import with_article
from .skeleton import Checkpointed, Stub

Cut = Literal["colwise", "rowwise", "vocabulary"]
# How a model's matrices are cut, by the end of the module's name within its layer, such as `self_attn.q_proj`; `*`
# stands for anything, and an empty name for a layer that is itself such a matrix. The first name that fits counts; what
# has none stays whole.
TensorParallelPlan = Mapping[str, Cut]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Attributes that say how many heads a module's forward pass finds in what its matrices give out.
HEAD_COUNTS = {
    **dict.fromkeys(("heads", "num_heads", "num_attention_heads", "n_heads", "n_head"), "heads"),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), "key-value heads"),
}
# Attributes that say how many heads of queries share one of keys and values.
REPEATS = ("num_key_value_groups", "n_rep")
# Further attributes of classes that are divided with their matrices.
WIDTHS = {"GPT2Attention": ("split_size",)}
# Modules that are several matrices side by side, each of which is cut.
SIDE_BY_SIDE = {"qkv": 3, "c_attn": 3}
# What transformers calls embeddings and heads, which its own plans leave whole or gather.
VOCABULARY = ("embed_tokens", "embed_in", "wte", "lm_head", "embed_out")
GPT2: TensorParallelPlan = {
    "attn.c_attn": "colwise",
    "attn.c_proj": "rowwise",
    "mlp.c_fc": "colwise",
    "mlp.c_proj": "rowwise",
}


def shard_of(layer: nn.Module, degree: int, plan: TensorParallelPlan | None, rank: int = 0) -> nn.Module:
    """What one of `degree` ranks holds of a layer; the layer stays as it is.

    The share maps a whole input to an output of the same shape as the layer's, which is this rank's part of a sum; a
    layer cut by vocabulary and no embedding gives out its part of the logits (`share_loss`). Its weights are the
    layer's at their places, so that the sums of all ranks' parts give what the layer gives; rank 0 adds the bias of a
    matrix cut by rows, and others add zeros. A vocabulary that the degree does not divide is filled up with zeros.
    Where there are more ranks than key-value heads, several have the same one.

    Args:
        layer: any module with nn.Linear, nn.Embedding or transformers' Conv1D (GPT-2) in it, on any device.
        degree: ranks of the group. With 1 the layer itself is returned.
        plan: of the model; None where nobody has said one.
        rank: 0 to degree - 1.

    Raises:
        InvalidInputError: the degree divides no such layer, or the plan does not suit it.
    """
    cuts = check_share(layer, degree, plan)
    if degree == 1:
        return layer
    share = divided(layer, cuts, degree, rank, alone=True)
    for name, cut in cuts.items():
        if cut == "vocabulary":
            rows = share.get_submodule(name)
            if isinstance(rows, nn.Embedding):  # it has to know which rows it has
                own = VocabularyShare(rows, rank * rows.num_embeddings)
                if not name:
                    return own
                share.set_submodule(name, own)
    return share


def divided(layer: nn.Module, cuts: Mapping[str, Cut], degree: int, rank: int, alone: bool) -> nn.Module:
    """A copy of a layer with the parameters that a rank holds, and the numbers of heads and sizes that go with them.

    Args:
        layer: stays as it is.
        cuts: what `check_share` found.
        degree: ranks of the group, more than 1.
        rank: 0 to degree - 1.
        alone: whether it is to compute without its group: what comes short is filled up with zeros, and biases of sums
            are added by rank 0 only. Else each rank has such a bias, and the last ones may have fewer rows.
    """
    # A deep copy takes what it is told for an object: narrow parameters for whole ones, and itself for what torch warns
    # about when it is copied.
    held = [value for module in layer.modules() for value in vars(module).values()]
    instead: dict[int, Any] = {id(value): value for value in held if isinstance(value, TreeSpec)}
    heads = key_value_heads(layer, cuts)
    for name, cut in cuts.items():
        module = layer.get_submodule(name)
        for kind, parameter in module.named_parameters(recurse=False):
            own = _own_part(
                parameter.detach(), tensor_cut(name, module, cut, kind, heads.get(name)), degree, rank, alone
            )
            instead[id(parameter)] = nn.Parameter(own, requires_grad=parameter.requires_grad)
    share = copy.deepcopy(layer, instead)
    for holder, attribute in _counted(share, cuts):
        setattr(holder, attribute, max(1, getattr(holder, attribute) // degree))
    for parent, count in {name.rpartition(".")[0]: count for name, count in heads.items() if degree > count}.items():
        attention = share.get_submodule(parent)
        for attribute in REPEATS:
            if isinstance(getattr(attention, attribute, None), int):
                setattr(attention, attribute, getattr(attention, attribute) * count // degree)
    for name in cuts:
        _correct_sizes(share.get_submodule(name))
    return share


def key_value_heads(layer: nn.Module, cuts: Mapping[str, Cut]) -> dict[str, int]:
    """How many heads matrices of keys and values have, by name, where they are fewer than those of queries.

    They are told by what they give out: so many times less than the matrix of queries beside them.

    Args:
        layer: whole.
        cuts: what `cuts_of` found.
    """
    counts: dict[str, dict[str, int]] = {}
    for holder, attribute, parent in _counting(layer, cuts, with_config=True):
        counts.setdefault(parent, {}).setdefault(HEAD_COUNTS.get(attribute, attribute), getattr(holder, attribute))
    found: dict[str, int] = {}
    for parent, count in counts.items():
        heads, fewer = count.get("heads", 0), count.get("key-value heads", 0)
        outputs = {
            name: layer.get_submodule(name).get_parameter("weight").shape[0]
            for name, cut in cuts.items()
            if cut == "colwise" and name.rpartition(".")[0] == parent
        }
        if 0 < fewer < heads:
            queries = max(outputs.values())
            found |= {name: fewer for name, size in outputs.items() if size * heads == queries * fewer}
    return found


def tensor_cut(name: str, module: nn.Module, cut: Cut, kind: str, heads: int | None = None) -> TensorCut | None:
    """How a parameter of a module that is cut is divided; None for a bias of a sum, which is whole.

    Args:
        name: of the module within its layer.
        module: whole.
        cut: the module's.
        kind: "weight" or "bias".
        heads: of a matrix of keys or values, where they are fewer than those of queries.
    """
    parts = SIDE_BY_SIDE.get(name.rpartition(".")[2], 1) if cut == "colwise" else 1
    if kind != "weight" and cut == "rowwise":
        return None
    dimension = _dimensions(module)[cut] if kind == "weight" else 0
    return TensorCut(dimension, module.get_parameter(kind).shape[dimension], parts, heads)


def check_share(layer: nn.Module, degree: int, plan: TensorParallelPlan | None) -> dict[str, Cut]:
    """What `shard_of` would cut, by module names; it copies nothing, so that a whole model can be checked beforehand.

    Args:
        layer: as in `shard_of`, like `degree` and `plan`.

    Raises:
        InvalidInputError: the degree divides no such layer, or the plan does not suit it.
    """
    if degree < 1:
        raise InvalidInputError(f"{degree} is no tensor-parallel degree", where="--tp", fix="give 1 or more")
    if degree == 1:
        return {}
    cuts = cuts_of(layer, plan)
    # The degree has to divide what is cut, and parts must be summed within the layer.
    if ("colwise" in cuts.values()) != ("rowwise" in cuts.values()):
        alone, other = ("colwise", "rowwise") if "colwise" in cuts.values() else ("rowwise", "colwise")
        name = next(name for name, cut in cuts.items() if cut == alone)
        raise InvalidInputError(
            f"{_called(name, layer)} is cut {alone}, and nothing of its layer {other}",
            where="the tensor-parallel plan",
            fix="cut the first matrix of a layer colwise and the last one rowwise",
        )
    fewer = key_value_heads(layer, cuts)
    for holder, attribute in _counted(layer, cuts, with_config=True):
        of, count = HEAD_COUNTS.get(attribute), getattr(holder, attribute)
        if of is not None and not (of == "key-value heads" and fewer and degree % count == 0):
            _require_divisor(degree, count, of, or_multiple=of == "key-value heads" and bool(fewer))
    for name, cut in cuts.items():
        module = layer.get_submodule(name)
        if cut != "vocabulary":
            side = "outputs" if cut == "colwise" else "inputs"
            parts = SIDE_BY_SIDE.get(name.rpartition(".")[2], 1) if cut == "colwise" else 1
            size = module.get_parameter("weight").shape[_dimensions(module)[cut]] // parts
            _require_divisor(min(degree, fewer.get(name, degree)), size, f"{side} of {_called(name, module)}")
    return cuts


def reduction_s(
    layer: nn.Module, plan: TensorParallelPlan | None, stream_bytes: float, degree: int, connection: Connection
) -> tuple[float, float]:
    """What all-reduces between the ranks add to a layer's F and to its I, in s, each a ring.

    F sums behind every matrix cut by rows and behind the embedding; I sums behind the matrices cut by columns, which
    are as many times, and behind the head. A checkpointed layer repeats the sums of F in I, but for the last, whose
    result no backward pass reads. The three numbers a token that ranks exchange for the loss are left out.

    Args:
        layer: the whole layer.
        plan: of the model.
        stream_bytes: of the tensor between two blocks for one micro-batch: what an embedding or a block gives out, and
            what a head takes in.
        degree: ranks of the group; 1 adds nothing.
        connection: the path between them.
    """
    if degree == 1:
        return 0.0, 0.0
    forward = backward = 0
    for name, cut in cuts_of(layer, plan).items():
        is_embedding = isinstance(layer.get_submodule(name), nn.Embedding)
        forward += cut == "rowwise" or (cut == "vocabulary" and is_embedding)
        backward += cut == "rowwise" or (cut == "vocabulary" and not is_embedding)
    if isinstance(layer, Checkpointed):
        backward += max(forward - 1, 0)
    ring_s = connection.ring_s(stream_bytes, degree)
    return forward * ring_s, backward * ring_s


def share_loss(loss: Loss) -> Loss:
    """A model's loss for logits of a part of the vocabulary: whole-number targets are folded into it.

    Each rank computes the loss from its part of the logits. Which of its columns holds the target does not change how
    long that takes.
    """

    def folded(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss(output, target if target.is_floating_point() else target % output.shape[-1])

    return folded


def transformers_plan(model_type: str, own: Mapping[str, str] | None) -> TensorParallelPlan | None:
    """A transformers model's plan in ours; None where it has none, or one that gathers what it has cut.

    Args:
        model_type: of its config.
        own: the config's `base_model_tp_plan`, such as {"layers.*.self_attn.q_proj": "colwise", …}.
    """
    known = {"colwise": "colwise", "rowwise": "rowwise", "embedding_rowwise": "vocabulary"}
    # A norm of whole heads is held by every rank.
    said = {name: style for name, style in (own or {}).items() if style != "replicated_with_grad_allreduce"}
    if model_type == "gpt2":
        said = dict(GPT2)
    if not said or any(style not in known for style in said.values()):
        return None
    blocks = {name.rpartition("*.")[2]: known[style] for name, style in said.items()}
    return {**blocks, **dict.fromkeys(VOCABULARY, "vocabulary")}  # type: ignore[dict-item]


class VocabularyShare(nn.Module):
    """A rank's rows of an embedding: tokens (any shape) to vectors, zeros for the tokens of other ranks."""

    def __init__(self, rows: nn.Embedding, first: int) -> None:
        super().__init__()
        self.rows, self.first = rows, first
        rows.padding_idx = None  # says which row learns nothing, and may be another rank's

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up what is here."""
        places = tokens - self.first
        elsewhere = (places < 0) | (places >= self.rows.num_embeddings)
        vectors: torch.Tensor = self.rows(places.masked_fill(elsewhere, 0))
        return vectors.masked_fill(elsewhere.unsqueeze(-1), 0.0)


def cuts_of(layer: nn.Module, plan: TensorParallelPlan | None) -> dict[str, Cut]:
    """The modules of a layer that the plan cuts, by name, whatever the degree.

    Raises:
        InvalidInputError: there is no plan, or it does not suit the layer.
    """
    if plan is None:
        raise InvalidInputError(
            "this model says no tensor-parallel plan",
            where="--tp",
            fix="profile degree 1 only, or define tensor_parallel = {name: 'colwise' | 'rowwise' | 'vocabulary'} "
            "beside the factory",
        )
    cuts = {}
    for name, module in layer.named_modules():
        cut = next(
            (cut for pattern, cut in plan.items() if (fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}"))),
            None,
        )
        if cut is not None and not isinstance(module, Stub):
            if cut not in _dimensions(module):
                raise InvalidInputError(
                    f"{_called(name, module)} is {with_article(type(module).__name__)}, which cannot be cut {cut}",
                    where="the tensor-parallel plan",
                    fix="linear layers are cut colwise, rowwise or by vocabulary, embeddings by vocabulary",
                )
            cuts[name] = cut
    return cuts


def _called(name: str, module: nn.Module) -> str:
    return name or f"the layer {type(module).__name__}"


def _dimensions(module: nn.Module) -> dict[Cut, int]:
    """Which dimension of a module's weight each cut divides."""
    if isinstance(module, nn.Linear):
        return {"colwise": 0, "vocabulary": 0, "rowwise": 1}
    if isinstance(module, nn.Embedding):
        return {"vocabulary": 0}
    # Importing transformers to ask would take seconds.
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return {"colwise": 1, "vocabulary": 1, "rowwise": 0}
    return {}


def _require_divisor(degree: int, count: int, of: str, *, or_multiple: bool = False) -> None:
    if count % degree:
        raise InvalidInputError(
            f"degree {degree} does not divide the {count} {of}",
            where="--tp",
            fix=f"take a divisor {'or a multiple ' if or_multiple else ''}of {count}",
        )


def _counted(layer: nn.Module, cuts: Mapping[str, Cut], with_config: bool = False) -> Iterator[tuple[Any, str]]:
    """The attributes, with whom they belong to, that count what the matrices cut by columns give out."""
    return ((holder, attribute) for holder, attribute, _ in _counting(layer, cuts, with_config))


def _counting(layer: nn.Module, cuts: Mapping[str, Cut], with_config: bool) -> Iterator[tuple[Any, str, str]]:
    """The same with the name of the module in which these matrices are."""
    for parent in {name.rpartition(".")[0]: None for name, cut in cuts.items() if cut == "colwise"}:
        module = layer.get_submodule(parent)
        holders = [module, getattr(module, "config", None)] if with_config else [module]
        for holder in holders:
            for attribute in (*HEAD_COUNTS, *WIDTHS.get(type(holder).__name__, ())):
                if isinstance(getattr(holder, attribute, None), int):
                    yield holder, attribute, parent


def _own_part(whole: torch.Tensor, cut: TensorCut | None, degree: int, rank: int, alone: bool) -> torch.Tensor:
    """A rank's part of a parameter (`divided`)."""
    if cut is None:
        return torch.zeros_like(whole) if alone and rank else whole.clone()
    pieces = []
    for first, stop in cut.spans(degree, rank):
        # Pads are given from the last dimension backwards, two numbers each.
        missing = cut.width(degree) - (stop - first) if alone else 0
        pads = [0, 0] * (whole.dim() - 1 - cut.dimension) + [0, missing]
        pieces.append(F.pad(whole.narrow(cut.dimension, first, stop - first), pads))
    return torch.cat(pieces, cut.dimension)


def _correct_sizes(module: Any) -> None:
    """What a module says of its size follows its weight."""
    first, second = module.weight.shape
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = first, second
    elif isinstance(module, nn.Embedding):
        module.num_embeddings = first
    else:
        module.nx, module.nf = first, second
