"""Plan: who computes what in which order. Inert data that the simulator and the torch runner both execute."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from .degrees import OPTION as DEGREES
from .display import Displayed
from .errors import InvalidInputError
from .fields import STRICT, Bytes, Count, Factor, Index, LayerNumber, Name, Overlap, Ratio, Seconds
from .orders import Operation, check_order_text, flattened, pairs_in, parse_order
from .quantities import print_percent

Proof = Literal["optimal", "bound", "none"]
ProofScope = Literal["routing", "all-routings"]
Optimizer = Literal["synchronous", "staggered"]
Layers = tuple[LayerNumber, LayerNumber]  # [first, stop)
Place = tuple[int, int]  # pipeline and column; where each column holds one stage, that stage
Placement = tuple[tuple[Index, ...], ...]  # the virtual stages of each column of a pipeline


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers [first, stop) that one worker holds, with their costs for one micro-batch.

    `backward_s` is what a full backward pass takes where that is not what its two halves take one after the other.
    """

    layers: Layers
    forward_s: Seconds
    backward_input_s: Seconds
    backward_weight_s: Seconds
    tensor_parallel: Count = 1
    optimizer_s: Seconds = 0.0
    allreduce_s: Seconds = 0.0
    activation_bytes: Bytes = 0.0
    weight_stash_bytes: Bytes = 0.0
    memory_limit_bytes: Bytes | None = None
    backward_s: Seconds | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"backward_s"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def work_s(self) -> float:
        """Seconds that all operations of one micro-batch take at slowdown 1."""
        return self.duration_s("F") + self.duration_s("B")

    def duration_s(self, kind: str) -> float:
        """Seconds that an operation (F, I, W or B) of one micro-batch takes at slowdown 1."""
        match kind:
            case "F":
                return self.forward_s
            case "I":
                return self.backward_input_s
            case "W":
                return self.backward_weight_s
            case _ if self.backward_s is not None:
                return self.backward_s
            case _:
                return self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True)
class Link:
    """The path between stages i and i+1: a message, either way, arrives delay_s after it was sent."""

    delay_s: Seconds = 0.0

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Template:
    """A pipeline's shape: its stages, and the links between neighbours (one fewer).

    A placement says which of the stages, then called virtual, each column holds, ascending; without one each column
    holds the stage of its number. Beside a placement limits are those of columns, else they stand at the stages.
    Where workers may run a forward and a full backward side by side, `overlap` is what such a pair takes over the two
    passes one after the other. Where peers share the optimizer's state (sharded.py), each steps its share of it, and
    `optimizer_s` of a stage is that, and what taking the other parameters from the peers takes.
    """

    name: Name
    stages: Annotated[tuple[Stage, ...], MinLen(1)]
    links: tuple[Link, ...]
    placement: Placement | None = None
    memory_limits_bytes: tuple[Bytes, ...] | None = None
    overlap: Overlap | None = None
    shard_optimizer: Literal[True] | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"placement", "memory_limits_bytes", "overlap", "shard_optimizer"})
    __pydantic_config__: ClassVar[Any] = STRICT

    def pair_s(self, forward: int, backward: int) -> float:
        """Seconds that F of one stage and a full backward of another take side by side, at slowdown 1.

        They begin and end together, so a pair is never shorter than the longer of the two.
        """
        forward_s, backward_s = self.stages[forward].duration_s("F"), self.stages[backward].duration_s("B")
        return max(forward_s, backward_s, (1.0 if self.overlap is None else self.overlap) * (forward_s + backward_s))

    @property
    def columns(self) -> Placement:
        """The virtual stages of each column."""
        return plain_placement(len(self.stages)) if self.placement is None else self.placement

    @property
    def noun(self) -> Literal["stage", "column"]:
        """What messages call a place in a pipeline: a stage, or a column of several."""
        return "stage" if self.placement is None else "column"

    @property
    def column_of(self) -> tuple[int, ...]:
        """The column of each virtual stage."""
        found = {stage: column for column, held in enumerate(self.columns) for stage in held}
        return tuple(found[stage] for stage in range(len(self.stages)))

    def link_between(self, one: int, other: int) -> int | None:
        """The first link between stages of two columns; None where none of the one follows one of the other."""
        if self.placement is None:
            return min(one, other) if abs(one - other) == 1 else None
        return next((i for i, ends in enumerate(pairwise(self.column_of)) if {*ends} == {one, other}), None)

    def limit_bytes(self, column: int) -> float | None:
        """The memory limit of a column's workers, in bytes."""
        if self.placement is None:
            return self.stages[column].memory_limit_bytes
        return None if self.memory_limits_bytes is None else self.memory_limits_bytes[column]


