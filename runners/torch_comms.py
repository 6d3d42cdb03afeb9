"""Torch's `compute_comms` files: the orders of torch_csv.py with a SEND and a RECV for every message.

Torch's runtime executes such a file as it is (`_PipelineScheduleRuntime._load_csv(…, format="compute_comms")`). It
posts the receive where RECV stands, waits for it at the operation that needs it, and tells messages between two ranks
by their order only. Every row begins with UNSHARD and ends with RESHARD and REDUCE_GRAD, of all its stages. They are
not for `fully_shard` alone: torch 2.13 divides the gradients by the micro-batches in REDUCE_GRAD, and without it trains
wrongly and says nothing.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, cast

from ..schemas.errors import InvalidInputError, remark
from ..schemas.orders import Kind
from ..schemas.plan import Plan, plain_placement
from ..schemas.text import listed
from .torch_csv import (
    NUMBER,
    TorchOrders,
    TorchToken,
    as_rows,
    cells_with_columns,
    from_torch_csv,
    orders_of,
    parse_cell,
    refuse_what_is_no_order,
)

_MESSAGE = re.compile(rf"({NUMBER})(SEND|RECV)_([FB])({NUMBER})")
_WHOLE = re.compile(rf"({NUMBER})(UNSHARD|RESHARD|REDUCE_GRAD)")


class StageMessage(NamedTuple):
    """What one stage makes for the next one (F) or the one before (B), by the stage that takes it."""

    stage: int
    way: Literal["F", "B"]
    microbatch: int

    @classmethod
    def of(cls, one: TorchToken, stages: int) -> "StageMessage | None":
        """What an operation makes for another stage, if anything."""
        if one.kind == "W":
            return None
        to: int = one.stage + 1 if one.kind == "F" else one.stage - 1
        return cls(to, "F" if one.kind == "F" else "B", one.microbatch) if 0 <= to < stages else None

    @property
    def maker(self) -> int:
        """The stage that sends it."""
        return self.stage - 1 if self.way == "F" else self.stage + 1

    @property
    def takers(self) -> tuple[TorchToken, ...]:
        """The operations that may need it: of a backward pass, whole or its first half."""
        kinds: tuple[Kind, ...] = ("F",) if self.way == "F" else ("I", "B")
        return tuple(TorchToken(self.stage, kind, self.microbatch) for kind in kinds)

    @property
    def send(self) -> str:
        """Torch's token of sending it."""
        return f"{self.maker}SEND_{self.way}{self.microbatch}"

    @property
    def receive(self) -> str:
        """Torch's token of receiving it."""
        return f"{self.stage}RECV_{self.way}{self.microbatch}"


def to_torch_comms_csv(plan: Plan, ahead: int | None = None) -> str:
    """Write a plan's orders as a `compute_comms` CSV.

    A SEND stands behind the operation that made the message; between two stages of one rank, where the runtime hands
    it over, there is none. The RECV is announced at the same moment of a run at the plan's times, or before the
    operation that runs then. So any two ranks name the messages between them in one order, as NCCL wants, which would
    hang otherwise. Torch's own lowering does likewise, at one operation a rank and turn, whatever these last.

    With `ahead` a RECV stands so many operations before the one that needs it, or earlier where a message that the same
    rank sends later is needed sooner. Then the two ranks name the messages of each direction in one order, which is
    enough for gloo, and not for NCCL.

    Args:
        plan: a valid plan.
        ahead: 0: just in time; k: k operations ahead; None: when the message is sent, by the plan's times.

    Returns:
        One line a rank.

    Raises:
        InvalidInputError: as `to_torch_csv`.
    """
    refuse_what_is_no_order(plan)
    rows, template = _at_the_plans_times(plan), plan.template_of(0)
    if ahead is not None:
        rows = [_received_ahead(row, template.column_of, ahead) for row in rows]
    framed = (
        [
            *(f"{stage}UNSHARD" for stage in held),
            *(str(cell) if isinstance(cell, TorchToken) else cell[1] for cell in row),
            *(f"{stage}{last}" for stage in held for last in ("RESHARD", "REDUCE_GRAD")),
        ]
        for row, held in zip(rows, template.columns, strict=True)
    )
    return as_rows(framed)


_Row = list[TorchToken | tuple[StageMessage, str]]  # operations, and messages with their tokens


