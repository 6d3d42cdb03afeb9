"""Logs of Megatron-LM and Megatron-DeepSpeed as runs to calibrate by: arguments, iteration times, and timers.

Both print all arguments before they begin. A log's first reading is that of a job that warms up, and does not count
where there are others. Timers (`--timing-log-level 2` since 2023) are summed over the micro-batches of an iteration,
and `backward-compute` has the recomputation in it:

* Until 2022, and in Megatron-DeepSpeed, a line `time (ms) | forward-compute: … | …` has the last stage's.
* Since (megatron/core/timers.py), a block has for each timer the least and the most over all ranks, or the most
  (`--timing-log-option max`), or every rank's (`all`): then a stage's time is the median over its ranks.

Of the optimizer the kernels count, not the gathering of its shares. `forward-backward` is left alone: it holds the
gradients' sums in some versions and not in others, and the time of the iteration says as much.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import get_args

from ...schemas.errors import InvalidInputError
from ...schemas.fields import MOST_LAYERS
from ...schemas.files import opened, source_of
from ...schemas.profile import DataType
from ...schemas.text import joined
from ..failslow.readers.formats import Megatron
from ..failslow.readers.printed_arguments import PrintedArguments
from .costs import DecoderShape, MicrobatchShape
from .observed import Extremes, ObservedRun
from .software import Software

_PADDED = re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")
_MS = r"(\d{1,12}(?:\.\d{1,9})?)"
_PASSES = re.compile(rf"time \(ms\).*\bforward-compute: {_MS}.*\bbackward-compute: {_MS}")
_TIMERS = re.compile(r"(?:^|[\s:])(\(min, max\) time|max time|times) across ranks \(ms\):\s*$")
_TIMER = re.compile(rf"(?:^|[\s:])([a-z][\w/-]*) \.*: (?:\({_MS}, {_MS}\)|{_MS})\s*$")
_TIMER_OF_RANKS = re.compile(r"(?:^|[\s:])([a-z][\w/-]*):\s*$")
_TIMER_OF_RANK = re.compile(rf"(?:^|[\s:])rank +(\d{{1,9}}): {_MS}\s*$")
_FORWARD, _BACKWARD = "forward-compute", "backward-compute"
_STEP = "optimizer-inner-step"
_BESIDE_STEP = ("optimizer-copy-to-main-grad", "optimizer-unscale-and-check-inf", "optimizer-clip-main-grad")
NEEDED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
)
MOST_DIGITS = 12  # of a number that a job can have
# What we do not compute: the argument, and the value that stands for its absence.
FOREIGN = {
    "context_parallel_size": "1",
    "expert_model_parallel_size": "1",
    "num_experts": "None",
    # Stages with unlike numbers of blocks: their timers would be taken for those of even ones.
    "decoder_first_pipeline_num_layers": "None",
    "decoder_last_pipeline_num_layers": "None",
    "pipeline_model_parallel_layout": "None",
    "account_for_embedding_in_pipeline_split": "False",
    "account_for_loss_in_pipeline_split": "False",
}


class MegatronArguments:
    """The arguments that a log prints.

    Args:
        values: by name, as they stand there.
        source: the log, for messages.
    """

    def __init__(self, values: Mapping[str, str], source: str) -> None:
        self._values, self._source = values, source

    def require(self) -> None:
        """Raise InvalidInputError unless all are there that shapes and times follow from, and none that we lack."""
        missing = [name for name in NEEDED if self._text(name) is None]
        if missing:
            raise InvalidInputError(
                f"the log does not say {joined(missing)}",
                where=self._source,
                fix="give a log with Megatron's arguments at its beginning, or a YAML file with the settings and the "
                "time of an iteration (docs/profiles.md)",
            )
        for name, usual in FOREIGN.items():
            if self._values.get(name, usual) != usual:
                raise InvalidInputError(
                    f"{name} is {self._values[name]}, and rtk does not compute that",
                    where=self._source,
                    fix=f"calibrate by a run without {name}",
                )

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of 1 or more."""
        text = self._text(name)
        if text is None and default is not None:
            return default
        if text is None or not text.isdecimal() or len(text) > MOST_DIGITS or not int(text):
            raise InvalidInputError(f"{name} is {text}, and no whole number of 1 or more", where=self._source)
        return int(text)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or False."""
        return default if self._text(name) is None else self._text(name) == "True"

    def is_word(self, name: str, word: str) -> bool:
        """Whether it is this word."""
        return self._text(name) == word

    def number(self, name: str) -> float:
        """A plain number; 0 where there is none."""
        text = self._text(name) or "0"
        return float(text) if re.fullmatch(r"\d{1,12}(?:\.\d{1,20})?(?:e-?\d{1,3})?", text) else 0.0

    def _text(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value == "None" else value


class _RankTimers:
    """The blocks of timers over ranks in a log, line by line: each timer's times of the ranks that say one, in ms."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, dict[int, float]]] = []
        self.says_least = False
        self._name, self._is_inside = "", False

    def read(self, line: str) -> bool:
        """Whether the line is one of them. Of the least and the most these are ranks 0 and 1."""
        if begins := _TIMERS.search(line):
            self.blocks.append({})
            self._is_inside, self.says_least = True, begins[1] != "max time"
            return True
        if not self._is_inside:
            return False
        if timer := _TIMER.search(line):
            times = (timer[2], timer[3]) if timer[2] else (timer[4],)
            self.blocks[-1][timer[1]] = {rank: float(text) for rank, text in enumerate(times)}
        elif timer := _TIMER_OF_RANK.search(line):
            self.blocks[-1].setdefault(self._name, {})[int(timer[1])] = float(timer[2])
        elif timer := _TIMER_OF_RANKS.search(line):
            self._name = timer[1]
        else:
            self._is_inside = False
        return self._is_inside