@cache
def plain_placement(stages: int) -> Placement:
    """The placement in which each column holds the stage of its number."""
    return tuple((stage,) for stage in range(stages))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A data-parallel replica: its template, its micro-batches, and its own links where they differ."""

    template: Name
    microbatches: Count
    links: tuple[Link, ...] | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"links"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Worker:
    """The holder of one column in one pipeline, of its stage or virtual stages: its order, or that it failed."""

    pipeline: Index
    stage: Index
    order: str | None = None
    slowdown: Factor | None = None
    failed: Literal[True] | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"order", "slowdown", "failed"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def place(self) -> Place:
        """Its pipeline and its column."""
        return self.pipeline, self.stage

    @property
    def name(self) -> str:
        """The worker's name, `k/i`."""
        return name_of(self.place)

    def operations(self) -> tuple[Operation, ...]:
        """The order, parsed; none for a failed worker. The two of a pair follow each other (`pairs`)."""
        return parse_order(self.order or "", self.pipeline, None)

    def pairs(self) -> frozenset[int]:
        """The places in `operations` of the forwards that run side by side with the backward behind them."""
        return pairs_in(self.order or "")


def place_of(name: str) -> Place:
    """A place from its name `k/i`.

    Raises:
        ValueError: the text names none.
    """
    pipeline, stage = name.split("/")
    return int(pipeline), int(stage)


def parse_place(text: str, where: str) -> Place:
    """A place that somebody has written as `k/i`.

    Args:
        text: what is written.
        where: the option, for messages.

    Raises:
        InvalidInputError: it is something else.
    """
    if not re.fullmatch(r"\d{1,9}/\d{1,9}", text):
        raise InvalidInputError(
            f"{text!r} cannot be read", where=where, fix="write k/i, pipeline and stage, such as 1/2"
        )
    return place_of(text)


def name_of(place: Place) -> str:
    """The name `k/i` of a place."""
    return f"{place[0]}/{place[1]}"


def rank_name(worker: str, rank: int, ranks: int) -> str:
    """What a process is called: as its worker `k/i`, or of one of several ranks `k/i:r`.

    Args:
        worker: the name of its worker.
        rank: which of the worker's ranks it is.
        ranks: how many there are.
    """
    return worker if ranks == 1 else f"{worker}:{rank}"


def worker_of(process: str) -> str:
    """The name `k/i` of the worker of which a process (`rank_name`) is a rank."""
    return process.partition(":")[0]


def rank_of(process: str) -> int:
    """Which rank of its worker a process (`rank_name`) is."""
    return int(process.partition(":")[2] or 0)


