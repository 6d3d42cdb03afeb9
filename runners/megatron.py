"""A plan as Megatron-LM takes it: `--pipeline-model-parallel-layout` and the flags beside it, written and read.

The layout names the layers of each virtual stage: E the embedding, t a block, L norm, head and loss, `|` between
stages; virtual stage v is on rank v mod P (megatron-core 0.16.1, `transformer/pipeline_parallel_layer_layout.py`).
Orders cannot be given: Megatron runs its own 1F1B, or its interleaved 1F1B where ranks have several stages
(`pipeline_parallel/schedules.py`: `get_pp_rank_microbatches`, `get_schedule_table`).
"""

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from ..schemas.errors import InvalidInputError
from ..schemas.orders import Operation
from ..schemas.placement import loop_placement, placement_words
from ..schemas.plan import Layers, Plan
from ..schemas.text import counted, listed
from .titan_files import blocks_of

MOST_STAGES_AND_LAYERS = 100_000  # of a layout: `(t)*999999999` is three characters to write
_SIZES = {
    "--tensor-model-parallel-size": 1,
    "--pipeline-model-parallel-size": 1,
    "--micro-batch-size": None,
    "--global-batch-size": None,
    "--num-layers": None,
    "--num-virtual-stages-per-pipeline-rank": None,
    "--num-layers-per-virtual-pipeline-stage": None,
}
_LAYOUT = "--pipeline-model-parallel-layout"
_ASSIGNMENT, _VARIABLE = (
    re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL),
    re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^{}]*))?\})"),
)


def to_megatron(plan: Plan, microbatch_size: int = 1) -> str:
    """Megatron's flags for a plan, one a line, for `pretrain_gpt.py $(cat FILE) …`.

    Args:
        plan: a valid plan of a decoder: its first layer is the embedding, its last one the head.
        microbatch_size: rows of a micro-batch.

    Returns:
        The flags. The number of pipelines follows from the world size: it is no flag.

    Raises:
        InvalidInputError: what Megatron has no flag for: failed workers, re-routed micro-batches, a staggered
            optimizer, unlike pipelines, another placement than plain or a loop, unlike tensor-parallel degrees, or
            micro-batches that its interleaved schedule does not take.
    """
    _refuse_what_has_no_flag(plan)
    template, blocks = plan.template_of(0), blocks_of(plan)
    columns, chunks = len(template.columns), len(template.columns[0])
    letters = "E" + "t" * blocks + "L"
    flags = {
        "--tensor-model-parallel-size": template.stages[0].tensor_parallel,
        "--pipeline-model-parallel-size": columns,
        _LAYOUT: "|".join(letters[slice(*stage.layers)] for stage in template.stages),
        "--num-layers": blocks,
        "--micro-batch-size": microbatch_size,
        "--global-batch-size": microbatch_size * sum(pipeline.microbatches for pipeline in plan.pipelines),
    }
    _require_interleavable(plan.pipelines[0].microbatches, columns, chunks, "/pipelines/0/microbatches")
    sharded = "--use-distributed-optimizer\n" if plan.shards_optimizer else ""
    return "".join(f"{flag} {value}\n" for flag, value in flags.items()) + sharded


def runs_megatrons_orders(plan: Plan) -> bool:
    """Whether every pipeline's orders are those that Megatron runs; pairs of passes never are."""
    columns = plan.template_of(0).columns
    expected = megatron_orders(len(columns), len(columns[0]), plan.pipelines[0].microbatches)
    return not plan.has_pairs and all(
        worker.operations() == tuple(one._replace(pipeline=worker.pipeline) for one in expected[worker.stage])
        for worker in plan.workers
    )


def megatron_orders(columns: int, chunks: int, microbatches: int) -> list[tuple[Operation, ...]]:
    """The orders that Megatron runs, of the ranks of pipeline 0.

    Forwards go through groups of as many micro-batches as there are ranks, chunk after chunk, and backwards likewise
    from the last chunk on (`get_schedule_table`). A rank begins with as many
    forwards as `get_pp_rank_microbatches` says, and then has one forward and one backward in turn.

    Args:
        columns: ranks of a pipeline.
        chunks: virtual stages of each.
        microbatches: of a pipeline.
    """
    table = [
        (microbatch, chunk)
        for first in range(0, microbatches, columns)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + columns, microbatches))
    ]
    orders = []
    for rank in range(columns):
        held = [chunk * columns + rank if chunks > 1 else None for chunk in range(chunks)]
        forwards = [Operation("F", 0, microbatch, held[chunk]) for microbatch, chunk in table]
        backwards = [Operation("B", 0, microbatch, held[chunks - 1 - chunk]) for microbatch, chunk in table]
        behind = columns - rank - 1
        warm = min(len(table), behind if chunks == 1 else 2 * behind + (chunks - 1) * columns)
        steady = len(table) - warm
        turns = [one for pair in zip(forwards[warm:], backwards, strict=False) for one in pair]
        orders.append((*forwards[:warm], *turns, *backwards[steady:]))
    return orders