def read_megatron_log(path: str) -> ObservedRun:
    """Read a log; `.gz` is unpacked, `-` is standard input.

    Raises:
        InvalidInputError: it does not say with what settings it ran, or not how long an iteration took.
    """
    source, values = source_of(path), dict[str, str]()
    iterations_s: list[float] = []
    passes_ms: list[tuple[float, float]] = []
    vocabulary, printed, reader, timers = 0, PrintedArguments(), Megatron(), _RankTimers()
    for line in _lines(path):
        if argument := printed.read(line):
            values[argument[0]] = argument[1]
        elif padded := _PADDED.search(line):
            vocabulary = int(padded[1])
        elif passes := _PASSES.search(line):
            passes_ms.append((float(passes[1]), float(passes[2])))
        elif not timers.read(line) and (reading := reader.read(line.encode())):
            iterations_s.append(reading.time_s)
    arguments = MegatronArguments(values, source)
    arguments.require()
    run = _run_of(arguments, vocabulary, iterations_s, passes_ms, source)
    run = _with_timers(run, timers)
    if not run.iterations_s and not run.passes_s and not run.ranges_s:
        raise InvalidInputError(
            "the log tells of no iteration", where=source, fix="give one with lines `elapsed time per iteration (ms)`"
        )
    return run


def _with_timers(run: ObservedRun, timers: _RankTimers) -> ObservedRun:
    """The run with what its timers over ranks say; those of the warm-up do not count."""
    timed = [block for block in timers.blocks if _FORWARD in block and _BACKWARD in block]
    stepped = [block for block in timers.blocks if _STEP in block]
    ranges_s = []
    for block in timed[1:] or timed:
        ahead, back = (_extremes_s(block[name], run, timers) for name in (_FORWARD, _BACKWARD))
        ranges_s.append((_each(ahead, run.microbatches), _each(back, run.microbatches)))
    steps_s = [_extremes_s(_whole_step(block), run, timers) for block in stepped[1:] or stepped]
    per_microbatch = 1e3 * run.microbatches
    passes = [[_of_stages(block[name], run) for name in (_FORWARD, _BACKWARD)] for block in timed[1:] or timed]
    stages_s = tuple(
        tuple((f / per_microbatch, b / per_microbatch) for f, b in zip(ahead, back, strict=True))
        for ahead, back in passes
        if ahead and back
    )
    return replace(run, ranges_s=tuple(ranges_s), steps_s=tuple(steps_s), stages_s=stages_s)