def _at_the_plans_times(plan: Plan) -> list[_Row]:
    """The row of each rank, every RECV where the message is sent in a run at the plan's times."""
    orders, slowdowns = orders_of(plan), [worker.slowdown or 1.0 for worker in plan.workers]
    template = plan.template_of(0)
    stages, rank_of = template.stages, template.column_of
    rows: list[_Row] = [[] for _ in orders]
    free_s = [0.0] * len(orders)
    arrived_s: dict[TorchToken, float] = {}  # by the operation that waits for it
    done = [0] * len(orders)

    def end_s(rank: int) -> float | None:
        """When a rank's next operation ends, or that it has none that can run."""
        if done[rank] == len(orders[rank]):
            return None
        one = orders[rank][done[rank]]
        takes_something = one.stage > 0 if one.kind == "F" else one.kind != "W" and one.stage < len(stages) - 1
        ready_s = arrived_s.get(one, None if takes_something else 0.0)
        if ready_s is None:
            return None
        return max(free_s[rank], ready_s) + stages[one.stage].duration_s(one.kind) * slowdowns[rank]

    for _ in range(sum(map(len, orders))):
        ends_s = {rank: end for rank in range(len(orders)) if (end := end_s(rank)) is not None}
        rank = min(ends_s, key=lambda one: (ends_s[one], one))
        one = orders[rank][done[rank]]
        done[rank] += 1
        free_s[rank] = ends_s[rank]
        rows[rank].append(one)
        message = StageMessage.of(one, len(stages))
        if message is None:
            continue
        arrived_s |= dict.fromkeys(message.takers, free_s[rank])
        if rank_of[message.stage] != rank:
            rows[rank].append((message, message.send))
            rows[rank_of[message.stage]].append((message, message.receive))
    return rows


def _received_ahead(row: _Row, rank_of: Sequence[int], ahead: int) -> _Row:
    """A row with its receives moved; those from one rank stay in the order in which that one sends."""
    kept: _Row = [cell for cell in row if isinstance(cell, TorchToken) or cell[1] == cell[0].send]
    operations = [place for place, cell in enumerate(kept) if isinstance(cell, TorchToken)]
    number_of = {kept[place]: number for number, place in enumerate(operations)}
    received = [cell[0] for cell in row if not isinstance(cell, TorchToken) and cell[1] == cell[0].receive]
    before: defaultdict[int, list[StageMessage]] = defaultdict(list)  # by the place in `kept` that they stand before
    latest: dict[int, int] = {}  # by the rank that sends, of those behind
    for message in reversed(received):
        needed = next(number_of[one] for one in message.takers if one in number_of)
        sender, wanted = rank_of[message.maker], operations[max(0, needed - ahead)]
        latest[sender] = min(wanted, latest.get(sender, wanted))
        before[latest[sender]].append(message)
    moved: _Row = []
    for place, cell in enumerate(kept):
        moved += [(message, message.receive) for message in reversed(before[place])]
        moved.append(cell)
    return moved


def from_torch_comms_csv(text: str, source: str) -> TorchOrders:
    """Read a `compute_comms` CSV: its orders, once its messages are found to be all there.

    Args:
        text: the file's text.
        source: the file's name, for errors.

    Raises:
        InvalidInputError: as `from_torch_csv`; or a message is not sent or not received, twice, by another rank than
            that of its stage, before it is made or after it was needed, or two ranks name those of one direction in
            unlike orders, which torch's runtime would mix up; says the line and column.
    """
    lines = text.rstrip().split("\n")
    found = from_torch_csv("\n".join(map(_blanked, lines)), source)
    columns = found.placement or plain_placement(len(found.orders))
    rank_of = {stage: rank for rank, held in enumerate(columns) for stage in held}
    _require_messages(list(_told(lines, source)), rank_of)
    cells = (_WHOLE.fullmatch(cell) for line in lines for cell, _ in cells_with_columns(line))
    reduced = {int(whole[1]) for whole in cells if whole is not None and whole[2] == "REDUCE_GRAD"}
    if unreduced := sorted(set(rank_of) - reduced):
        where = f"{source}: no REDUCE_GRAD of stage {listed(map(str, unreduced))}"
        remark(f"warning: {where}, where torch 2.13 divides gradients: it would train wrongly")
    return found


class _Told(NamedTuple):
    """A cell: what it says, and where."""

    rank: int
    number: int  # in its row
    cell: TorchToken | StageMessage
    token: str
    where: str


