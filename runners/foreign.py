"""Plans in the forms of other people's programs: one door out, one door in.

| form | whose | what is written |
|---|---|---|
| torch-csv | torch.distributed.pipelining, `compute_only` | a CSV (torch_csv.py) |
| torch-comms | the same, `compute_comms` | a CSV with every SEND and RECV (torch_comms.py) |
| torchtitan | its trainer, over torch's runtime | a folder (titan_files.py) |
| megatron | Megatron-LM | flags (megatron.py) |
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..schemas.errors import InvalidInputError
from ..schemas.files import source_of, unreadable, write_bytes
from ..schemas.overwriting import OVERWRITING
from ..schemas.placement import loop_placement
from ..schemas.plan import Layers, Plan
from ..schemas.text import joined, known
from .megatron import from_megatron, runs_megatrons_orders, to_megatron
from .titan_files import ORDERS, from_torchtitan, to_torchtitan
from .torch_comms import from_torch_comms_csv, to_torch_comms_csv
from .torch_csv import (
    FULLY_SHARD,
    TorchOrders,
    from_torch_csv,
    not_carried,
    splits_backward,
    text_of_file,
    to_torch_csv,
)

ForeignFormat = Literal["torch-csv", "torch-comms", "torchtitan", "megatron"]
FORMATS: tuple[ForeignFormat, ...] = ("torch-csv", "torch-comms", "torchtitan", "megatron")
CUT, PIPELINES, TENSOR, SHARDED = (
    "the cut into layers",
    "the number of pipelines",
    "tensor parallelism",
    "the sharded optimizer",
)
_CARRIED: dict[ForeignFormat, frozenset[str]] = {  # of what `not_carried` names
    "torch-csv": frozenset(),
    "torch-comms": frozenset(),
    "torchtitan": frozenset({CUT, PIPELINES, TENSOR}),
    "megatron": frozenset({CUT, PIPELINES, TENSOR, SHARDED}),
}


@dataclass(frozen=True)
class ExportedPlan:
    """A plan in another form.

    Attributes:
        files: the text of each file, by its name in a folder; of a form that is one file, that alone.
        lost: what the plan says and the form does not, in words.
        warnings: what is to be known before it is used.
    """

    files: dict[str, str]
    lost: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of a form that is one file."""
        (only,) = self.files.values()
        return only

    def write(self, path: str) -> list[str]:
        """Write the file, or the files into a folder, which is made; the folder that `export_plan` was told.

        Returns:
            The paths of what was written.

        Raises:
            InvalidInputError: it cannot be written.
        """
        if len(self.files) == 1:
            write_bytes(path, self.text.encode())
            return [path]
        self._require_own(Path(path))
        try:
            Path(path).mkdir(exist_ok=True)
        except OSError as error:
            raise unreadable(path, error) from error
        paths = {str(Path(path) / name): text for name, text in self.files.items()}
        for file, text in paths.items():
            write_bytes(file, text.encode())
        return list(paths)

    def _require_own(self, folder: Path) -> None:
        """Raise InvalidInputError unless a folder is none yet, has no such files, or is of an earlier export: nobody
        has named the files that would be overwritten."""
        there = [name for name in self.files if (folder / name).exists()]
        if folder.exists() and not folder.is_dir():
            raise InvalidInputError("this is a file", where=str(folder), fix="name a folder, or one that is to be made")
        if OVERWRITING.is_guarded and there and len(there) < len(self.files):
            raise InvalidInputError(
                f"the folder has {joined(there)} already, and is not of an earlier export",
                where=str(folder),
                fix="name another folder, or add --force",
            )


