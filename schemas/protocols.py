"""The small Protocols by which the wings meet without importing each other; the root ties them."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .conditions import Conditions
    from .pace import PaceReport
    from .plan import Layers, Place, Plan
    from .replay import Fleet, Moment, TrainingState, Transition
    from .resumption import Rest, Standing
    from .slices import TensorCut
    from .timeline import Timeline

    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class StageExecutor(Protocol):
    """A stage's layers on a device, executed micro-batch by micro-batch, with the backward pass split in two.

    What a profiler times is what a runner executes: both hold one of these. `key` names the micro-batch between its
    forward and its backward; several may be under way at once.
    """

    def forward(self, key: Hashable, inputs: Any, target: Any = None) -> Any:
        """F: the stage's output; the loss (a scalar) at a last stage, which alone takes a `target`.

        Inputs and outputs are tensors, or tuples, lists and dicts of some.
        """
        ...

    def backward_input(self, key: Hashable, gradient: Any = None) -> Any:
        """I: the gradient of the stage's input (None where the input takes none); weight gradients are put off.

        `gradient` is that of the stage's output; None at a last stage, whose output is the loss. Of several tensors it
        is a tuple, of the floating ones.
        """
        ...

    def backward_weight(self, key: Hashable) -> None:
        """W: the weight gradients that `backward_input` put off."""
        ...

    def backward(self, key: Hashable, gradient: Any = None) -> Any:
        """B: `backward_input` and `backward_weight` in one."""
        ...

    def side_by_side(self, forward: Callable[[], Any], backward: Callable[[], Any], key: Hashable) -> tuple[Any, Any]:
        """Run calls of `forward`, of one micro-batch, and `backward`, of the micro-batch `key`, side by side.

        As far as the device can; gives what both return.
        """
        ...

    def stash_bytes(self, key: Hashable) -> int:
        """Bytes that a micro-batch keeps between its I and its W."""
        ...

    def stepper(self, optimizer: "Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]") -> "StageStepper | None":
        """What steps the stage; None where nothing in it is trained.

        From then on gradients are summed where a runner sums them. `optimizer` makes one of the stage's parameters.
        """
        ...


class StageStepper(Protocol):
    """The gradients and the optimizer of a stage, as a runner has them."""

    def step(self) -> None:
        """Step on the gradients, all that belongs to it included, and set them to zero."""
        ...

    def gradient_bytes(self) -> int:
        """Bytes of the gradients."""
        ...

    def state_bytes(self) -> int:
        """Bytes of the gradients, and of what the optimizer keeps of each parameter once it has stepped."""
        ...


class StageFactory(Protocol):
    """Makes a StageExecutor of consecutive layers; `loss` is given for a last stage."""

    def __call__(self, layers: "Sequence[nn.Module]", loss: "Loss | None" = None) -> StageExecutor:
        """Make the executor."""
        ...


class TensorGroup(Protocol):
    """The ranks that share the layers of one worker, as a layer that is cut among them calls them.

    All call it in the same order, forward as backward.

    Attributes:
        degree: how many they are.
        rank: which of them this is, from 0.
    """

    degree: int
    rank: int

    def enter(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """What all ranks have, as it goes into matrices cut by columns; its gradient is summed over the ranks."""
        ...

    def leave(self, part: "torch.Tensor") -> "torch.Tensor":
        """The sum of all ranks' parts, as behind a matrix cut by rows; each rank's part has the sum's gradient."""
        ...

    def gather(self, part: "torch.Tensor", size: int) -> "torch.Tensor":
        """The last dimension, of `size` in all, of which each rank has its part (`TensorCut`), whole on all ranks."""
        ...

    def total(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """A new tensor, the sum over all ranks, of which autograd knows nothing."""
        ...


class LayerCuts(Protocol):
    """How the layers of a model are cut among the ranks of a worker."""

    def check(self, layer: "nn.Module", degree: int, name: str) -> None:
        """Raise InvalidInputError, with the layer's name, unless so many ranks can share it."""
        ...

    def cut(self, layer: "nn.Module", group: TensorGroup) -> "nn.Module":
        """What this rank of a group has of a layer, which computes what the whole layer does; that stays as it is."""
        ...

    def tensors(self, layer: "nn.Module") -> "dict[str, TensorCut]":
        """How the parameters of a whole layer that are cut are divided, by their names; others are whole."""
        ...

    def name_in_cut(self, layer: "nn.Module", name: str) -> str:
        """What a parameter of a whole layer is called in one that was cut."""
        ...

    def loss(self, loss: Callable[[Any, Any], Any], last: "nn.Module", group: TensorGroup) -> Callable[[Any, Any], Any]:
        """The loss of what a rank has of the last layer's output; `last` is the whole layer."""
        ...


@dataclass(frozen=True, slots=True)
class Hand:
    """A worker that will be there when a new plan begins.

    Attributes:
        worker: its name, by which it was started.
        place: its place in the running plan; None: it has none, but would take one.
        layers: ranges [first, stop) whose state it has, as of the last commit; None: no state.
    """

    worker: str
    place: "Place | None"
    layers: "tuple[Layers, ...] | None"


@dataclass(frozen=True)
class DegreeFactors:
    """At which smaller tensor-parallel degrees workers may go on that have lost a GPU, and how slow they are then.

    Attributes:
        factors: by worker and degree, how many times as long its operations take as planned.
        profiled: the degrees of which a profile has the costs; of others the factor is that of the numbers of GPUs.
        costs_s: by worker and degree, what copying its state takes, there and back; none where nobody knows.
        within: iterations within which that must have paid.
    """

    factors: "Mapping[str, Mapping[int, float]]"
    profiled: "frozenset[int]" = frozenset()
    costs_s: "Mapping[str, Mapping[int, float]]" = field(default_factory=dict)
    within: int = 0


@dataclass(frozen=True)
class Replanned:
    """A plan for the workers that are left.

    Attributes:
        plan: its live places are those of `seats`.
        seats: who takes which place; who is not named waits until there is one.
        restart: why the job should rather be saved and start again on other workers (Greyhound's S4); empty: it should
            go on.
        iteration_time_s: what an iteration takes by it, with what is slow; None: nobody says.
    """

    plan: "Plan"
    seats: "tuple[tuple[str, Place], ...]"
    restart: str = ""
    iteration_time_s: float | None = field(default=None, compare=False)


class Replan(Protocol):
    """Plans anew for one job when workers or links have changed; the same question has the same answer."""

    def __call__(self, plan: "Plan", crew: tuple[Hand, ...], conditions: "Conditions") -> Replanned:
        """The next plan, and who takes which place; the running plan, with everybody where he is, if it still serves.

        Args:
            plan: the one that is running.
            crew: who will be there, those with a place in the order of their places.
            conditions: what is slow or broken; it may name workers that are not there.

        Raises:
            InfeasibleError: training cannot go on with these workers.
        """
        ...


class Resume(Protocol):
    """Plans what is left of an iteration in which workers were lost; the same question has the same answer."""

    def __call__(
        self,
        plan: "Plan",
        seats: "tuple[tuple[str, Place], ...]",
        iteration: int,
        standings: "tuple[Standing, ...]",
        conditions: "Conditions",
    ) -> "Rest":
        """Who does what is left, of a `Replanned` plan's first iteration.

        Args:
            plan: that follows.
            seats: who takes which of its live places; all of them are taken.
            iteration: that is under way.
            standings: of everybody who is there, those without a place included.
            conditions: what is slow or broken; it may name workers that are not there.

        Raises:
            InvalidInputError: the standings contradict each other, or the plan.
            InfeasibleError: to do all of the iteration again is as quick.
        """
        ...


@dataclass(frozen=True, slots=True)
class Examined:
    """What a worker of a suspicious group has measured in a pause between two iterations.

    Attributes:
        compute_s: how long a matrix product took that is the same for everybody.
        exchanges: (with whom, how long it took both ways) of messages of the same size with others of the group.
    """

    compute_s: float
    exchanges: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What a worker has measured in one iteration; times are of one clock that all workers share, as well as may be.

    Attributes:
        worker: its name.
        iteration: the iteration's number.
        pace: its operations' time over that of its stage in the plan, no slow-down counted; None where it had none.
        sent: (to whom, the message's number, when it was handed over) of some messages.
        arrived: (from whom, the message's number, when it was there) of some messages, none of them estimated.
        reduction_s: when the worker began to sum gradients with its peers, and when it had the sum; None without peers.
        peers: with whom.
        examined: what it has measured in the pause before the iteration, if there was one.
        iteration_s: from when it began the iteration to when it had its sums; None where nobody has said.
    """

    worker: str
    iteration: int
    pace: float | None = None
    sent: tuple[tuple[str, int, float], ...] = ()
    arrived: tuple[tuple[str, int, float], ...] = ()
    reduction_s: tuple[float, float] | None = None
    peers: tuple[str, ...] = ()
    examined: Examined | None = None
    iteration_s: float | None = None


class Monitor(Protocol):
    """Finds out what is slow in a running job."""

    def note(self, measured: Measured) -> "Conditions | None":
        """A worker has finished an iteration; gives what is slow from now on if that has changed, else None.

        Broken links are not for it to find.
        """
        ...

    def forget(self, worker: str) -> None:
        """The worker is another process from now on, or none, perhaps on another machine."""
        ...


class RemedyScheduler(Protocol):
    """Knows what it costs to have workers change places."""

    def moving_s(self, usual_s: float) -> float:
        """That, there and back, in s, where an iteration takes so long; infinite where nobody moves."""
        ...


class Answers(Replan, RemedyScheduler, Protocol):
    """A planner for a running job, which can be made ready ahead, and knows what it costs to move workers."""

    def warm_up(self) -> None:
        """Load now what the first answer would have to wait for."""
        ...


class JobAdvice(Protocol):
    """What planners and profilers know of one job, for its coordinator."""

    @property
    def answers(self) -> Answers:
        """What plans anew; it may be made when it is first asked for, which takes a while."""
        ...

    @property
    def resume(self) -> Resume:
        """What plans the rest of an iteration; it may be loaded when it is first asked for."""
        ...

    def monitor(self, is_resumed: bool) -> Monitor:
        """What finds out what is slow, and which costly remedies that has been worth.

        Args:
            is_resumed: whether the job may have begun under another coordinator.
        """
        ...

    def pace(self, plan: "Plan", timeline: "Timeline") -> "PaceReport":
        """How a run keeps up with its plan, and why not.

        Raises:
            InvalidInputError: the timeline has nothing of the plan.
        """
        ...

    @property
    def lower(self) -> DegreeFactors | None:
        """At which smaller degrees workers may go on that have lost a GPU; None: they wait until they have another."""
        ...

    @property
    def mitigate_without_restart(self) -> str | None:
        """What `--mitigate` says of remedies, without that of starting again on other workers."""
        ...


class RecoveryPolicy(Protocol):
    """A way of surviving failures and slow parts, for one job: in a replay, and for `RunningPolicy` in a run.

    Pure: the same question has the same answer, whatever was asked before.
    """

    def begin(self, fleet: "Fleet") -> "TrainingState":
        """How training begins with these nodes; a standing without a plan where they are too few.

        Raises:
            InfeasibleError: a GPU cannot hold what the policy would put on it, however many nodes there are.
        """
        ...

    def react(self, standing: "TrainingState", moment: "Moment") -> "Transition":
        """What to do about a change, in the order in which it is due; nothing: the standing goes on.

        Args:
            standing: in force, or being taken over to when a pause is interrupted. A standing in which nodes work that
                are lost at this moment must not go on.
            moment: the change.

        Raises:
            InfeasibleError: training cannot go on, and nobody has saved what it could go back to.
        """
        ...

    def plan(self, standing: "TrainingState") -> "Plan | None":
        """The plan that is in force: `rtk simulate` of it gives the standing's iteration time; None while waiting."""
        ...

    def seats(self, standing: "TrainingState") -> "Mapping[Place, str]":
        """Which node holds which live worker of that plan."""
        ...


class RunningPolicy(RecoveryPolicy, Protocol):
    """A policy that `rtk run` can obey, too: it can go on from any plan that is running."""

    def resume(self, plan: "Plan", seats: "Mapping[Place, str]") -> "TrainingState":
        """The standing of a job that runs a plan of this policy, or that which the job began with.

        Args:
            plan: valid.
            seats: which node holds which live worker of it.
        """
        ...

    def program(self, standing: "TrainingState") -> "Plan":
        """What workers execute in a standing that trains: `plan` without what has become slow since it was made."""
        ...

    def moving_s(self, usual_s: float) -> float:
        """What it costs that workers change places because of what is slow, there and back, in s; infinite: never.

        Args:
            usual_s: what an iteration takes, in s.
        """
        ...

    def warm_up(self) -> None:
        """Load now what the first answer would have to wait for."""
        ...