def _blanked(line: str) -> str:
    """A line with spaces for what is no operation, so that columns stay as they are."""
    cells = line.split(",")
    is_other = (_MESSAGE.fullmatch(cell.strip()) or _WHOLE.fullmatch(cell.strip()) for cell in cells)
    return ",".join(" " * len(cell) if other else cell for cell, other in zip(cells, is_other, strict=True))


def _told(lines: Sequence[str], source: str) -> Iterator[_Told]:
    """The operations and messages of all ranks."""
    for rank, line in enumerate(lines):
        for number, (cell, column) in enumerate(cells_with_columns(line)):
            where = f"{source}, line {rank + 1} column {column}"
            if (m := _MESSAGE.fullmatch(cell)) is not None:
                way = cast(Literal["F", "B"], m[3])
                sent_to = int(m[1]) + (1 if way == "F" else -1)
                message = StageMessage(int(m[1]) if m[2] == "RECV" else sent_to, way, int(m[4]))
                yield _Told(rank, number, message, cell, where)
            elif _WHOLE.fullmatch(cell) is None:
                yield from (_Told(rank, number, one, str(one), where) for one in parse_cell(cell, where))


def _require_messages(told: Sequence[_Told], rank_of: dict[int, int]) -> None:
    """Raise InvalidInputError unless each message goes out behind what makes it, and comes in before what needs it."""
    computed = {one.cell: one for one in told if isinstance(one.cell, TorchToken)}
    made = {
        message: one for cell, one in computed.items() if (message := StageMessage.of(cell, len(rank_of))) is not None
    }
    ends = {  # who makes it, and who needs it: what nobody makes or needs is for the checker of orders to tell
        message: (maker, computed[taker])
        for message, maker in made.items()
        for taker in message.takers
        if taker in computed and rank_of[message.stage] != maker.rank
    }
    seen: dict[str, _Told] = {}
    for one in told:
        if isinstance(one.cell, StageMessage):
            _require_place(one, ends.get(one.cell), rank_of, seen)
            seen[one.token] = one
    for message, (maker, taker) in ends.items():
        for token, side, place in ((message.send, maker, "behind"), (message.receive, taker, "before")):
            if token not in seen:
                raise InvalidInputError(
                    f"{token} is missing: torch would wait for it without an end",
                    where=side.where,
                    fix=f"write {token} {place} {side.token}, or give a compute_only file (--from torch-csv)",
                )
    _require_one_order(seen.values(), rank_of)


def _require_place(
    one: _Told, ends: tuple[_Told, _Told] | None, rank_of: dict[int, int], seen: Collection[str]
) -> None:
    """Raise InvalidInputError unless a SEND or RECV belongs to a message of its rank, once and where it may stand."""
    message = cast(StageMessage, one.cell)
    is_sent = one.token == message.send
    rank = rank_of.get(message.maker if is_sent else message.stage)
    if ends is None or rank != one.rank or one.token in seen:
        what = "stands here once more" if one.token in seen else "is of no message between this rank and another"
        raise InvalidInputError(f"{one.token} {what}", where=one.where, fix="take it out")
    maker, taker = ends
    if is_sent and one.number < maker.number:
        raise _misplaced(one, "before", maker, "behind")
    if not is_sent and one.number > taker.number:
        raise _misplaced(one, "behind", taker, "before")


def _misplaced(one: _Told, found: str, other: _Told, right: str) -> InvalidInputError:
    what = f"{one.token} stands {found} {other.token}"
    return InvalidInputError(what, where=one.where, fix=f"write it {right} {other.token}")


def _require_one_order(told: Iterable[_Told], rank_of: dict[int, int]) -> None:
    """Raise InvalidInputError where a rank receives in another order than the other one sends."""
    ways: defaultdict[tuple[int, int], tuple[list[_Told], list[_Told]]] = defaultdict(lambda: ([], []))
    for one in told:
        message = cast(StageMessage, one.cell)
        way = rank_of[message.maker], rank_of[message.stage]
        ways[way][one.token != message.send].append(one)
    for sent, received in ways.values():
        for out, into in zip(sent, received, strict=True):
            if out.cell != into.cell:
                raise InvalidInputError(
                    f"{into.token} stands where the other rank sends {out.token}: torch would take one for the other",
                    where=into.where,
                    fix=f"receive in the order in which that rank sends ({out.where})",
                )