def export_plan(
    plan: Plan,
    to: ForeignFormat = "torch-csv",
    *,
    folder: str = "",
    microbatch_size: int | None = None,
    ahead: int | None = None,
    yes_unsharded: bool = False,
) -> ExportedPlan:
    """A plan in the form of another program: `rtk export`.

    Args:
        plan: a valid plan.
        to: the form: "torch-csv", "torch-comms", "torchtitan" or "megatron".
        folder: torchtitan: where its files will be, which its settings name.
        microbatch_size: rows of a micro-batch, for torchtitan and Megatron; None: those of the plan's profile, else 1.
        ahead: torch-comms and torchtitan: how many operations a receive stands before the one that needs it; None: when
            the message is sent, by the plan's times.
        yes_unsharded: torchtitan: that the stages are not wrapped in `fully_shard`, so that orders that split the
            backward pass may be written.

    Returns:
        Its files, and what is lost.

    Raises:
        InvalidInputError: the form cannot carry what the plan means, or the orders split the backward pass and would
            run under `fully_shard`.
    """
    known(to, FORMATS, "--to")
    is_split = splits_backward(plan) and to != "megatron"
    if to == "torchtitan" and is_split and not yes_unsharded:
        raise InvalidInputError(
            FULLY_SHARD,
            where="--to torchtitan",
            fix="say --yes-unsharded if your parallelize_fn does without fully_shard, or plan with --schedule 1f1b",
        )
    rows = microbatch_size or _rows_of(plan)
    if to == "torchtitan":
        files = to_torchtitan(plan, folder, rows, ahead)
    elif to == "megatron":
        files = {"megatron.args": to_megatron(plan, rows)}
    else:
        files = {"orders.csv": to_torch_csv(plan) if to == "torch-csv" else to_torch_comms_csv(plan, ahead)}
    lost = [name for name in not_carried(plan) if name not in _CARRIED[to]]
    if to == "megatron" and not runs_megatrons_orders(plan):
        lost.insert(0, "the orders (Megatron runs its own)")
    warnings = [FULLY_SHARD] if is_split else []
    if ahead is not None and to in ("torch-comms", "torchtitan"):
        warnings.append("receives ahead of their messages are for gloo: NCCL may hang on them")
    return ExportedPlan(files, tuple(lost), tuple(warnings))


def _rows_of(plan: Plan) -> int:
    rows = plan.planner.options.get("microbatch_size")
    return rows if isinstance(rows, int) and rows > 0 else 1


class ForeignOrders(NamedTuple):
    """What a file, or a folder, of another program says of a plan.

    Attributes:
        orders: of one pipeline.
        source: where they stand, for errors.
        text: that says them.
        cut: the layers of each stage, where it is said.
        pipelines: how many there are, where it is said.
        tensor_parallel: GPUs of a worker.
    """

    orders: TorchOrders
    source: str
    text: str
    cut: tuple[Layers, ...] | None = None
    pipelines: int | None = None
    tensor_parallel: int = 1


def read_foreign(path: str, form: ForeignFormat, pipelines: int) -> ForeignOrders:
    """Read the orders of another program.

    Args:
        path: a file, or torchtitan's folder; `-` is standard input.
        form: whose it is.
        pipelines: how many there are to be: Megatron's global batch is shared out by them.

    Raises:
        InvalidInputError: it cannot be read; says where.
    """
    known(form, FORMATS, "--from")
    if form == "torchtitan":
        found = from_torchtitan(path)
        orders_file = str(Path(path) / ORDERS)
        said = found.orders, orders_file, text_of_file(orders_file)
        return ForeignOrders(*said, found.cut, found.pipelines, found.tensor_parallel)
    source, text = source_of(path), text_of_file(path)
    if form == "megatron":
        flags = from_megatron(text, source, pipelines)
        columns = len(flags.orders)
        placement = loop_placement(columns, flags.chunks) if flags.chunks > 1 else None
        orders = TorchOrders(flags.orders, placement, (frozenset(),) * columns)
        return ForeignOrders(orders, source, text, flags.cut, pipelines, flags.tensor_parallel)
    read = from_torch_csv if form == "torch-csv" else from_torch_comms_csv
    return ForeignOrders(read(text, source), source, text)