@dataclass(frozen=True, slots=True)
class Planner:
    """Who made the plan: a planner's name, version, options and seed."""

    name: Name
    version: str
    options: dict[str, Any]
    seed: int = 0

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the plan promises. `gap` is iteration_time_s / lower_bound_s - 1; memory stands in worker order.

    `proof_scope` says what the bound is over, where micro-batches could run on other workers than they do: all orders
    of the routing taken, or those of all routings. None: there is but one routing, or the file is an older one.
    """

    iteration_time_s: Seconds
    makespan_s: Seconds
    period_s: Seconds
    lower_bound_s: Seconds
    gap: Ratio
    proof: Proof
    bubble_ratio: Ratio
    peak_memory_bytes: tuple[Bytes, ...]
    proof_scope: ProofScope | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"proof_scope"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def quality(self) -> str:
        """How good the plan is proven to be: `optimal`, or by how much it may be above the optimum."""
        return "optimal" if self.proof == "optimal" else f"at most {print_percent(self.gap)} above the optimum"


@dataclass(frozen=True)
class Plan(Displayed):
    """Templates, pipelines made from them, and one order per worker, in (pipeline, stage) order."""

    planner: Planner
    templates: Annotated[tuple[Template, ...], MinLen(1)]
    pipelines: Annotated[tuple[Pipeline, ...], MinLen(1)]
    optimizer: Optimizer
    workers: Annotated[tuple[Worker, ...], MinLen(1)]
    inputs: dict[str, str] = field(default_factory=dict)
    prediction: Prediction | None = None

    FORMAT: ClassVar[str] = "rtk.plan"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"prediction"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def predicted(self) -> Prediction:
        """The prediction of a plan that is known to have one, as each that a planner has made does."""
        assert self.prediction is not None
        return self.prediction

    @cached_property
    def template_by_name(self) -> dict[str, Template]:
        """The templates by name."""
        return {template.name: template for template in self.templates}

    def template_of(self, pipeline: int) -> Template:
        """The template of a pipeline."""
        return self.template_by_name[self.pipelines[pipeline].template]

    def links_of(self, pipeline: int) -> tuple[Link, ...]:
        """The links inside a pipeline: its own where it has them, else its template's."""
        own = self.pipelines[pipeline].links
        return self.template_of(pipeline).links if own is None else own

    @cached_property
    def is_placed(self) -> bool:
        """Whether it has a placement; then it is a document of format version 2.0."""
        return any(template.placement is not None for template in self.templates)

    @property
    def has_degrees(self) -> bool:
        """Whether its planner was asked for tensor-parallel degrees; then it is a document of format version 3.0.

        Readers of earlier versions would plan it anew at degree 1.
        """
        return DEGREES in self.planner.options

    @property
    def may_pair(self) -> bool:
        """Whether a template says what pairs of passes take: then it is a document of format version 3.0."""
        return any(template.overlap is not None for template in self.templates)

    @property
    def shards_optimizer(self) -> bool:
        """Whether peers share the optimizer's state; then it is a document of format version 3.0.

        Readers of earlier versions would hold all of it, for which memory limits leave no room.
        """
        return any(template.shard_optimizer for template in self.templates)

    @cached_property
    def has_pairs(self) -> bool:
        """Whether some worker runs a forward and a backward side by side."""
        return any("(" in (worker.order or "") for worker in self.workers)

    def without_pairs(self) -> "Plan":
        """It, with the passes of each pair one after the other, and nothing said of what pairs take.

        Its prediction is left out, for its iterations are longer; itself, where no template says what pairs take.
        """
        if not self.may_pair:
            return self
        return replace(
            self,
            templates=tuple(replace(template, overlap=None) for template in self.templates),
            workers=tuple(
                replace(worker, order=None if worker.order is None else flattened(worker.order))
                for worker in self.workers
            ),
            prediction=None,
        )

    def seats_of(self, worker: Worker) -> tuple[int, ...]:
        """The virtual stages that a worker holds, ascending."""
        return self.template_of(worker.pipeline).columns[worker.stage]

    def stages_of(self, worker: Worker) -> tuple[Stage, ...]:
        """The stages that a worker holds, ascending."""
        return self._stages_of_columns[self.pipelines[worker.pipeline].template][worker.stage]

    @cached_property
    def _stages_of_columns(self) -> dict[str, tuple[tuple[Stage, ...], ...]]:
        """The stages of each column of each template: all readings ask for them, worker by worker."""
        return {
            one.name: tuple(tuple(one.stages[stage] for stage in held) for held in one.columns)
            for one in self.templates
        }

    def stage_of(self, worker: Worker) -> Stage:
        """The stage that a worker holds, which must be one only; `stages_of` and `stage_at` serve all plans."""
        (stage,) = self.stages_of(worker)
        return stage

    def virtual_stage(self, worker: Worker, operation: Operation) -> int:
        """Which stage an operation of a worker is of."""
        return self.seats_of(worker)[0] if operation.stage is None else operation.stage

    def stage_at(self, worker: Worker, operation: Operation) -> Stage:
        """The stage that an operation of a worker is of, which says what it costs."""
        return self.template_of(worker.pipeline).stages[self.virtual_stage(worker, operation)]

    def gpus_of(self, worker: Worker) -> int:
        """On how many GPUs a worker is: as many as its stages are split over."""
        return max(stage.tensor_parallel for stage in self.stages_of(worker))

    def layers_of(self, worker: Worker) -> tuple[Layers, ...]:
        """The layers that a worker holds: ranges, ascending, with others between them."""
        return merged_ranges(stage.layers for stage in self.stages_of(worker))

    def holds_last(self, worker: Worker) -> bool:
        """Whether a worker holds the model's last layer."""
        return self.stages_of(worker)[-1].layers[1] == self.total_layers()

    def limit_bytes(self, worker: Worker) -> float | None:
        """A worker's memory limit for activations, in bytes."""
        return self.template_of(worker.pipeline).limit_bytes(worker.stage)

    def live_workers(self) -> tuple[Worker, ...]:
        """The workers that have not failed, in order: rank r of a run is the r-th of them."""
        return self._live_workers

    @cached_property
    def _live_workers(self) -> tuple[Worker, ...]:
        return tuple(worker for worker in self.workers if not worker.failed)

    def live_ranks(self) -> tuple[tuple[Worker, int], ...]:
        """The processes of a run, in order: each live worker's ranks, from its first one on."""
        return tuple((worker, rank) for worker in self.live_workers() for rank in range(self.gpus_of(worker)))

    def hop_delay_s(self, origin: int, link: int, sender: Worker, receiver: Worker) -> float:
        """Seconds that a message of a micro-batch of pipeline `origin` takes over link `link`, between two workers.

        A hop inside a pipeline takes that pipeline's own links where given; one between pipelines the template's.
        """
        if sender.pipeline == receiver.pipeline:
            return self.links_of(sender.pipeline)[link].delay_s
        return self.template_of(origin).links[link].delay_s

    def boundary_delay_s(self, origin: int, boundary: int, sender: Worker, receiver: Worker) -> float:
        """Seconds that a message at a boundary of layers takes between any two workers, of whatever stages.

        That of the link behind the stage that holds the layer before the boundary, as in `hop_delay_s`: in the
        pipeline of both, else in that of the micro-batch; where its stages end elsewhere, it is the nearest there is.

        Args:
            origin: the micro-batch's pipeline.
            boundary: the layer that follows it.
            sender: who sends; 0 s if it is the receiver itself.
            receiver: who takes it.
        """
        pipeline = sender.pipeline if sender.pipeline == receiver.pipeline else origin
        stages = self.template_of(pipeline).stages
        link = next(number for number, stage in enumerate(stages) if boundary <= stage.layers[1])
        link = min(link, len(stages) - 2)
        return 0.0 if link < 0 or sender == receiver else self.hop_delay_s(origin, link, sender, receiver)

    def microbatch_offset(self, pipeline: int) -> int:
        """The global number of a pipeline's micro-batch 0."""
        return self.microbatch_offsets[pipeline]

    @cached_property
    def microbatch_offsets(self) -> tuple[int, ...]:
        """The global number of each pipeline's micro-batch 0, and of one behind the last."""
        return tuple(accumulate((pipeline.microbatches for pipeline in self.pipelines), initial=0))

    def microbatch_at(self, number: int) -> tuple[int, int]:
        """The pipeline of the micro-batch with a global number, and its number there."""
        pipeline = bisect_right(self.microbatch_offsets, number) - 1
        return pipeline, number - self.microbatch_offsets[pipeline]

    def total_microbatches(self) -> int:
        """Micro-batches of one iteration, over all pipelines."""
        return self.microbatch_offsets[-1]

    def total_layers(self) -> int:
        """Layers of the model, which every template holds."""
        return self.templates[0].stages[-1].layers[1]

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other.

        What the orders mean (completeness, dependencies, memory) is the checker's to judge: `schemas/check.py`.
        """
        self._validate_templates()
        self._validate_sharing()
        for k, pipeline in enumerate(self.pipelines):
            template = self.template_by_name.get(pipeline.template)
            if template is None:
                raise InvalidInputError(
                    f"there is no template {pipeline.template!r}",
                    where=f"/pipelines/{k}/template",
                    fix=f"templates here: {', '.join(self.template_by_name)}",
                )
            if pipeline.links is not None:
                _check_links(pipeline.links, template.stages, f"/pipelines/{k}/links")
                _check_hops(pipeline.links, template, f"/pipelines/{k}/links")
        expected = [(k, i) for k in range(len(self.pipelines)) for i in range(len(self.template_of(k).columns))]
        found = [worker.place for worker in self.workers]
        if found != expected:
            place = next(
                (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
                min(len(found), len(expected)),
            )
            wanted = f"worker {'/'.join(map(str, expected[place]))}" if place < len(expected) else "no further worker"
            raise InvalidInputError(
                f"{wanted} must stand here",
                where=f"/workers/{place}",
                fix="list every worker of every pipeline once, in (pipeline, stage) order",
            )
        for n, worker in enumerate(self.workers):
            if (worker.order is None) == (worker.failed is None):
                raise InvalidInputError(
                    f"worker {worker.name} needs either an order or `failed: true`", where=f"/workers/{n}"
                )
            try:
                check_order_text(worker.order or "", self.seats_of(worker))
            except InvalidInputError as error:
                raise InvalidInputError(error.what, where=f"/workers/{n}/order", fix=error.fix) from None
            if "(" in (worker.order or "") and self.template_of(worker.pipeline).overlap is None:
                raise InvalidInputError(
                    "the order has pairs, and the template does not say what a pair takes",
                    where=f"/workers/{n}/order",
                    fix="give its template an overlap, or write the operations one after the other",
                )
        peaks = self.prediction.peak_memory_bytes if self.prediction else None
        if peaks is not None and len(peaks) != len(self.workers):
            raise InvalidInputError(
                f"{len(peaks)} peaks for {len(self.workers)} workers", where="/prediction/peak_memory_bytes"
            )

    def _validate_sharing(self) -> None:
        if not self.shards_optimizer:
            return
        t = next((t for t, template in enumerate(self.templates) if not template.shard_optimizer), None)
        if t is not None:
            raise InvalidInputError(
                "peers share the optimizer's state in other templates, and not here",
                where=f"/templates/{t}",
                fix="write shard_optimizer in all templates or in none",
            )
        if len(self.pipelines) == 1:
            raise InvalidInputError(
                "there is one pipeline, whose workers have no peers to share the optimizer's state with",
                where="/templates/0/shard_optimizer",
                fix="leave it out",
            )

    def _validate_templates(self) -> None:
        if len(self.template_by_name) < len(self.templates):
            raise InvalidInputError("two templates have one name", where="/templates", fix="name each differently")
        for t, template in enumerate(self.templates):
            where = f"/templates/{t}"
            _check_placement(template, where)
            _check_limits(template, where)
            check_shape(template.stages, template.links, where)
            _check_hops(template.links, template, f"{where}/links")
            expected = template.stages[-1].layers[1]
            if expected != self.total_layers():
                raise InvalidInputError(
                    f"the stages hold {expected} layers, those of template {self.templates[0].name!r} "
                    f"{self.total_layers()}",
                    where=f"{where}/stages",
                    fix="all templates cut the same model: let their last stages end at the same layer",
                )


def merged_ranges(layers: Iterable[Layers]) -> tuple[Layers, ...]:
    """Ranges of layers, given ascending, with neighbours in one."""
    found: list[Layers] = []
    for first, stop in layers:
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], stop
        else:
            found.append((first, stop))
    return tuple(found)


def delay_at_home_s(plan: Plan, one: str, other: str, origin: int | None = None) -> float:
    """Seconds that a message takes between two workers while nothing is wrong.

    Args:
        plan: that the job began with; the workers' names are their places in it.
        one: a worker.
        other: another worker.
        origin: the pipeline of the message's micro-batch, which matters where templates say unlike delays.

    Returns:
        The delay of the link between them; 0 where there is none.
    """
    (k, i), (m, j) = place_of(one), place_of(other)
    if k == m:
        link = plan.template_of(k).link_between(i, j)
        return 0.0 if link is None else plan.links_of(k)[link].delay_s
    known = [pipeline for pipeline in (origin, k, m) if pipeline is not None and pipeline < len(plan.pipelines)]
    for template in map(plan.template_of, known):
        link = template.link_between(i, j)
        if link is not None and link < len(template.links):
            return template.links[link].delay_s
    return 0.0


def check_shape(stages: tuple[Stage, ...], links: tuple[Link, ...], where: str) -> None:
    """Raise InvalidInputError unless the stages of a template follow each other, with links between neighbours.

    Args:
        stages: of the template.
        links: of the template.
        where: its JSON pointer.
    """
    expected = 0
    for i, stage in enumerate(stages):
        if stage.layers[0] != expected or stage.layers[1] <= stage.layers[0]:
            raise InvalidInputError(
                f"stage {i} holds layers {list(stage.layers)}, it must start at {expected} and hold one",
                where=f"{where}/stages/{i}/layers",
                fix="stages are consecutive ranges [first, stop) of layers from 0",
            )
        expected = stage.layers[1]
        if stage.weight_stash_bytes > stage.activation_bytes:
            raise InvalidInputError(
                "weight_stash_bytes is more than the activation_bytes it is a part of",
                where=f"{where}/stages/{i}/weight_stash_bytes",
            )
    _check_links(links, stages, f"{where}/links")


def _check_placement(template: Template, where: str) -> None:
    """Raise InvalidInputError unless each virtual stage is at one column, and not all are where they are anyway."""
    placement, count = template.placement, len(template.stages)
    if placement is None:
        return
    if len(placement) > count:
        what = f"there are {len(placement)} columns for {count} stages"
        raise InvalidInputError(what, where=f"{where}/placement", fix="each column holds one stage at least")
    for c, held in enumerate(placement):
        if not held or any(a >= b for a, b in pairwise(held)) or held[-1] >= count:
            what = "the column is empty" if not held else f"the column holds {list(held)} of {count} virtual stages"
            fix = f"give each column virtual stages of 0 to {count - 1}, ascending"
            raise InvalidInputError(what, where=f"{where}/placement/{c}", fix=fix)
    every = [stage for held in placement for stage in held]
    if len(every) != count or len(set(every)) != count:
        doubled = next((stage for stage in every if every.count(stage) > 1), None)
        missing = next((stage for stage in range(count) if stage not in every), None)
        what = f"stage {missing} is at no column" if doubled is None else f"stage {doubled} is there twice"
        raise InvalidInputError(what, where=f"{where}/placement", fix="each virtual stage is at one column")
    if placement == plain_placement(count):
        what = "each column holds the stage of its number, which needs no placement"
        raise InvalidInputError(what, where=f"{where}/placement", fix="leave it out; limits stand at the stages then")


def _check_limits(template: Template, where: str) -> None:
    """Raise InvalidInputError unless memory limits are at the right place: beside a placement those of columns."""
    placement, limits = template.placement, template.memory_limits_bytes
    if placement is None:
        if limits is not None:
            what = "limits of columns stand here, without a placement"
            raise InvalidInputError(
                what, where=f"{where}/memory_limits_bytes", fix="write memory_limit_bytes at each stage"
            )
        return
    for i, stage in enumerate(template.stages):
        if stage.memory_limit_bytes is not None:
            raise InvalidInputError(
                "a stage has a limit, beside a placement",
                where=f"{where}/stages/{i}/memory_limit_bytes",
                fix="write null here, and the limit of each column in memory_limits_bytes",
            )
    if limits is not None and len(limits) != len(placement):
        what = f"{len(limits)} limits for {len(placement)} columns"
        raise InvalidInputError(what, where=f"{where}/memory_limits_bytes", fix="give one for each column")


def _check_links(links: tuple[Link, ...], stages: tuple[Stage, ...], where: str) -> None:
    if len(links) != len(stages) - 1:
        raise InvalidInputError(
            f"{len(links)} links for {len(stages)} stages",
            where=where,
            fix="give one link fewer than stages: link i lies between stages i and i+1",
        )


def _check_hops(links: tuple[Link, ...], template: Template, where: str) -> None:
    """Raise InvalidInputError unless hops inside a column take no time, and those between two columns the same."""
    if template.placement is None:
        return
    column_of = template.column_of
    first: dict[tuple[int, int], int] = {}
    for i, link in enumerate(links):
        one, other = sorted(column_of[i : i + 2])
        if one == other and link.delay_s != 0:
            what = f"stages {i} and {i + 1} are at one column, a message between them takes no time"
            raise InvalidInputError(what, where=f"{where}/{i}/delay_s", fix="write 0")
        like = first.setdefault((one, other), i)
        if links[like].delay_s != link.delay_s:
            what = f"links {like} and {i} are between the same columns, {one} and {other}, with unlike delays"
            raise InvalidInputError(what, where=f"{where}/{i}/delay_s", fix="give both the same")
