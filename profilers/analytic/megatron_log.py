"""Logs of Megatron-LM and Megatron-DeepSpeed as runs to calibrate by: arguments, iteration times, and timers.

Both print all arguments before they begin. Timers in the lines `time (ms) | forward-compute: … | …` are the last
stage's, each summed over the micro-batches of an iteration; `backward-compute` has the recomputation in it. Megatron-LM
since 2023 prints the least and the most over all ranks instead, which are of no stage, and are left alone. A log's
first reading is that of a job that warms up, and does not count where there are others.
"""

import re
from collections.abc import Iterator, Mapping
from typing import get_args

from ...schemas.errors import InvalidInputError
from ...schemas.files import opened, source_of
from ...schemas.profile import DataType
from ...schemas.text import joined
from ..failslow.readers.formats import Megatron
from .costs import DecoderShape, MicrobatchShape
from .observed import ObservedRun
from .software import Software

_BEGIN, _END = re.compile(r"-+ arguments -+"), re.compile(r"-+ end of arguments -+")
_ARGUMENT = re.compile(r"^(?:\[[^\]]*\]:|\d+:)?\s+(\w+)\s+(?:\.+\s+)?(\S.*?)\s*$")
_PADDED = re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")
_PASSES = re.compile(r"time \(ms\).*\bforward-compute: ([\d.]+).*\bbackward-compute: ([\d.]+)")
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
# What we do not compute: the argument, and the value that stands for its absence.
FOREIGN = {"context_parallel_size": "1", "expert_model_parallel_size": "1", "num_experts": "None"}


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
        if text is None or not text.isdecimal() or not int(text):
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
        return float(text) if re.fullmatch(r"[\d.]+(?:e-?\d+)?", text) else 0.0

    def _text(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value == "None" else value


def read_megatron_log(path: str) -> ObservedRun:
    """Read a log; `.gz` is unpacked, `-` is standard input.

    Raises:
        InvalidInputError: it does not say with what settings it ran, or not how long an iteration took.
    """
    source, values = source_of(path), dict[str, str]()
    iterations_s: list[float] = []
    passes_ms: list[tuple[float, float]] = []
    vocabulary, is_inside, reader = 0, False, Megatron()
    for line in _lines(path):
        if _END.search(line):
            is_inside = False
        elif _BEGIN.search(line):
            is_inside = True
        elif is_inside and (argument := _ARGUMENT.match(line)):
            values[argument[1]] = argument[2]
        elif padded := _PADDED.search(line):
            vocabulary = int(padded[1])
        elif passes := _PASSES.search(line):
            passes_ms.append((float(passes[1]), float(passes[2])))
        elif reading := reader.read(line.encode()):
            iterations_s.append(reading.time_s)
    arguments = MegatronArguments(values, source)
    arguments.require()
    if not iterations_s and not passes_ms:
        raise InvalidInputError(
            "the log tells of no iteration", where=source, fix="give one with lines `elapsed time per iteration (ms)`"
        )
    return _run_of(arguments, vocabulary, iterations_s, passes_ms, source)


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
    layers_of_chunk = arguments.count("num_layers_per_virtual_pipeline_stage", arguments.count("num_layers"))
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
        chunks=max(1, arguments.count("num_layers") // pp // layers_of_chunk),
        iterations_s=tuple(iterations_s[1:] or iterations_s),
        passes_s=tuple((ahead / per_microbatch, back / per_microbatch) for ahead, back in passes_ms[1:] or passes_ms),
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