def _refuse_what_has_no_flag(plan: Plan) -> None:
    """Raise InvalidInputError for what a plan means beyond equal, whole pipelines in loops."""
    failed = next((number for number, worker in enumerate(plan.workers) if worker.failed), None)
    away = (any(one.pipeline != worker.pipeline for one in worker.operations()) for worker in plan.workers)
    abroad = next((number for number, is_away in enumerate(away) if is_away), None)
    counts = sorted({pipeline.microbatches for pipeline in plan.pipelines})
    template = plan.template_of(0)
    degrees = sorted({stage.tensor_parallel for stage in template.stages})
    columns = template.columns
    problems = (
        (plan.optimizer == "staggered", "a staggered optimizer", "/optimizer"),
        (failed is not None, "failed workers", f"/workers/{failed}/failed"),
        (abroad is not None, "re-routed micro-batches", f"/workers/{abroad}/order"),
        (len({pipeline.template for pipeline in plan.pipelines}) > 1, "pipelines of several templates", "/pipelines"),
        (len(counts) > 1, f"pipelines of {' and '.join(map(str, counts))} micro-batches", "/pipelines"),
        (len(degrees) > 1, f"unlike tensor-parallel degrees ({listed(map(str, degrees))})", "/templates/0/stages"),
        (
            columns != loop_placement(len(columns), len(columns[0])),
            f"the placement {placement_words(columns)}",
            "/templates/0/placement",
        ),
    )
    for is_there, what, where in problems:
        if is_there:
            raise InvalidInputError(
                f"Megatron has no flag for {what}",
                where=where,
                fix="export a plan of equal pipelines without failures, of --placement plain or loop",
            )


def _require_interleavable(microbatches: int, columns: int, chunks: int, where: str) -> None:
    """Raise InvalidInputError where Megatron's interleaved schedule would refuse the micro-batches."""
    if chunks > 1 and (columns == 1 or microbatches % columns):
        raise InvalidInputError(
            f"Megatron interleaves micro-batches in groups of {columns}, and there are {microbatches}"
            if columns > 1
            else "Megatron has no virtual stages on a single rank",
            where=where,
            fix=f"take a multiple of {columns} micro-batches" if columns > 1 else "take one stage a rank",
        )


class MegatronFlags(NamedTuple):
    """What Megatron's flags say of a plan.

    Attributes:
        orders: of one pipeline.
        chunks: virtual stages of a rank.
        cut: the layers of each virtual stage.
        tensor_parallel: GPUs of a worker.
    """

    orders: tuple[tuple[Operation, ...], ...]
    chunks: int
    cut: tuple[Layers, ...]
    tensor_parallel: int


def from_megatron(text: str, source: str, pipelines: int) -> MegatronFlags:
    """Read a layout and the flags beside it; without one the blocks are shared out evenly, as Megatron does.

    Args:
        text: flags as on a command line; lines may end in `\\`, be comments, and hold other flags and words. Variables
            that it assigns are filled in.
        source: the file's name, for errors.
        pipelines: data-parallel replicas, by which the global batch is shared out.

    Raises:
        InvalidInputError: a flag is missing or no number, the layout holds other letters or other layers than it may,
            or the flags contradict each other; says the flag.
    """
    given = _flags(text, source)
    sizes = {flag: _size(given, flag, default, source) for flag, default in _SIZES.items()}
    where = f"{source}, {_LAYOUT}"
    parts = parse_layout(given[_LAYOUT], where) if _LAYOUT in given else _even_layout(sizes, source)
    columns = sizes["--pipeline-model-parallel-size"] or 1
    chunks, rest = divmod(len(parts), columns)
    virtual = sizes["--num-virtual-stages-per-pipeline-rank"]
    if rest or virtual not in (None, chunks):
        what = f"{counted(columns, 'rank')} of {virtual} virtual stages" if virtual else counted(columns, "rank")
        raise InvalidInputError(
            f"the layout has {counted(len(parts), 'stage')}, which do not go on {what}",
            where=where,
            fix="let it have as many stages as --pipeline-model-parallel-size, or a multiple of that",
        )
    blocks = sum(part.count("t") for part in parts)
    if sizes["--num-layers"] not in (None, blocks):
        what = f"the layout has {counted(blocks, 'block')} (t), --num-layers is {sizes['--num-layers']}"
        raise InvalidInputError(what, where=where, fix="let both say the same")
    microbatches = _microbatches(sizes, pipelines, source)
    _require_interleavable(microbatches, columns, chunks, f"{source}, --global-batch-size")
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    orders = tuple(megatron_orders(columns, chunks, microbatches))
    return MegatronFlags(orders, chunks, tuple(pairwise(ends)), sizes["--tensor-model-parallel-size"] or 1)


