"""A plan as torchtitan's trainer takes it, with torch's runtime under it: a folder of files, written and read.

| file | what torchtitan does with it |
|---|---|
| `schedule.csv` | `pipeline_parallel_schedule_csv`: the orders, to which torch adds the messages |
| `parallelism.json` | keyword arguments of `ParallelismConfig` (torchtitan 0.3, whose settings are Python) |
| `parallelism.toml` | the same as lines of a job's TOML (torchtitan 0.2), in which the head is called `output` |
| `schedule-comms.csv`, `pipelining.py` | a `pipelining_fn` for the `ModelSpec`: receives where the plan has them |

Written against torchtitan 0.3.0 (its module `distributed.pipeline_parallel`) and 0.2.2 (`config.job_config`).
"""

import json
import tomllib
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..schemas.errors import InvalidInputError
from ..schemas.placement import loop_placement, placement_words, v_placement
from ..schemas.plan import Layers, Plan
from .torch_comms import to_torch_comms_csv
from .torch_csv import TorchOrders, from_torch_csv, text_of_file, to_torch_csv

ORDERS, SETTINGS, LINES = "schedule.csv", "parallelism.json", "parallelism.toml"
COMMS, HOOK = "schedule-comms.csv", "pipelining.py"
HEADS = "lm_head", "output"  # what torchtitan 0.3 and 0.2 call the head


def to_torchtitan(plan: Plan, folder: str, microbatch_size: int = 1, ahead: int | None = None) -> dict[str, str]:
    """The files of a plan for torchtitan.

    Args:
        plan: a plan that `to_torch_csv` takes, of equal degrees and a placement that torchtitan has: plain, a loop, or
            a V of two stages a rank.
        folder: where the files will be: the settings say it.
        microbatch_size: rows of a micro-batch.
        ahead: where receives stand in `schedule-comms.csv`: as `to_torch_comms_csv`.

    Returns:
        The text of each file by its name.

    Raises:
        InvalidInputError: as `to_torch_csv`, `torchtitan_parts` and `torchtitan_parallelism`.
    """
    orders, comms = to_torch_csv(plan), to_torch_comms_csv(plan, ahead)
    settings = torchtitan_parallelism(plan, str(Path(folder) / ORDERS), microbatch_size)
    parts = torchtitan_parts(plan, HEADS[1])
    return {
        ORDERS: orders,
        SETTINGS: json.dumps(settings, indent=2) + "\n",
        LINES: _toml_lines("parallelism", settings | {"module_fqns_per_model_part": parts})
        + _toml_lines("training", {"local_batch_size": plan.pipelines[0].microbatches * microbatch_size}),
        COMMS: comms,
        HOOK: Path(__file__).with_name("titan_pipelining.py").read_text(),
    }


def _toml_lines(section: str, values: dict[str, Any]) -> str:
    """A section; numbers, strings and lists of strings are the same in JSON and TOML."""
    return f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def blocks_of(plan: Plan) -> int:
    """How many blocks a decoder has, of which an embedding is the first layer and norm and head are the last.

    Raises:
        InvalidInputError: there are none.
    """
    blocks = plan.template_of(0).stages[-1].layers[1] - 2
    if blocks < 1:
        raise InvalidInputError(
            f"a model of {blocks + 2} layers has no block between an embedding and a head",
            where="/templates/0/stages",
            fix="plan from a profile of an embedding, blocks and a head, as `rtk profile` makes them",
        )
    return blocks


def torchtitan_parts(plan: Plan, head: str = HEADS[0]) -> list[list[str]]:
    """What of a torchtitan decoder each stage holds, as its `module_fqns_per_model_part` says it.

    Args:
        plan: of a model whose first layer is the embedding, whose last one is the head, and the rest blocks.
        head: the head's name.

    Returns:
        The modules' names, by stage.

    Raises:
        InvalidInputError: there are no blocks.
    """
    blocks = (f"layers.{block}" for block in range(blocks_of(plan)))
    names = [["tok_embeddings"], *([block] for block in blocks), ["norm", head]]
    return [list(chain.from_iterable(names[slice(*stage.layers)])) for stage in plan.template_of(0).stages]


def torchtitan_parallelism(plan: Plan, csv_file: str, microbatch_size: int = 1) -> dict[str, Any]:
    """What torchtitan's `ParallelismConfig` is to be given for a plan, by its names.

    Args:
        plan: a plan that `to_torch_csv` takes.
        csv_file: where its orders will be.
        microbatch_size: rows of a micro-batch.

    Returns:
        Keyword arguments of `ParallelismConfig`.

    Raises:
        InvalidInputError: torchtitan has no such placement, or pipelines or stages are unlike.
    """
    template = plan.template_of(0)
    for k in range(1, len(plan.pipelines)):
        shapes = [[(one.layers, one.tensor_parallel) for one in plan.template_of(p).stages] for p in (0, k)]
        if shapes[0] != shapes[1]:
            raise InvalidInputError(
                f"pipelines that are cut unlike ({k} from 0): torchtitan has one cut for all",
                where=f"/pipelines/{k}/template",
                fix="export a plan of equal pipelines",
            )
    degrees = {stage.tensor_parallel for stage in template.stages}
    if len(degrees) > 1:
        raise InvalidInputError(
            f"stages of tensor-parallel degrees {sorted(degrees)}: torchtitan has one for all",
            where="/templates/0/stages",
            fix="plan with one --tensor-parallel",
        )
    return {
        "pipeline_parallel_degree": len(template.columns),
        "data_parallel_replicate_degree": len(plan.pipelines),
        "data_parallel_shard_degree": 1,
        **({"tensor_parallel_degree": degree} if (degree := degrees.pop()) > 1 else {}),
        "pipeline_parallel_schedule": _schedule_name(plan),
        "pipeline_parallel_schedule_csv": csv_file,
        "pipeline_parallel_microbatch_size": microbatch_size,
        "module_fqns_per_model_part": torchtitan_parts(plan),
    }


