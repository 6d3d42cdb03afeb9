"""The stage that a worker holds: its layers, gradients and optimizer, through every plan it serves."""

import hashlib
import math
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ...schemas.blocks import piece_name
from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.plan import Layers
from ...schemas.slices import CUT, TensorCut
from ..resilience.protocol import StepTerms
from ..training import SharedBuffers
from .buffers import StageBuffers, copied, take_buffers
from .gradients import FlatGradients
from .held_layers import HeldLayers
from .loss_scale import ENTRY, LossScale
from .optimizers import MASTER, StageOptimizer, as_tensor, set_entry
from .optimizers import OptimizerFactory as OptimizerFactory
from .precision import Precision, convert, is_loss_scaled, require_precision
from .schedules import LearningRates, Schedule
from .stage import Loss, TorchStage
from .stage_blocks import StageBlocks
from .staging import HostStaging
from .ties import Tie, tie, ties_of, trained_ties
from .trees import NOTHING, Named, Tree, zero_gradient

# What wrappers put before a layer's names: `torch.compile`'s, checkpoint_wrapper's, and those of layers that are cut.
_WRAPPERS = frozenset(("_orig_mod", "_checkpoint_wrapped_module", CUT))


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """One entry of the optimizer's state, a tensor or a number: its name in the stage's state and where it stands."""

    name: str
    parameter: nn.Parameter
    key: str
    entries: dict[str, Any]


