"""A model's layers cut among the ranks of a worker, which compute together what the whole layers do.

The cuts are those of `sharding.py`, by which a profile measures one rank alone: with them a run does what was measured.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ...schemas.errors import InvalidInputError
from ...schemas.protocols import TensorGroup
from ...schemas.slices import CUT, TensorCut
from .gpt import language_model_loss
from .load import default_loss
from .model import LossInFloat32
from .sharding import TensorParallelPlan, check_share, cuts_of, divided, key_value_heads, tensor_cut

# Norms of single heads, whole on every rank, which has gradients of its own heads only.
HEAD_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
AnyLoss = Callable[[Any, Any], Any]  # of output and target: a mean, or (sum, count)
IGNORED = -100  # a target that counts nothing, as torch's cross entropy has it


class ModelCuts:
    """How a model's layers are cut; what a run of a plan of several GPUs a worker needs (`PlanRunner`'s `cuts`).

    Args:
        plan: which matrices are cut how, as for `rtk profile --tp`, such as `Model.tensor_parallel`; for a model of
            your own {name: "colwise" | "rowwise" | "vocabulary"}.
    """

    def __init__(self, plan: TensorParallelPlan | None) -> None:
        self._plan = plan

    def check(self, layer: nn.Module, degree: int, name: str) -> None:
        """Raise InvalidInputError, with the layer's name, unless so many ranks can share it; nothing is copied."""
        for path, cut in check_share(layer, degree, self._plan).items():
            module = layer.get_submodule(path)
            where = f"{name}, {path or 'itself'}"
            if not isinstance(module, nn.Linear | nn.Embedding):
                raise InvalidInputError(
                    f"{type(module).__name__} is cut to be profiled only", where=where, fix="take an nn.Linear"
                )
            words = module.weight.shape[0]
            first, stop = TensorCut(0, words).spans(degree, degree - 1)[0]
            if cut == "vocabulary" and first == stop:
                raise InvalidInputError(
                    f"a vocabulary of {words} leaves nothing to the last of {degree} ranks",
                    where=where,
                    fix="take a smaller degree, or a larger vocabulary",
                )

    def tensors(self, layer: nn.Module) -> dict[str, TensorCut]:
        """How the parameters of a whole layer that are cut are divided, by their names; others are whole."""
        found = {}
        cuts = {} if self._plan is None else cuts_of(layer, self._plan)
        heads = key_value_heads(layer, cuts)
        for name, cut in cuts.items():
            module = layer.get_submodule(name)
            for kind, _ in module.named_parameters(recurse=False):
                how = tensor_cut(name, module, cut, kind, heads.get(name))
                if how is not None:
                    found[f"{name}.{kind}".lstrip(".")] = how
        return found

    def cut(self, layer: nn.Module, group: TensorGroup) -> nn.Module:
        """What a rank has of a layer: it gives what the layer gives, and what it learns is the layer's slice.

        Where ranks repeat a key-value head each has the gradients of its own queries only; who sums the gradients of
        peers sums these as well (`TensorCut.most`), so that W waits for nobody.

        Args:
            layer: whole, with its values; it stays as it is.
            group: the ranks that share it.
        """
        cuts = check_share(layer, group.degree, self._plan)
        if group.degree == 1:
            return layer
        share = divided(layer, cuts, group.degree, group.rank, alone=False)
        region = _Region(group)
        for number, (name, cut) in enumerate(cuts.items()):
            module: Any = share.get_submodule(name)
            own: nn.Module
            if cut == "colwise":
                own = ColumnCut(module, region, number)
            elif cut == "rowwise":
                own = RowCut(module, region)
            elif isinstance(module, nn.Embedding):
                whole: Any = layer.get_submodule(name)
                own = WordCut(module, whole.padding_idx, group, whole.num_embeddings)
            else:
                own = LogitCut(module, group)
            if not name:
                return own
            share.set_submodule(name, own)
        for parameter in _of_head_norms(share):
            parameter.register_hook(group.total)  # type: ignore[no-untyped-call]
        return share

    def name_in_cut(self, layer: nn.Module, name: str) -> str:
        """What a parameter of a whole layer is called in one that was cut."""
        path, _, kind = name.rpartition(".")
        return f"{path}.{CUT}.{kind}".lstrip(".") if name in self.tensors(layer) else name

    def loss(self, loss: AnyLoss, last: nn.Module, group: TensorGroup) -> AnyLoss:
        """The loss of a rank's logits, where the last layer gives some of the words' only.

        Cross entropy is computed from each rank's logits; for another loss they are put together, on every rank.

        Args:
            loss: of whole logits.
            last: the whole last layer, which ends with the logits if it has a linear layer cut by vocabulary.
            group: the ranks that share it.
        """
        cuts = check_share(last, group.degree, self._plan)
        heads = [name for name, cut in cuts.items() if cut == "vocabulary"]
        heads = [name for name in heads if isinstance(last.get_submodule(name), nn.Linear)]
        if not heads:
            return loss
        words = len(last.get_submodule(heads[-1]).get_parameter("weight"))
        inner = loss.loss if isinstance(loss, LossInFloat32) else loss
        is_cross_entropy = inner in (language_model_loss, default_loss)

        def joint(output: torch.Tensor, target: torch.Tensor) -> Any:
            if is_cross_entropy and not target.is_floating_point():
                return cross_entropy_in_parts(output, target, words, group)
            return loss(group.gather(output, words), target)

        return joint