def _schedule_name(plan: Plan) -> str:
    """A schedule of torch's with the plan's placement, for which torchtitan looks at the name; orders are the CSV's."""
    placement = plan.template_of(0).placement
    if placement is None:
        return "1F1B"
    columns = len(placement)
    if placement == loop_placement(columns, len(placement[0])):
        return "Interleaved1F1B"
    if placement == v_placement(columns):
        return "ZBVZeroBubble"
    raise InvalidInputError(
        f"torchtitan has loops, and V's of two stages a rank, and not this placement ({placement_words(placement)})",
        where="/templates/0/placement",
        fix="give a plan made with --placement plain or loop, or v with two chunks",
    )


class TitanFiles(NamedTuple):
    """What a folder of `rtk export --to torchtitan` says.

    Attributes:
        orders: of one pipeline.
        cut: the layers of each stage.
        pipelines: how many there are.
        tensor_parallel: GPUs of a worker.
    """

    orders: TorchOrders
    cut: tuple[Layers, ...]
    pipelines: int
    tensor_parallel: int


def from_torchtitan(folder: str) -> TitanFiles:
    """Read the orders and the cut of a folder: `schedule.csv`, with `parallelism.json` or else `parallelism.toml`.

    Raises:
        InvalidInputError: a file cannot be read, or they do not go together; says the file and the key.
    """
    orders_file = Path(folder) / ORDERS
    settings_file = next((file for name in (SETTINGS, LINES) if (file := Path(folder) / name).exists()), None)
    if settings_file is None:
        fix = f"give the folder of `rtk export --to torchtitan`, or a CSV alone: --from torch-csv {orders_file}"
        raise InvalidInputError(f"the folder has neither {SETTINGS} nor {LINES}", where=folder, fix=fix)
    orders = from_torch_csv(text_of_file(str(orders_file)), str(orders_file))
    settings = _read_settings(settings_file)
    source = str(settings_file)
    cut = _cut_of(settings.get("module_fqns_per_model_part"), source)
    stages = len(orders.orders) if orders.placement is None else sum(map(len, orders.placement))
    for key, said, found, what in (
        ("module_fqns_per_model_part", len(cut), stages, "stages"),
        ("pipeline_parallel_degree", settings.get("pipeline_parallel_degree", 1), len(orders.orders), "ranks"),
    ):
        if said != found:
            raise InvalidInputError(
                f"the settings have {said!r} {what}, {ORDERS} has {found}",
                where=f"{source}/{key}",
                fix="give the files of one export",
            )
    degrees = [settings.get(f"{name}_degree", 1) for name in ("data_parallel_replicate", "tensor_parallel")]
    if any(type(degree) is not int or degree < 1 for degree in degrees):
        raise InvalidInputError(f"degrees of {degrees[0]!r} replicas and {degrees[1]!r} GPUs", where=source)
    return TitanFiles(orders, cut, degrees[0], degrees[1])


def _read_settings(file: Path) -> dict[str, Any]:
    """The `[parallelism]` of a TOML, or a JSON that is nothing else."""
    text = text_of_file(str(file))
    try:
        found = json.loads(text) if file.name == SETTINGS else tomllib.loads(text).get("parallelism")
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInputError(f"the file cannot be read: {error}", where=str(file)) from error
    if not isinstance(found, dict):
        raise InvalidInputError("the file holds no settings of parallelism", where=str(file))
    return found


def _cut_of(parts: Any, source: str) -> tuple[Layers, ...]:
    """The layers of each stage, by the names of its modules, which must be all of a decoder in their order."""
    where = f"{source}/module_fqns_per_model_part"
    is_named = isinstance(parts, list) and all(
        isinstance(part, list) and part and all(isinstance(name, str) for name in part) for part in parts
    )
    if not is_named or not parts:
        raise InvalidInputError("no list of module names a stage", where=where, fix='write [["tok_embeddings", …], …]')
    names = [name for part in parts for name in part]
    blocks = len(names) - 3
    expected = ["tok_embeddings", *(f"layers.{block}" for block in range(blocks)), "norm", names[-1]]
    wrong = next((pair for pair in zip(names, expected, strict=False) if pair[0] != pair[1]), None)
    if blocks < 1 or wrong is not None or names[-1] not in HEADS:
        found, wanted = wrong or (names[-1], HEADS[0])
        raise InvalidInputError(
            f"{found!r} stands where {wanted!r} would be",
            where=where,
            fix="name tok_embeddings, layers.0 and on, norm and lm_head, each once and in this order",
        )
    if parts[-1] == [names[-1]]:
        raise InvalidInputError(
            "norm and head are on two stages: they are one layer of a plan", where=where, fix="put norm beside the head"
        )
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part) - ("norm" in part))
    return tuple(pairwise(ends))