class HeldStage:
    """Layers of a model with all that training them needs, and a name for every tensor of their state.

    They are those of one stage, or of several virtual ones (docs/semantics.md); these are parts of it (stage.py).

    The names are the same on all peers: `3.qkv.weight` for a parameter or persistent buffer of the model's layer 3,
    `3.qkv.weight/exp_avg` for what the optimizer keeps of it, `3.qkv.weight/master` for a float32 master, and
    `3./loss_scale` for the loss scale, where the precision has one. They are those of the layers without
    `torch.compile` and checkpoint_wrapper. What layers share (ties.py) is state of each of them, so that a layer's
    state is the same wherever the stage around it begins and ends. Learning rates and other settings of the optimizer
    are not part of the state: every peer's factory makes the same.

    Buffers are part of the state as of the last step: `begin` an iteration before its first F.

    Args:
        layers: all layers of the model; those held are moved to `device`, the others left alone.
        held: the layers [first, stop) to hold, or the first range of several.
        loss: maps (output, target) of a micro-batch to its mean loss, or (sum, count); used where `is_last`.
        optimizer: makes the optimizer of those held parameters that are to be trained, or of stand-ins for them.
        device: where to compute.
        is_last: whether the model ends here.
        is_split: whether the plan to serve first splits the backward pass into I and W.
        clip_norm: the largest norm of the gradients of the whole model with which to step; None for any.
        ties: the model's, where the layers may not show them any more; else they are looked for in `layers`.
        precision: in which types to compute; the layers are converted in place.
        schedule: of the learning rates; None leaves them as the optimizer has them.
        buffers: what counts where peers' buffers differ (buffers.py).
        further: the other ranges of layers to hold.
        share: which of its worker's ranks this is, whose layers are cut: norms count what several have once.
        degree: ranks of the worker.
        cuts: how parameters are cut, by their names in the state; others are whole on every rank.
        is_sharded: the optimizer holds blocks of the layers only (stage_blocks.py), none before `blocks.hold` says
            which. What layers share with each other is in no block: every peer keeps all its state.

    Attributes:
        blocks: of the layers; None where the optimizer is not sharded.
        holds: all of them: ranges [first, stop), ascending, none next to another.
        numbers: of these layers in the model.

    Raises:
        InvalidInputError: the optimizer or the schedule is none that can be used (optimizers.py, schedules.py).
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        held: Layers,
        loss: Loss,
        optimizer: OptimizerFactory,
        device: torch.device | str = "cpu",
        *,
        is_last: bool = False,
        is_split: bool = False,
        clip_norm: float | None = None,
        ties: Sequence[Tie] | None = None,
        precision: Precision = "fp32",
        schedule: Schedule | None = None,
        buffers: SharedBuffers = "lowest",
        further: Sequence[Layers] = (),
        share: int = 0,
        is_sharded: bool = False,
        degree: int = 1,
        cuts: Mapping[str, TensorCut] = MappingProxyType({}),
    ) -> None:
        require_precision(precision)
        ties = ties_of(layers) if ties is None else ties
        self._layers = HeldLayers.of([held, *further])
        self.holds, self.numbers = self._layers.ranges, self._layers.numbers
        self.device = torch.device(device)
        self.is_last = is_last
        self.clip_norm = clip_norm
        kept = [layers[number].to(self.device) for number in self.numbers]
        tie(kept, self._layers, ties)
        convert(kept, precision)
        shared = trained_ties(kept, self._layers, ties)
        self.stage = TorchStage(kept, loss if is_last else None, is_split, precision, is_first=0 in self._layers)
        named = {self._global_name(name): one for name, one in self._named_parameters()}
        divided = {named[name]: cut for name, cut in cuts.items() if name in named}
        # What several ranks have the first of them counts.
        elsewhere = {one for one, cut in divided.items() if share % cut.copies(degree)}
        if share:
            elsewhere |= {one for name, one in self._named_parameters() if CUT not in name.split(".")}
        self.gradients = FlatGradients(
            list(self.stage.layers),
            self._layers,
            self.device,
            with_loss=is_last,
            ties=shared,
            uncounted=elsewhere,
            cuts=divided,
        )
        self._buffers = StageBuffers(self.stage.layers, self.gradients, buffers)
        dealt = _to_be_cut(self.stage.layers, self.numbers, shared) if is_sharded else {}
        self._cut = frozenset(one for layer in dealt.values() for one in layer.values())
        self._stepping = StageOptimizer(optimizer, self.stage.parameters(), precision, self._cut)
        self.blocks = StageBlocks(dealt, self._stepping) if is_sharded else None
        self._rates = LearningRates(self.optimizer, None if self._stepping.is_idle else schedule)
        self._scale = LossScale(self.numbers) if is_loss_scaled(precision) else None
        self._persistent = frozenset(map(_plain, self.stage.layers.state_dict()))
        self._kept: dict[str, torch.Tensor] | None = None
        self._kept_sums: tuple[list[torch.Tensor], frozenset[int]] | None = None
        self.target_like: Tree | None = None  # of the shape and type of all targets, once one was seen
        self.named_like: Named = NOTHING  # and of what they have by name, if some layer takes any

    @property
    def layers_range(self) -> Layers:
        """The layers [first, stop), where they are those of one stage; `holds` serves all."""
        (layers,) = self.holds
        return layers

    def places(self, layers: Layers) -> range:
        """The places in the stage of layers [first, stop) of the model, all of them held in one range."""
        return self._layers.places(layers)

    def adapt(self, is_split: bool, hosted: Collection[Hashable] = ()) -> None:
        """Serve another plan with the same layers and optimizer; call it between iterations.

        Or in what is left of one, with `is_split` as the micro-batches under way want it: a micro-batch whose F ran
        unsplit leaves nothing to a W.

        Args:
            is_split: as in the constructor; going back to unsplit leaves no cost behind.
            hosted: the micro-batches that wait for their backward pass on the host (stage.py), by their keys there.
        """
        self.stage.split(is_split)
        self.stage.host(hosted, HostStaging.of(self.device) if hosted else HostStaging())

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The user's; one of nothing where there is nothing to train."""
        return self._stepping.inner

    @property
    def learning_rate(self) -> float | None:
        """That of the optimizer's first group, as of the last step; None where there is nothing to train."""
        return None if self._stepping.is_idle else float(self.optimizer.param_groups[0]["lr"])

    def learning_rate_after(self, taken: int) -> float | None:
        """That of the step before which so many were taken; as `learning_rate`, and errors as `step`."""
        self._rates.set(taken)
        return self.learning_rate

    @property
    def loss_scale(self) -> float:
        """By what gradients are larger than those of the loss, until the step."""
        return 1.0 if self._scale is None else self._scale.now

    @property
    def waits_for_all(self) -> bool:
        """Whether no step is taken before it is known that all gradients are finite, as a loss scale wants it."""
        return self._scale is not None

    def scale_loss(self, iteration: int, taken: int) -> None:
        """Before an iteration begins, or goes on: the loss scale is to be that of it.

        Args:
            iteration: its number.
            taken: steps taken before it.
        """
        if self._scale is not None:
            self._scale.begin(iteration, taken)

    def begin(self) -> None:
        """An iteration begins: gradients are 0, and buffers as of the last step."""
        self.stage.loss_scale = self.loss_scale
        self.gradients.clear()
        self._stepping.attach()
        self._buffers.begin()

    def attach(self) -> None:
        """Let all gradients be where they are summed, without clearing them; what is left of an iteration begins."""
        self.stage.loss_scale = self.loss_scale
        self.gradients.attach()
        self._stepping.attach()

    def buffers_untouched(self) -> AbstractContextManager[None]:
        """Within it an F leaves buffers as they are."""
        return self._buffers.untouched()

    def take_sums(self, layers: Layers, given: "HeldStage") -> None:
        """Have of some layers what another stage has: its part of the sums, or the sums, and what buffers are now.

        Args:
            layers: [first, stop) of the model, held by both.
            given: the other one, of the same model, with an iteration under way.
        """
        for view, other in zip(self.gradients.of_layers(layers), given.gradients.of_layers(layers), strict=True):
            view.copy_(other)
        for layer in range(*layers):
            place = given._layers.place(layer)
            take_buffers(given.stage.layers[place], self.stage.layers[self._layers.place(layer)])
            if place in given._buffers.summed:
                self.note_summed((layer, layer + 1))

    def note_summed(self, layers: Layers) -> None:
        """The sums over these layers' gradients and buffers are here; `step` takes what they say of buffers.

        Args:
            layers: [first, stop) of the model, all held here.
        """
        self._buffers.note_summed(self.places(layers))

    def share_buffers(self, layers: Layers, peers: int, is_lowest: bool) -> None:
        """Let the buffers of some layers go into the sum over gradients that is to follow; `step` takes what comes.

        Args:
            layers: [first, stop) of the model, all held here.
            peers: how many workers sum.
            is_lowest: whether this one is the lowest of them.
        """
        for place in self.places(layers):
            self._buffers.share(place, peers, is_lowest)

    def commit_buffers(self) -> None:
        """What the iteration has made of buffers counts; for a step that is not taken here, else a part of `step`."""
        self._buffers.commit()

    def reset(self) -> None:
        """Drop every micro-batch under way, all gradients, and what an interrupted iteration has made of buffers."""
        self.stage.reset()
        self.gradients.clear()
        self._buffers.reset()

    def expect(self, named: Named) -> None:
        """All micro-batches have tensors like these by name; where no layer here takes one, nobody asks for them."""
        self.named_like = named if self.stage.named_inputs.takes_any_of(named) else NOTHING

    def warm_up(
        self, inputs: Tree, target: Tree | None = None, named: Named = NOTHING, layers: Layers | None = None
    ) -> Tree:
        """Run one micro-batch forward and backward, so that the first iteration does not pay for first calls.

        Buffers are restored and gradients cleared afterwards, so the training does not see it.

        Args:
            inputs: what the first layer takes.
            target: at a last stage, and only there.
            named: what layers take by name.
            layers: [first, stop) of the model, to run no others of those held; None: there are no others.

        Returns:
            The stage's output, or its loss's [sum, count].
        """
        self.target_like = self.target_like if target is None else target
        self.expect(named)
        self.begin()
        part = None if layers is None else self.places(layers)
        output = self.stage.forward("warm-up", inputs, target, named=named, part=part)
        self.stage.backward("warm-up", zero_gradient(output) if target is None else None)
        self.reset()
        return output

    def squared_norms(self, layers: Iterable[int]) -> dict[int, float]:
        """Of held layers, by their number in the model: the squared norm of the summed, undivided gradients.

        Without the loss scale. As of `FlatGradients`, and not finite exactly where a gradient is not. What layers share
        belongs to the first.

        Args:
            layers: which of them.
        """
        scale = self.loss_scale
        return {layer: square / scale**2 for layer, square in self.gradients.squared_norms(layers).items()}

    def step(self, terms: StepTerms) -> None:
        """Divide the gradients by what the loss counted, clip them, set the learning rates, and step the optimizer.

        Clipping is that of `torch.nn.utils.clip_grad_norm_`, the division and it are one multiplication.

        Args:
            terms: of the iteration, the same for all workers; where the norm is None gradients are not clipped.

        Raises:
            InvalidInputError: the loss counted nothing in the whole iteration, the schedule does not give a factor, or
                gradients have left their buffer (`FlatGradients.require_attached`).
        """
        if not 0 < terms.count < math.inf:
            raise InvalidInputError(
                f"the loss counts {terms.count:g} in all micro-batches of iteration {terms.taken} together",
                where="the loss function",
                fix="return (sum, count) with a count above 0 in one micro-batch at least, such as that of all targets "
                "that are not ignored",
            )
        factor = 1 / (terms.count * self.loss_scale)
        if self.clip_norm is not None and terms.norm is not None:
            factor *= min(1.0, self.clip_norm / (terms.norm + 1e-6))
        self._rates.set(terms.taken)
        self.gradients.require_attached()
        self._buffers.commit()
        self.gradients.scale(factor)
        self._stepping.step()
        if self.blocks is not None:
            self.blocks.note_step(terms.taken + 1)

    def state(self) -> dict[str, torch.Tensor]:
        """The training state by name, the same order on all peers.

        Returns:
            References: parameters, persistent buffers, the loss scale, then the optimizer's tensors, none of them
            copied. Numbers in the optimizer's state are given as float64 tensors of no dimension, by value. Of a
            sharded optimizer what it holds: of blocks by their own names (schemas/blocks.py).
        """
        return self._state_of(self.numbers) | ({} if self.blocks is None else self.blocks.state_of(self.blocks.held))

    def state_of(self, layers: Layers) -> dict[str, torch.Tensor]:
        """The part of `state()` that belongs to some layers, in the same order, whatever the stage around them.

        Without the state of blocks, which other peers need not hold.

        Args:
            layers: [first, stop) of the model; those not held have no part.

        Returns:
            References, as `state()`.
        """
        return self._state_of(range(*layers))

    def _state_of(self, layers: Container[int]) -> dict[str, torch.Tensor]:
        slots = [slot for slot in self._slots() if layer_of(slot.name) in layers]
        optimizer = {slot.name: as_tensor(slot.entries[slot.key]) for slot in slots}
        return {name: value for name, value in self._tensors().items() if layer_of(name) in layers} | optimizer

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy values into the state, in place; on an error nothing is changed.

        Args:
            state: a value of the same shape and type for every name of `state()`, on any device.

        Raises:
            InvalidInputError: a name is missing, unknown, or its value is of another shape or type.
        """
        self._load_into(self.state(), state)

    def load_layers(self, layers: Layers, state: Mapping[str, torch.Tensor]) -> None:
        """Copy values into the state of some layers, in place; the others, and on an error all, stay as they are.

        Args:
            layers: [first, stop) of the model.
            state: a value of the same shape and type for every name of `state_of(layers)`, on any device.

        Raises:
            InvalidInputError: as `load`; an unknown name may be that of another layer.
        """
        self._load_into(self.state_of(layers), state)

    def _load_into(self, own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
        check_same_kind(own, state)
        self._write(state)

    def prime_optimizer(self) -> None:
        """Make an optimizer that has not stepped yet create its state, so that another worker's can be loaded into it.

        The state is left as the optimizer creates it before its first step (AdamW: `step` and moments 0) and training
        goes on as if nothing had happened, except for what torch itself does otherwise in a first step: SGD does not
        dampen its first momentum. Parameters that have a state already keep it. Gradients stay as they are.
        """
        states = self.optimizer.state
        lazy = [one for one in self._stepping.stepped() if not states.get(one)]
        if not lazy:
            return
        values = [one.detach().clone() for one in lazy]
        recorders = [_Recorder() for _ in lazy]
        states.update(zip(lazy, recorders, strict=True))
        gradients = [buffer.clone() for buffer in self.gradients.buffers]
        # Micro-batches under way have saved parameters for their backward passes, which will find the same bits.
        with _unsafe_preserve_version_counter(tuple(lazy)):
            self._step_without_effect({id(one) for one in lazy})
            for parameter, value in zip(lazy, values, strict=True):
                parameter.detach().copy_(value)
        for buffer, gradient in zip(self.gradients.buffers, gradients, strict=True):
            buffer.copy_(gradient)
        for parameter, recorder in zip(lazy, recorders, strict=True):
            del states[parameter]
            if recorder.first:
                states[parameter] = recorder.first

    def keep(self, with_sums: bool = False) -> None:
        """Copy the whole state aside, for `restore`; a copy kept earlier is overwritten, in its own storage.

        Takes the memory of the parameters and the optimizer's state once more: with AdamW 12 bytes a float32 parameter.
        Where the optimizer is sharded, of the blocks that it holds: no step changes others.

        Args:
            with_sums: whether to keep the sums over gradients, too, of which the step is to be made: 4 bytes more.
        """
        if with_sums:
            sums = self._kept_sums[0] if self._kept_sums is not None else []
            self._kept_sums = copied(self.gradients.buffers, sums), self._buffers.summed
        else:
            self._kept_sums = None
        before, self._kept = self._kept or {}, {}
        if self.blocks is not None:
            self.blocks.keep()
        for name, value in self._stepped_state().items():
            into = before.get(name)
            if into is None or (into.shape, into.dtype, into.device) != (value.shape, value.dtype, value.device):
                into = torch.empty_like(value)
            self._kept[name] = into.copy_(value)

    def restore(self) -> None:
        """Bring the kept state back, bit for bit, also an optimizer that had not stepped yet; the copy stays.

        What is under way is dropped, as in `reset`. Where sums were kept, they are here again, and `step` makes the
        same step of them; else an iteration must be run again. Parameters in blocks that others hold stay, of whichever
        step they are (`StageBlocks.versions`).

        Raises:
            RuntimeFailedError: nothing is kept.
        """
        if self._kept is None:
            raise RuntimeFailedError("no state was kept to go back to")
        self.reset()
        for slot in list(self._slots(with_blocks=True)):
            if slot.name not in self._kept:
                slot.entries.pop(slot.key, None)  # of what layers share the first has done it
                self._stepping.drop_empty(slot.parameter)
        check_same_kind(self._stepped_state(), self._kept)
        self._write(self._kept)
        if self.blocks is not None:
            self.blocks.restore()
        if self._kept_sums is not None:
            sums, summed = self._kept_sums
            for buffer, before in zip(self.gradients.buffers, sums, strict=True):
                buffer.copy_(before)
            self._buffers.go_on(summed)

    def checksums(self, layers: Iterable[int] | None = None) -> dict[int, str]:
        """For held layers, by their number in the model, the sha256 over the names and bytes of their state.

        Equal on all workers that hold the layer and agree bit for bit, wherever their stages begin and end.

        Args:
            layers: which of them; all unless given, and those that are not held are left out.
        """
        return {
            layer: sha256_of(self.state_of((layer, layer + 1)))
            for layer in layers or self.numbers
            if layer in self._layers
        }

    def _stepped_state(self) -> dict[str, torch.Tensor]:
        """The part of `state()` that a step, or an iteration, changes here."""
        if self.blocks is None:
            return self.state()
        others = self.blocks.names
        return {name: value for name, value in self.state().items() if name not in others} | self.blocks.values_of(
            self.blocks.held
        )

    def _tensors(self) -> dict[str, torch.Tensor]:
        layers = enumerate(self.stage.layers)
        every = (one for place, layer in layers for one in layer.named_buffers(str(place)))
        as_of_last_step = self._buffers.as_of_last_step()
        buffers = {
            name: as_of_last_step.get(id(value), value) for name, value in every if _plain(name) in self._persistent
        }
        everything = {**dict(self._named_parameters()), **buffers}
        scale = {} if self._scale is None else self._scale.state()
        return {self._global_name(name): value.detach() for name, value in everything.items()} | scale

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters; what layers share comes with each of them."""
        for place, layer in enumerate(self.stage.layers):
            yield from layer.named_parameters(str(place))

    def _slots(self, *, with_blocks: bool = False) -> Iterator[_Slot]:
        """The optimizer's state in the parameters' order; keys in alphabetical order, whoever made them first."""
        for name, parameter in self._named_parameters():
            if with_blocks or parameter not in self._cut:
                for span, key, entries in self._stepping.entries(parameter):
                    entry = f"{self._global_name(name)}/{key}"
                    yield _Slot(entry if span is None else piece_name(entry, *span), parameter, key, entries)

    def _global_name(self, name: str) -> str:
        index, _, rest = _plain(name).partition(".")
        return f"{self.numbers[int(index)]}.{rest}"

    def _write(self, state: Mapping[str, torch.Tensor]) -> None:
        tensors = self._tensors() | ({} if self.blocks is None else self.blocks.values_of(self.blocks.held))
        for name in tensors.keys() & state.keys():
            tensors[name].copy_(state[name])
        for slot in [slot for slot in self._slots(with_blocks=True) if slot.name in state]:
            set_entry(slot.entries, slot.key, state[slot.name])

    def _step_without_effect(self, parameters: set[int]) -> None:
        """Step with zero gradients and no weight decay, which would go into SGD's momentum, and only `parameters`."""
        self.gradients.clear()
        self._stepping.attach()
        gradients = [(one, one.grad) for one in self._stepping.stepped()]
        decays = [(group, group["weight_decay"]) for group in self.optimizer.param_groups if "weight_decay" in group]
        for one, gradient in gradients:
            if id(one) not in parameters:
                one.grad = None
            elif gradient is None:
                one.grad = torch.zeros_like(one)
        for group, _ in decays:
            group["weight_decay"] = 0.0
        self.optimizer.step()
        for one, gradient in gradients:
            one.grad = gradient
        for group, decay in decays:
            group["weight_decay"] = decay


