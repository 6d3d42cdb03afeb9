"""Which workers are dead: what dies as one, and what no re-routing survives."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Place, name_of


@dataclass(frozen=True)
class Grid:
    """The workers of equal pipelines, in units of workers that die together.

    A unit holds `unit_stages` neighbouring stages of `unit_pipelines` neighbouring pipelines: a server, or what else
    fails as one. SlipStream, section 3.4, "Multi-GPU Servers and Tensor Parallelism"; a tensor-parallel group is one
    worker here. A **column** is the units of the same stages.

    Raises:
        InvalidInputError: the units do not divide the grid.
    """

    pipelines: int
    stages: int
    unit_pipelines: int = 1
    unit_stages: int = 1

    def __post_init__(self) -> None:
        if self.pipelines % self.unit_pipelines or self.stages % self.unit_stages:
            raise InvalidInputError(
                f"units of {self.unit_pipelines} x {self.unit_stages} workers do not divide "
                f"{self.pipelines} pipelines x {self.stages} stages",
                where="--failure-unit",
                fix="both numbers must divide those of the cluster: --dp and --pp",
            )

    @property
    def columns(self) -> int:
        """Units beside each other."""
        return self.stages // self.unit_stages

    @property
    def units(self) -> int:
        """Units of a column."""
        return self.pipelines // self.unit_pipelines

    def unit_of(self, place: Place) -> Place:
        """The unit (row and column) that a worker is in."""
        return place[0] // self.unit_pipelines, place[1] // self.unit_stages

    def places(self, unit: Place) -> Iterator[Place]:
        """The workers of a unit."""
        for k in range(unit[0] * self.unit_pipelines, (unit[0] + 1) * self.unit_pipelines):
            for i in range(unit[1] * self.unit_stages, (unit[1] + 1) * self.unit_stages):
                yield k, i

    def require_places(self, places: Iterable[Place], where: str) -> None:
        """Raise InvalidInputError, naming the option, if there are no such workers."""
        for k, i in places:
            if not (0 <= k < self.pipelines and 0 <= i < self.stages):
                raise InvalidInputError(
                    f"there is no worker {k}/{i}",
                    where=where,
                    fix=f"workers are 0/0 to {self.pipelines - 1}/{self.stages - 1}: pipeline/stage",
                )

    def failed_units(self, failed: Iterable[Place]) -> frozenset[Place]:
        """The units of failed workers.

        Raises:
            InvalidInputError: there is no such worker, or one is named twice, or two of one unit are.
        """
        places = list(failed)
        self.require_places(places, "--failed")
        found: dict[Place, Place] = {}
        for k, i in places:
            unit = self.unit_of((k, i))
            if unit in found:
                other = "twice" if found[unit] == (k, i) else f"beside {name_of(found[unit])} of its unit"
                raise InvalidInputError(
                    f"worker {k}/{i} is named {other}",
                    where="--failed",
                    fix="name one worker of each dead unit, once",
                )
            found[unit] = (k, i)
        return frozenset(found)

    def column_failures(self, units: Iterable[Place]) -> tuple[int, ...]:
        """How many units of each column have failed.

        Raises:
            InfeasibleError: a column has no live unit.
        """
        counts = [0] * self.columns
        for _, column in units:
            counts[column] += 1
        for column, count in enumerate(counts):
            if count >= self.units:
                raise _stage_lost(column * self.unit_stages)
        return tuple(counts)

    def require_live_stages(self, units: Iterable[Place]) -> None:
        """Raise InfeasibleError if failed units leave some stage without a live worker."""
        self.column_failures(units)

    def require_feasible(self, failures: int, where: str) -> None:
        """Raise InfeasibleError, naming the option, if so many failed units leave some column without a live one."""
        most = self.columns * (self.units - 1)
        if failures > most:
            raise InfeasibleError(
                f"{failures} failures leave a stage without a live worker",
                where=where,
                fix=f"at most {most} failures leave every stage a live worker",
            )

    def stage_failures(self, column_failures: Sequence[int]) -> tuple[int, ...]:
        """How many workers of each stage are dead, by the failed units of each column."""
        return tuple(n * self.unit_pipelines for n in column_failures for _ in range(self.unit_stages))

    def last_units(self, column_failures: Sequence[int]) -> frozenset[Place]:
        """Failed units where only their numbers are known: the last rows of each column."""
        return frozenset(
            (self.units - 1 - n, column) for column, count in enumerate(column_failures) for n in range(count)
        )


def _stage_lost(stage: int) -> InfeasibleError:
    return InfeasibleError(
        f"stage {stage} has lost all its workers: no peer holds its parameters",
        where="--failed",
        fix="restore a checkpoint and plan a new shape for the workers that are left, as SlipStream (section 3.4) does",
    )
