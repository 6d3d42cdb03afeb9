"""What was found: the fastest shapes, what rules the others out, and the plan of the best one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...schemas.documents import digest
from ...schemas.network import seated_in
from ...schemas.plan import Plan
from ...schemas.site import Site
from .search import BestQuestion, PricedShape

OPTION = "best"  # of the planner: how the shape was chosen


@dataclass(frozen=True)
class ExpectedShape:
    """What is left of a shape's throughput when nodes fail.

    Attributes:
        priced: the shape.
        goodput: the share of its throughput without failures that is left in the replay.
        samples_per_s: in the mean, over the whole replay.
    """

    priced: PricedShape
    goodput: float
    samples_per_s: float


@dataclass(frozen=True)
class BestShapes:
    """The answer of `rtk plan best`.

    Attributes:
        question: what was searched.
        site: the machines.
        shapes: the fastest ones, the best first.
        planned: all shapes of which plans were made, for charts.
        ruled_out: how many shapes there are, how many memory or a bound rules out, and how many were planned.
        expected: where nodes fail: what was replayed, the best in expectation first.
        unreplayed: how many of the shapes among the fastest that cannot be: their pipelines fill no whole nodes.
        is_proven: whether no shape that was not replayed can be better in expectation, as far as failures only cost
            time.
    """

    question: BestQuestion
    site: Site
    shapes: Sequence[PricedShape]
    planned: Sequence[PricedShape]
    ruled_out: Mapping[str, int]
    expected: Sequence[ExpectedShape] = ()
    unreplayed: int = 0
    is_proven: bool = True

    @property
    def best(self) -> PricedShape:
        """The one to take: the fastest, or the fastest in expectation where nodes fail."""
        return self.expected[0].priced if self.expected else self.shapes[0]

    def plan(self) -> Plan:
        """The plan of the best shape; its options say what it was chosen among."""
        made = self.best.plan()
        source = self.best.shape.form.source
        made = self._seated().signed(replace(made, inputs={**made.inputs, "profile": digest(source)}), source)
        told: dict[str, Any] = {"batch": self.question.batch, "sharded_over": self.best.shape.shards, **self.ruled_out}
        if self.best.shape.share:
            told |= {"holders": self.best.shape.holders}
        if self.question.has_orders:
            told |= {"side_by_side": self.best.way.side_by_side}
        return replace(made, planner=replace(made.planner, options=made.planner.options | {OPTION: told}))

    def _seated(self) -> Site:
        """The machines with the GPUs of their nodes seated as the best shape has them."""
        cluster = self.site.cluster
        if cluster is None:
            return self.site
        network = seated_in(cluster.network, self.best.way.side_by_side)
        return replace(self.site, cluster=replace(cluster, network=network))

    def tree(self) -> dict[str, Any]:
        """The answer as JSON has it: times in s, sizes in bytes."""
        found: dict[str, Any] = {
            "gpus": self.question.gpus,
            "batch": self.question.batch,
            "ruled_out": dict(self.ruled_out),
            "shapes": [self._row(one) for one in self.shapes],
        }
        if self.expected:
            found["expected"] = [
                {**self._row(one.priced), "goodput": one.goodput, "expected_samples_per_s": one.samples_per_s}
                for one in self.expected
            ]
            found["is_proven"] = self.is_proven
        return found

    def _row(self, one: PricedShape) -> dict[str, Any]:
        shape = one.shape
        return {
            "tensor_parallel": shape.tensor_parallel,
            "pp": shape.pp,
            "dp": shape.dp,
            "microbatches": shape.microbatches,
            "microbatch_size": shape.form.microbatch_size,
            "recomputes": shape.form.recomputes,
            "sharded_over": shape.shards,
            **({"holders": shape.holders} if shape.share else {}),
            "schedule": one.way.schedule,
            "placement": one.way.placement,
            "chunks": one.way.chunks,
            "side_by_side": one.way.side_by_side,
            "overlap": one.way.overlap,
            "gpus": shape.gpus,
            "iteration_time_s": one.iteration_time_s,
            "samples_per_s": one.samples_per_s(self.question.batch),
            "parts_s": one.parts._asdict(),
            "memory_bytes": {**one.memory.parts(), "total": one.memory.total_bytes},
            "loses_by": one.loses_by(self.best),
        }