def _to_be_cut(
    layers: Iterable[nn.Module], numbers: Sequence[int], shared: Mapping[tuple[int, ...], Sequence[nn.Parameter]]
) -> dict[int, dict[str, nn.Parameter]]:
    """Of each layer, by its number in the model, the trained parameters that are its alone; in one piece of memory."""
    whole = {one for parameters in shared.values() for one in parameters}
    found: dict[int, dict[str, nn.Parameter]] = {}
    for number, layer in zip(numbers, layers, strict=True):
        named = [(_plain(name), one) for name, one in layer.named_parameters() if one.requires_grad]
        found[number] = {name: one for name, one in named if one not in whole}
        for one in found[number].values():
            one.data = one.data.contiguous()
    return found


class _Recorder(dict[str, Any]):
    """A parameter's place in an optimizer's state that remembers what each entry was at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self.first:
            self.first[key] = value.clone() if isinstance(value, torch.Tensor) else value
        super().__setitem__(key, value)


def layer_of(name: str) -> int:
    """The layer of the model that an entry of a state belongs to."""
    return int(name.partition(".")[0])


def sha256_of(state: Mapping[str, torch.Tensor]) -> str:
    """The sha256 over names and bytes of tensors, in their order."""
    digest = hashlib.sha256()
    for name, value in state.items():
        digest.update(f"{name}\0".encode())
        digest.update(value.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def check_same_kind(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Raise InvalidInputError for the first name, in our order and then in theirs, that does not fit."""
    for name, value in own.items():
        if name not in given:
            raise InvalidInputError(f"the state lacks {name}", fix=_fix_of(name))
        other = given[name]
        if (other.shape, other.dtype) != (value.shape, value.dtype):
            raise InvalidInputError(
                f"{name} is {_kind(other)} in the state, {_kind(value)} here",
                fix="take the state of a peer of the same stage",
            )
    for name in given:
        if name not in own:
            raise InvalidInputError(
                f"the state has {name}, which is not held here",
                fix="call prime_optimizer() before loading into a stage that has not stepped yet",
            )


def _fix_of(name: str) -> str:
    """What to do where a state lacks an entry."""
    if name.endswith((f"/{MASTER}", ENTRY)):
        return "go on in the precision that it was trained in (--precision), such as bf16, which has no masters"
    return "take the state of a peer of the same stage"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