def _even_layout(sizes: Mapping[str, int | None], source: str) -> list[str]:
    """The stages of as many blocks each, the embedding before the first and the head behind the last."""
    blocks, columns = sizes["--num-layers"], sizes["--pipeline-model-parallel-size"] or 1
    if blocks is None:
        fix = f"add {_LAYOUT} 'Et…|t…|…tL' (rtk export --to megatron writes one), or --num-layers for equal stages"
        raise InvalidInputError(f"there is no {_LAYOUT}", where=source, fix=fix)
    each = sizes["--num-layers-per-virtual-pipeline-stage"]
    stages = columns * (sizes["--num-virtual-stages-per-pipeline-rank"] or 1) if each is None else blocks // each
    if not stages or blocks % stages or stages % columns or each not in (None, blocks // stages):
        what = f"{counted(blocks, 'block')} do not go on {counted(stages, 'equal stage')} of {counted(columns, 'rank')}"
        raise InvalidInputError(what, where=f"{source}, --num-layers", fix=f"give {_LAYOUT}, or other numbers")
    parts = ["t" * (blocks // stages)] * stages
    parts[0] = f"E{parts[0]}"
    return [*parts[:-1], f"{parts[-1]}L"]


def _flags(text: str, source: str) -> dict[str, str]:
    """The values of the flags that matter; the last one counts, as for argparse."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InvalidInputError(f"the flags cannot be read: {error}", where=source, fix="close the quotes") from error
    found: dict[str, str] = {}
    variables: dict[str, str] = {}

    def value_of(variable: re.Match[str]) -> str:
        return variables.get(variable[1] or variable[2], variable[3] or variable[0])

    for word, behind in zip(words, [*words, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if flag in _SIZES or flag == _LAYOUT:
            found[flag] = _VARIABLE.sub(value_of, value if equals else behind)
        elif assigned := _ASSIGNMENT.fullmatch(word):
            variables[assigned[1]] = _VARIABLE.sub(value_of, assigned[2])[:MOST_STAGES_AND_LAYERS]
    return found


def _size(given: Mapping[str, str], flag: str, default: int | None, source: str) -> int | None:
    """The value of a flag that is a positive number."""
    if flag not in given:
        return default
    if re.fullmatch(r"[1-9][0-9]{0,8}", given[flag]) is None:
        fix = "write its value: nothing in the script assigns it" if "$" in given[flag] else "give one"
        raise InvalidInputError(f"{given[flag]!r} is no positive number", where=f"{source}, {flag}", fix=fix)
    return int(given[flag])


def _microbatches(sizes: Mapping[str, int | None], pipelines: int, source: str) -> int:
    """The micro-batches of a pipeline."""
    whole, each = sizes["--global-batch-size"], sizes["--micro-batch-size"]
    if whole is None or each is None:
        flag = "--global-batch-size" if whole is None else "--micro-batch-size"
        raise InvalidInputError(f"there is no {flag}", where=source, fix=f"add it: {flag} N")
    count, rest = divmod(whole, each * pipelines)
    if rest or not count:
        raise InvalidInputError(
            f"a global batch of {whole} is no multiple of {counted(pipelines, 'pipeline')} of micro-batches of {each}",
            where=f"{source}, --global-batch-size",
            fix="say how many pipelines there are (--dp), or mend one of the two sizes",
        )
    return count


def parse_layout(layout: str, where: str) -> list[str]:
    """The letters of each stage of a layout, its products written out: `Et|(tt|)*2L` is `Et`, `tt`, `tt`, `L`.

    Raises:
        InvalidInputError: it holds something else, no layer on a stage, or not one E first, one L last and t between.
    """
    unrolled = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"([^()*])\*(\d+)"):  # as Megatron does: products of parentheses first
        size = len(unrolled) + sum(len(m[1]) * int(m[2][:9]) for m in re.finditer(pattern, unrolled))
        if size > MOST_STAGES_AND_LAYERS:
            fix = "check what stands behind *"
            raise InvalidInputError("the layout is longer than any model", where=where, fix=fix)
        unrolled = re.sub(pattern, lambda m: m[1] * int(m[2][:9]), unrolled)
    if (other := re.search(r"[^EtL|]", unrolled)) is not None:
        what = "a layer of multi-token prediction (m), which plans have not" if other[0] == "m" else repr(other[0])
        raise InvalidInputError(
            f"the layout holds {what}", where=where, fix="write E, t and L, | between stages, and (…)*n or t*n"
        )
    parts = unrolled.split("|")
    if "" in parts:
        what = f"stage {parts.index('')} of the layout has no layer, and a stage of a plan has one at least"
        raise InvalidInputError(what, where=where, fix="give every stage a layer")
    if re.fullmatch(r"Et+L", "".join(parts)) is None:
        what = "the layout is not an embedding (E), blocks (t) and a head (L) in this order, each end once"
        raise InvalidInputError(what, where=where, fix="write E first, L last, and t between them")
    return parts