def _of_head_norms(share: nn.Module) -> Iterator[nn.Parameter]:
    for name, module in share.named_modules():
        if name.rpartition(".")[2] in HEAD_NORMS:
            yield from (one for one in module.parameters() if one.requires_grad)


class _Region:
    """Where a layer computes with a rank's own columns: what is random there is unlike on each rank, else alike.

    It begins where what all have enters matrices cut by columns, and ends with the sum behind one cut by rows. A tensor
    that several matrices take enters once, for one sum of its gradient. The runner seeds all ranks alike before each
    layer, for what is outside.
    """

    def __init__(self, group: TensorGroup) -> None:
        self.group = group
        self._outside: torch.Tensor | None = None
        # Not kept by the tensor itself: what autograd holds of one that refers to what was made of it is never freed.
        self._entered: tuple[torch.Tensor, torch.Tensor] | None = None

    def enter(self, tensor: torch.Tensor, number: int, is_random: bool) -> torch.Tensor:
        if self._entered is None or self._entered[0] is not tensor:
            self._entered = tensor, self.group.enter(tensor)
        entered = self._entered[1]
        if is_random and self._outside is None:
            generator = _generator(tensor.device)
            self._outside = generator.get_state()
            # Odd numbers keep ranks, and the regions of a layer, apart.
            mixed = generator.initial_seed() + 0xD1342543DE82EF95 * (number * self.group.degree + self.group.rank + 1)
            generator.manual_seed(mixed % 2**63)
        return entered

    def leave(self, part: torch.Tensor) -> torch.Tensor:
        whole = self.group.leave(part)
        if self._outside is not None:
            _generator(part.device).set_state(self._outside)
        self.abandon()
        return whole

    def abandon(self) -> None:
        """Nothing has been entered; randomness stays as it is."""
        self._outside = self._entered = None


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


class ColumnCut(nn.Module):
    """A rank's columns, that is outputs, of a linear layer: of what all ranks have it makes what is this rank's."""

    def __init__(self, linear: nn.Linear, region: _Region, number: int) -> None:
        super().__init__()
        self.add_module(CUT, linear)
        self._region, self._number = region, number

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (..., all inputs) to (..., own outputs)."""
        entered = self._region.enter(inputs, self._number, self.training)
        outputs: torch.Tensor = self.get_submodule(CUT)(entered)
        return outputs


class RowCut(nn.Module):
    """A rank's rows, that is inputs, of a linear layer, and the sum over all ranks, to which the bias is added once.

    Each rank has the bias, with equal gradients.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, region: _Region) -> None:
        super().__init__()
        self.register_parameter("bias", linear.bias)
        linear.register_parameter("bias", None)
        self.add_module(CUT, linear)
        self._region = region

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (..., own inputs) to (..., all outputs)."""
        try:
            part = self.get_submodule(CUT)(inputs)
        except BaseException:
            # Torch ends the recomputation of a checkpointed layer by an error, once the last tensor is there.
            self._region.abandon()
            raise
        whole = self._region.leave(part)
        return whole if self.bias is None else whole + self.bias.to(whole.dtype)


class LogitCut(nn.Module):
    """A rank's words of a head: of what all ranks have it makes its words' logits."""

    def __init__(self, linear: nn.Linear, group: TensorGroup) -> None:
        super().__init__()
        self.add_module(CUT, linear)
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (..., width) to (..., own words)."""
        logits: torch.Tensor = self.get_submodule(CUT)(self._group.enter(inputs))
        return logits