def _whole_step(block: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """What a step takes on each rank, with what goes over all gradients before it."""
    parts = [block[name] for name in (_STEP, *_BESIDE_STEP) if name in block]
    return {rank: sum(part.get(rank, 0.0) for part in parts) for rank in block[_STEP]}


def _extremes_s(times_ms: Mapping[int, float], run: ObservedRun, timers: _RankTimers) -> Extremes:
    """The least and the most of what ranks say, in s: of all, of stages, or the most alone."""
    found = _of_stages(times_ms, run) or [*times_ms.values()]
    return (min(found) / 1e3 if timers.says_least else None), max(found) / 1e3


def _of_stages(times_ms: Mapping[int, float], run: ObservedRun) -> list[float]:
    """The median of each stage's ranks, in ms; empty where not every rank says its own."""
    if len(times_ms) <= 2 or len(times_ms) % run.pp:
        return []
    # Ranks are counted stage after stage (Megatron's order "tp-cp-ep-dp-pp").
    each, ordered = len(times_ms) // run.pp, [times_ms[rank] for rank in sorted(times_ms)]
    return [median(ordered[begin : begin + each]) for begin in range(0, len(ordered), each)]


def _each(extremes: Extremes, count: int) -> Extremes:
    """What each of so many takes."""
    least, most = extremes
    return (None if least is None else least / count), most / count


def _lines(path: str) -> Iterator[str]:
    with opened(path) as stream:
        for line in stream:
            yield line.decode(errors="replace")


def _run_of(
    arguments: MegatronArguments,
    vocabulary: int,
    iterations_s: list[float],
    passes_ms: list[tuple[float, float]],
    source: str,
) -> ObservedRun:
    size, pipelines = arguments.count("micro_batch_size"), arguments.count("data_parallel_size")
    microbatches, pp = (
        arguments.count("global_batch_size") // size // pipelines,
        arguments.count("pipeline_model_parallel_size"),
    )
    if not microbatches:
        raise InvalidInputError("the global batch has no micro-batch for each pipeline", where=source)
    layers = arguments.count("num_layers")
    if layers > MOST_LAYERS or pp > layers:
        raise InvalidInputError(f"{layers} layers and {pp} stages are those of no pipeline", where=source)
    layers_of_chunk = arguments.count("num_layers_per_virtual_pipeline_stage", layers)
    recomputes = arguments.flag("checkpoint_activations") or arguments.is_word("recompute_granularity", "full")
    per_microbatch = 1e3 * microbatches
    return ObservedRun(
        shape=_shape_of(arguments, arguments.count("padded_vocab_size", vocabulary or None)),
        batch=MicrobatchShape(size, arguments.count("seq_length"), _dtype_of(arguments), _software_of(arguments)),
        is_checkpointing=recomputes,
        tensor_parallel=arguments.count("tensor_model_parallel_size"),
        pp=pp,
        dp=pipelines,
        microbatches=microbatches,
        chunks=max(1, layers // pp // layers_of_chunk),
        iterations_s=tuple(iterations_s[1:] or iterations_s),
        passes_s=tuple((ahead / per_microbatch, back / per_microbatch) for ahead, back in passes_ms[1:] or passes_ms),
        shards_optimizer=arguments.flag("use_distributed_optimizer"),
        source=source,
    )


def _dtype_of(arguments: MegatronArguments) -> DataType:
    for dtype in get_args(DataType):
        if arguments.flag(dtype):
            found: DataType = dtype
            return found
    return "fp32"


def _software_of(arguments: MegatronArguments) -> Software:
    """How it computed. Gradients are added by a kernel of their own, in fp32 where they are accumulated so."""
    is_flash = arguments.flag("use_flash_attn") or arguments.is_word("transformer_impl", "transformer_engine")
    dtype = _dtype_of(arguments)
    return Software(
        attention="flash" if is_flash else "unfused",
        dropout=arguments.number("attention_dropout") > 0 or arguments.number("hidden_dropout") > 0,
        sequence_parallel=arguments.flag("sequence_parallel"),
        gradients="fp32" if arguments.flag("accumulate_allreduce_grads_in_fp32") else dtype,
        sustained=True,
        # With sequence parallelism Megatron turns the flag of the all-reduce off, and hides a reduce-scatter instead.
        hidden_sums=arguments.flag("async_tensor_model_parallel_allreduce") or arguments.flag("sequence_parallel"),
    )


def _shape_of(arguments: MegatronArguments, vocabulary: int) -> DecoderShape:
    """Of the model; what older versions do not print is as GPT has it."""
    width, heads = arguments.count("hidden_size"), arguments.count("num_attention_heads")
    positions = arguments.count("max_position_embeddings", arguments.count("seq_length"))
    is_rotary = arguments.is_word("position_embedding_type", "rope")
    is_gated, has_bias = arguments.flag("swiglu"), arguments.flag("add_bias_linear", default=True)
    grouped = arguments.flag("group_query_attention")
    return DecoderShape(
        blocks=arguments.count("num_layers"),
        width=width,
        heads=heads,
        key_value_heads=arguments.count("num_query_groups", heads) if grouped else heads,
        head_size=arguments.count("kv_channels", max(1, width // heads)),
        inner=arguments.count("ffn_hidden_size", 4 * width),
        vocabulary=vocabulary,
        positions=positions,
        position_rows=0 if is_rotary else positions,
        norm="rms" if arguments.is_word("normalization", "RMSNorm") else "layer",
        activation="silu" if is_gated else "gelu",
        is_gated=is_gated,
        is_fused=True,
        has_query_bias=has_bias,
        has_output_bias=has_bias,
        has_inner_bias=has_bias,
        is_tied=not arguments.flag("untie_embeddings_and_output_weights"),
    )