class WordCut(nn.Module):
    """A rank's words of an embedding, and the sum over all ranks, of which one has a word's vector."""

    def __init__(self, rows: nn.Embedding, padding: int | None, group: TensorGroup, words: int) -> None:
        super().__init__()
        ((self._first, self._stop),) = TensorCut(0, words).spans(group.degree, group.rank)
        is_own = padding is not None and self._first <= padding < self._stop
        rows.padding_idx = padding - self._first if is_own and padding is not None else None
        self.add_module(CUT, rows)
        self._group, self._words = group, words

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up the tokens, of any shape."""
        _require_words((tokens >= 0) & (tokens < self._words))
        elsewhere = (tokens < self._first) | (tokens >= self._stop)
        vectors: torch.Tensor = self.get_submodule(CUT)((tokens - self._first).masked_fill(elsewhere, 0))
        return self._group.leave(vectors.masked_fill(elsewhere.unsqueeze(-1), 0.0))


def _require_words(are_some: torch.Tensor) -> None:
    """Fail as whole layers do where a token is no word of any rank; on a GPU nothing waits for it."""
    torch._assert_async(are_some.all(), "a token is beyond the vocabulary")


def cross_entropy_in_parts(logits: torch.Tensor, targets: torch.Tensor, words: int, group: TensorGroup) -> torch.Tensor:
    """The mean cross entropy of logits of which each rank has some of the words, with one sum between the ranks.

    As of `language_model_loss`: float32 at least, without the targets that are to be ignored.

    Args:
        logits: (..., own words).
        targets: the words, (...).
        words: of all ranks together.
        group: the ranks.
    """
    loss: torch.Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), targets.flatten(), words, group
    )
    return loss


class _CrossEntropy(torch.autograd.Function):
    """The ranks tell each other, for each token, their largest logit, their sum of exponentials, and the target's."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, words: int, group: TensorGroup) -> torch.Tensor:
        ((first, stop),) = TensorCut(0, words).spans(group.degree, group.rank)
        numbers = logits.to(torch.promote_types(logits.dtype, torch.float32))
        is_own, counted = (targets >= first) & (targets < stop), targets != IGNORED
        _require_words((targets >= 0) & (targets < words) | ~counted)
        places = (targets - first).clamp(0, stop - first - 1).unsqueeze(-1)
        most = numbers.amax(-1)
        told = numbers.new_zeros(group.degree, 3, len(targets))
        told[group.rank, 0] = most
        told[group.rank, 1] = torch.exp(numbers - most.unsqueeze(-1)).sum(-1)
        told[group.rank, 2] = numbers.gather(-1, places).squeeze(-1).masked_fill(~is_own, 0.0)
        tops, sums, found = group.total(told).unbind(1)
        top = tops.amax(0)
        logarithm = top + torch.log((sums * torch.exp(tops - top)).sum(0))
        count = counted.sum()
        ctx.save_for_backward(logits, logarithm, places, is_own, counted, count)
        return (logarithm - found.sum(0)).masked_fill(~counted, 0.0).sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, logarithm, places, is_own, counted, count = ctx.saved_tensors
        made = torch.exp(logits.to(logarithm.dtype) - logarithm.unsqueeze(-1))
        made.scatter_add_(-1, places, -is_own.to(made.dtype).unsqueeze(-1))
        made *= (counted * (gradient / count)).unsqueeze(-1)
        return made.to(logits.dtype), None, None, None
