"""A job's file, `rtk.toml`: what commands are to take where their command lines leave it open.

One table, `KEYS`, says which keys there are, what they hold, and which option of which command each stands for. Values
become the texts that a command line would have, so that an option reads them the same way, wherever they come from.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from .errors import InvalidInputError
from .files import STANDARD_STREAM, opened
from .other_names import meant_by
from .text import listed, near

FILE_NAME = "rtk.toml"
MOST_BYTES = 1 << 18  # nobody writes so much by hand
MOST = 10**15  # of a whole number
TABLES = {
    "model": "what is trained, and its profile",
    "cluster": "the machines",
    "shape": "pipelines, stages and micro-batches, and the plan that is made of them",
    "policy": "what happens when workers fail or slow down",
    "training": "what a run does",
}


class ValueKind(StrEnum):
    """What a key holds."""

    COUNT = "a whole number"
    NUMBER = "a number, or a text with a unit"
    TEXT = "a text"
    FLAG = "true or false"
    TEXTS = "a text, or a list of texts"  # the option may be repeated
    LIST = "a text, a number, or a list of these"  # the option takes them with commas between them


@dataclass(frozen=True)
class JobKey:
    """One key, and the options that it stands for.

    Attributes:
        table: it belongs to.
        name: within the table; that of the option, where all commands have the same.
        kind: what it holds.
        example: a value as TOML, for the file that `rtk init` writes.
        about: what it means, for the same.
        options: by command, such as `plan pipeline`, the option (`--pp`), or the argument (`PROFILE`), it stands for.
        is_path: a file or folder, which is found from where the job's file is.
        only: by command, another parameter, and whether that must be set or must not be for the key to count.
    """

    table: str
    name: str
    kind: ValueKind
    example: str
    about: str
    options: Mapping[str, str] = field(hash=False)
    is_path: bool = False
    only: Mapping[str, tuple[str, bool]] = field(default_factory=dict, hash=False)

    @property
    def place(self) -> str:
        """`shape.pp`."""
        return f"{self.table}.{self.name}"


def _at(option: str, *commands: str) -> dict[str, str]:
    return dict.fromkeys(commands, option)


_PIPELINES = ("plan pipeline", "plan adaptra", "plan joint", "plan topology")
_PLACED = ("plan pipeline", "plan adaptra", "plan joint", "plan slipstream")
_PLANS = (*_PIPELINES, "plan slipstream")
_SITES = ("plan pipeline", "plan adaptra", "plan joint", "plan slipstream", "plan templates", "simulate")
_LED = ("run", "coordinate")
_STORIES = (*_LED, "simulate")
# A worker whose coordinator is elsewhere leaves to it how the job is led: that one reads the same file.
_LEADING = {"run": ("coordinator", False)}
_ANALYTIC = {"profile model": ("analytic", True)}
_NO_SCRIPT = {"run": ("script", False)}  # one that is named on the command line says these things itself
_COUNT, _NUMBER, _TEXT, _FLAG, _TEXTS, _LIST = ValueKind

KEYS = (
    JobKey("model", "name", _TEXT, '"gpt-tiny"', "A preset, file.py:factory, a config.json, or a script.",
           {"profile model": "MODEL", "run": "--model"}, is_path=True, only=_NO_SCRIPT),
    JobKey("model", "profile", _TEXT, '"profile.json"', "Its profile: `rtk profile` writes it, plans are made from it.",
           {"profile model": "--output", "replay": "--profile", **_at("PROFILE", *_PLANS, "plan templates")},
           is_path=True),
    JobKey("model", "microbatch_size", _COUNT, "4", "Samples of a micro-batch.",
           _at("--microbatch-size", "profile model", "run", "plan oobleck"), only=_NO_SCRIPT),
    JobKey("model", "sequence_length", _COUNT, "128", "Tokens of a sample.",
           _at("--sequence-length", "profile model", "run"), only=_NO_SCRIPT),
    JobKey("model", "dtype", _TEXT, '"bf16"', "Of parameters and activations: fp32, bf16 or fp16.",
           _at("--dtype", "profile model")),
    JobKey("model", "checkpointing", _FLAG, "true", "Blocks keep their input only, and compute the rest again.",
           _at("--checkpointing", "profile model")),
    JobKey("model", "cut", _TEXT, '"model.layers.*"', "Names of the modules that are layers.",
           _at("--cut", "profile model")),
    JobKey("model", "tp", _LIST, "[1, 2]", "Tensor-parallel degrees to profile.", _at("--tp", "profile model")),
    JobKey("model", "analytic", _FLAG, "true", "Compute the profile for the cluster's GPU instead of measuring it.",
           _at("--analytic", "profile model")),
    JobKey("cluster", "cluster", _TEXT, '"8x8"', "NxM (N nodes of M GPUs), slurm, or a YAML file.",
           _at("--cluster", *_SITES, "replay", "profile model"), is_path=True, only=_ANALYTIC),
    JobKey("cluster", "overlay", _TEXT, '"overlay.yaml"', "What of the cluster has failed or is slow: a YAML file.",
           _at("--overlay", *_SITES), is_path=True),
    JobKey("cluster", "gpu", _TEXT, '"h100-sxm"', "The kind of GPU.",
           _at("--gpu", "profile model", "plan templates"), only=_ANALYTIC),
    JobKey("cluster", "memory_limit", _LIST, '"60GB"', "For activations of a worker: one, or a list of one a stage.",
           _at("--memory-limit", *_PLANS, "replay")),
    JobKey("shape", "pp", _COUNT, "2", "Stages of a pipeline.", _at("--pp", *_PLANS, "replay")),
    JobKey("shape", "dp", _COUNT, "2", "Pipelines (data-parallel degree).", _at("--dp", *_PLANS, "replay")),
    JobKey("shape", "microbatches", _COUNT, "8", "Micro-batches of each pipeline.",
           _at("--microbatches", *_PLANS, "replay", "plan templates")),
    JobKey("shape", "tensor_parallel", _LIST, "1", "GPUs of a worker: a degree, a list of one a stage, or auto.",
           _at("--tensor-parallel", *_PLANS, "replay")),
    JobKey("shape", "schedule", _TEXT, '"1f1b"', "The order of operations: gpipe, 1f1b or zero-bubble.",
           _at("--schedule", "plan pipeline", "plan topology", "replay")),
    JobKey("shape", "placement", _TEXT, '"plain"', "Stages a worker: plain (one), loop, v, or the best, as in best:4.",
           _at("--placement", *_PLACED, "replay")),
    JobKey("shape", "chunks", _COUNT, "2", "Virtual stages of each worker, for loop and v.",
           _at("--chunks", *_PLACED, "replay")),
    JobKey("shape", "overlap", _FLAG, "true", "Workers may run a forward and a full backward side by side.",
           _at("--overlap", "plan pipeline")),
    JobKey("shape", "shard_optimizer", _FLAG, "true", "Peers share the optimizer's state, each part on two of them.",
           _at("--shard-optimizer", *_PLANS, "run"), only=_NO_SCRIPT),
    JobKey("shape", "plan", _TEXT, '"plan.json"', "The plan: `rtk plan` writes it; it is simulated and run.",
           {**_at("--output", *_PIPELINES, "plan oobleck"), **_at("PLAN", *_STORIES)}, is_path=True),
    JobKey("policy", "policy", _TEXT, '"joint"', "What follows on a failure: joint, slipstream or oobleck.",
           _at("--policy", *_STORIES), only=_LEADING),
    JobKey("policy", "policies", _LIST, '["slipstream", "oobleck"]', "Those that `rtk replay` compares.",
           _at("--policies", "replay")),
    JobKey("policy", "technique", _TEXT, '"staggered"', "Of re-routing: adaptive, decoupled or staggered.",
           _at("--technique", "plan slipstream", "plan joint")),
    JobKey("policy", "atlas", _TEXT, '"atlas"', "A folder of plans made ahead, by `rtk plan slipstream -o FOLDER`.",
           _at("--atlas", *_STORIES), is_path=True, only=_LEADING),
    JobKey("policy", "normalize_within", _COUNT, "100", "Move workers if that pays within so many iterations.",
           _at("--normalize-within", *_STORIES), only=_LEADING),
    JobKey("policy", "host_memory", _NUMBER, '"4GB"', "For activations that a worker may hold on its host.",
           _at("--host-memory", *_STORIES), only=_LEADING),
    JobKey("policy", "mitigate", _TEXT, '"S3=60,S4=1200"', "What costly remedies for slow workers and links cost.",
           _at("--mitigate", *_STORIES), only=_LEADING),
    JobKey("policy", "fault_tolerance", _COUNT, "1", "f: there are f + 1 pipelines or more at all times.",
           _at("--fault-tolerance", "plan templates")),
    JobKey("policy", "cost", _TEXTS, '["restart_s=600"]', "What a change costs, for `rtk replay`.",
           _at("--cost", "replay")),
    JobKey("training", "data", _TEXTS, '["data.txt"]', "Text, .bin, .npy, .idx or a folder of `datasets`.",
           _at("--data", "run"), is_path=True, only=_NO_SCRIPT),
    JobKey("training", "data_dtype", _TEXT, '"uint16"', "Type of a .bin file's tokens.",
           _at("--data-dtype", "run"), only=_NO_SCRIPT),
    JobKey("training", "tokenizer", _TEXT, '"llama-1b"', "Makes tokens of text: a folder or tokenizer.json.",
           _at("--tokenizer", "run"), is_path=True, only=_NO_SCRIPT),
    JobKey("training", "eval_data", _TEXTS, '["valid.txt"]', "Evaluate on this; given as data.",
           _at("--eval-data", "run"), is_path=True, only=_NO_SCRIPT),
    JobKey("training", "eval_every", _COUNT, "100", "Evaluate every so many iterations, and at the end.",
           _at("--eval-every", "run"), only=_NO_SCRIPT),
    JobKey("training", "eval_microbatches", _COUNT, "16", "Micro-batches of an evaluation.",
           _at("--eval-microbatches", "run"), only=_NO_SCRIPT),
    JobKey("training", "iterations", _COUNT, "10", "How many, those before a resumed checkpoint included.",
           _at("--iterations", *_LED), only=_LEADING),
    JobKey("training", "optimizer", _TEXT, '"adamw"', "adamw, sgd or muon.",
           _at("--optimizer", "run"), only=_NO_SCRIPT),
    JobKey("training", "lr", _NUMBER, "1e-3", "Learning rate, after the warm-up.", _at("--lr", "run"), only=_NO_SCRIPT),
    JobKey("training", "betas", _LIST, "[0.9, 0.95]", "Of AdamW.", _at("--betas", "run"), only=_NO_SCRIPT),
    JobKey("training", "weight_decay", _NUMBER, "0.1", "None of it on parameters of one dimension.",
           _at("--weight-decay", "run"), only=_NO_SCRIPT),
    JobKey("training", "decay_all", _FLAG, "true", "Weight decay on parameters of one dimension, too.",
           _at("--decay-all", "run"), only=_NO_SCRIPT),
    JobKey("training", "clip_norm", _NUMBER, "1.0", "Most that the norm of all gradients together may be.",
           _at("--clip-norm", "run"), only=_NO_SCRIPT),
    JobKey("training", "lr_schedule", _TEXT, '"cosine"', "constant, linear, cosine or wsd.",
           _at("--lr-schedule", "run"), only=_NO_SCRIPT),
    JobKey("training", "lr_steps", _COUNT, "10000", "Iterations over which the learning rate goes; else iterations.",
           _at("--lr-steps", "run"), only=_NO_SCRIPT),
    JobKey("training", "warmup", _COUNT, "200", "Iterations in which the learning rate rises from 0.",
           _at("--warmup", "run"), only=_NO_SCRIPT),
    JobKey("training", "min_lr_ratio", _NUMBER, "0.1", "What the learning rate falls to, as a share of lr.",
           _at("--min-lr-ratio", "run"), only=_NO_SCRIPT),
    JobKey("training", "precision", _TEXT, '"bf16-master"', "fp32, bf16, bf16-autocast, bf16-master or fp16-master.",
           _at("--precision", "run"), only=_NO_SCRIPT),
    JobKey("training", "weights", _TEXT, '"llama-1b"', "Safetensors to begin with; else those of the model's folder.",
           _at("--weights", "run"), is_path=True, only=_NO_SCRIPT),
    JobKey("training", "random_weights", _FLAG, "true", "Begin with random weights, whatever there is.",
           _at("--random-weights", "run"), only=_NO_SCRIPT),
    JobKey("training", "seed", _COUNT, "0", "Of a run's parameters and data.", _at("--seed", "run"), only=_NO_SCRIPT),
    JobKey("training", "threads", _COUNT, "1", "Torch threads of each worker.", _at("--threads", "run")),
    JobKey("training", "paced", _FLAG, "true", "Let every operation last what the plan says.", _at("--paced", "run")),
    JobKey("training", "transport", _TEXT, '"auto"', "How messages are sent: auto, direct or delegated.",
           _at("--transport", "run", "simulate", "plan pipeline", "plan adaptra")),
    JobKey("training", "log_memory", _NUMBER, '"1GB"', "For messages that each worker keeps of an iteration.",
           _at("--log-memory", "run")),
    JobKey("training", "checkpoint", _TEXT, '"checkpoints"', "Save checkpoints in this folder.",
           _at("--checkpoint", *_LED), is_path=True, only=_LEADING),
    JobKey("training", "checkpoint_every", _NUMBER, "100", "How often: so many iterations, or a time as in \"10min\".",
           _at("--checkpoint-every", *_LED), only=_LEADING),
    JobKey("training", "heartbeat_limit", _NUMBER, '"2s"', "Silence after which a worker is lost.",
           _at("--heartbeat-limit", *_STORIES), only=_LEADING),
    JobKey("training", "stall_limit", _NUMBER, '"10s"', "Time without a commit after which workers are asked why.",
           _at("--stall-limit", *_LED), only=_LEADING),
    JobKey("training", "tp_across", _FLAG, "true", "Workers' GPUs may be on several machines.",
           _at("--tp-across", *_LED), only=_LEADING),
    JobKey("training", "lower_degree", _FLAG, "true", "A worker that loses a GPU goes on with fewer, where that pays.",
           _at("--lower-degree", *_LED), only=_LEADING),
    JobKey("training", "timeline", _TEXT, '"timeline.json"', "Write the measured timeline here.",
           _at("--timeline", *_LED), is_path=True, only=_LEADING),
    JobKey("training", "metrics", _TEXT, '"metrics.jsonl"', "Append what happens to this JSON-lines file.",
           _at("--metrics", *_LED), is_path=True, only=_LEADING),
    JobKey("training", "log_to", _TEXTS, '"tensorboard:logs"',
           "tensorboard:FOLDER, prometheus:PORT, otlp:URL, jsonl:FILE; or a list.",
           _at("--log-to", *_LED), is_path=True, only=_LEADING),
    JobKey("training", "page", _TEXT, '"8080"', "Serve a live page of the job: PORT or HOST:PORT.",
           _at("--page", *_LED), only=_LEADING),
)  # fmt: skip

COMMANDS = frozenset(command for key in KEYS for command in key.options)

# Options of the same commands that say what one call is about, not what the job is; a test names those that are left.
WITHOUT_KEY = frozenset({
    "--link-delay", "--slow", "--slow-link", "--failed", "--failures", "--max-failures", "--failure-unit", "--from",
    "--solver", "--time-limit", "--require-optimal", "--jobs", "--inject", "--resume", "--worker", "--coordinator",
    "--interface", "--secret-file", "--patience", "--listen", "--log", "--standby", "--jitter", "--regroup",
    "--min-workers", "--join-wait",
    "--json", "--quiet", "--debug", "--force",
})  # fmt: skip

JobValue = str | bool | tuple[str, ...]


@dataclass(frozen=True)
class JobFile:
    """What a job's file says.

    Attributes:
        path: of the file, as messages name it.
        values: as a command line would have them; a path as it is found from the working directory.
        lines: where each key stands; a key inside an inline table has none.
    """

    path: str
    values: Mapping[JobKey, JobValue]
    lines: Mapping[JobKey, int]

    def where(self, key: JobKey) -> str:
        """`rtk.toml, shape.pp (line 7)`, for errors."""
        return _where(self.path, key.place, self.lines.get(key))


def _where(path: str, place: str, line: int | None) -> str:
    return f"{path}, {place}" + ("" if line is None else f" (line {line})")


def find_job_file(folder: Path) -> Path | None:
    """The job's file that holds in a folder: the one in it, or in a git repository the nearest one above it.

    No further up than the repository's root, and outside of a repository nowhere above: a file that somebody else put
    into a folder that all may write to is not asked which code to execute.

    Args:
        folder: absolute.
    """
    found = None
    for place in (folder, *folder.parents):
        if found is None and (place / FILE_NAME).is_file():
            found = place / FILE_NAME
            if place == folder:
                return found
        if (place / ".git").exists():
            return found
    return None


def read_job_file(path: str) -> JobFile:
    """Read a job's file.

    Raises:
        InvalidInputError: it cannot be read, is no TOML, or says what no key holds; with the place.
    """
    import tomllib  # only where there is such a file

    with opened(path, is_packed=True) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InvalidInputError("the file is too large for a job's file", where=path, fix="name an rtk.toml")
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=path) from None
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        raise _no_toml(str(error), path) from None
    return _checked(tree, path, _lines_of(text))


def _no_toml(said: str, path: str) -> InvalidInputError:
    """`Invalid value (at line 3, column 6)` is a place of ours."""
    match = re.fullmatch(r"(.*) \(at (?:(end) of document|line (\d+), column (\d+))\)", said)
    place = "" if match is None else ", at its end" if match[2] else f", line {match[3]} column {match[4]}"
    return InvalidInputError(
        f"the file is not valid TOML: {match[1] if match else said}",
        where=f"{path}{place}",
        fix='correct it; texts stand in quotes, as in name = "gpt-tiny", and each key and table once',
    )


def _lines_of(text: str) -> dict[str, int]:
    """The line of each table (`shape`) and key (`shape.pp`) that stands on one of its own."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            table = header[1] + "."
            lines.setdefault(header[1], number)
        elif key := re.match(r"\s*([\w-]+(?:\s*\.\s*[\w-]+)?)\s*=", line):
            lines.setdefault(table + re.sub(r"\s", "", key[1]), number)
    return lines


def _checked(tree: Mapping[str, Any], path: str, lines: Mapping[str, int]) -> JobFile:
    """What a parsed file says, where all of it is known and of the right kind."""
    known = {key.place: key for key in KEYS}
    values: dict[JobKey, JobValue] = {}
    for table, content in tree.items():
        if table not in TABLES:
            _refuse_table(table, content, path, lines.get(table))
        if not isinstance(content, dict):
            raise InvalidInputError(
                f"{table} is a table",
                where=_where(path, table, lines.get(table)),
                fix=f"write [{table}] above its keys",
            )
        for name, value in content.items():
            place = f"{table}.{name}"
            if place not in known:
                _refuse_key(table, name, path, lines.get(place))
            where = _where(path, place, lines.get(place))
            values[known[place]] = _found(known[place], _texts(known[place], value, where), path)
    return JobFile(path, values, {known[place]: line for place, line in lines.items() if place in known})


def _refuse_table(name: str, content: object, path: str, line: int | None) -> NoReturn:
    if not isinstance(content, dict):
        _refuse_key("", name, path, line)
    meant = near(name, TABLES)
    raise InvalidInputError(
        f"unknown table [{name}]",
        where=_where(path, name, line),
        fix=f"did you mean [{meant}]?" if meant else f"the tables are {_tables(TABLES)}",
    )


def _refuse_key(table: str, name: str, path: str, line: int | None) -> NoReturn:
    """Say of a key that there is none, or where it belongs."""
    where = _where(path, f"{table}.{name}".lstrip("."), line)
    if homes := [key.table for key in KEYS if key.name == name]:
        raise InvalidInputError(f"{name} belongs in [{homes[0]}]", where=where, fix=f"move it to [{homes[0]}]")
    meant_there = meant_by(name) if table == "training" else None
    if meant_there is not None:
        told = f"it is {meant_there.keys()} here" if meant_there.names else ""
        raise InvalidInputError(
            f"unknown key {name}", where=where, fix=", ".join(part for part in (told, meant_there.note) if part)
        )
    here = [key.name for key in KEYS if key.table == table]
    elsewhere = {key.name: key.place for key in KEYS}
    meant = near(name, here) or elsewhere.get(near(name, elsewhere) or "")
    rest = f"the keys of [{table}] are {listed(here, len(here))}" if here else f"the tables are {_tables(TABLES)}"
    raise InvalidInputError(f"unknown key {name}", where=where, fix=f"did you mean {meant}?" if meant else rest)


def _tables(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}]" for name in names)


def _texts(key: JobKey, value: object, where: str) -> JobValue:
    """A value as a command line would have it.

    Raises:
        InvalidInputError: it is not of the key's kind.
    """
    is_list = isinstance(value, list) and key.kind in (_TEXTS, _LIST)
    items: list[object] = value if is_list else [value]  # type: ignore[assignment]
    if key.kind is _FLAG and isinstance(value, bool):
        return value
    if not items or not all(_fits(key.kind, one) for one in items):
        raise InvalidInputError(
            f"{key.name} is {key.kind}, not {_cut(value)}", where=where, fix=f"write {key.name} = {key.example}, say"
        )
    texts = tuple(str(one) for one in items)
    return texts if key.kind is _TEXTS else ",".join(texts)


def _fits(kind: ValueKind, value: object) -> bool:
    """Whether a value, or an item of a list, is of a kind; true and false are numbers to Python only."""
    if isinstance(value, int) and abs(value) > MOST:
        return False
    taken: dict[ValueKind, tuple[type, ...]] = {_COUNT: (int,), _NUMBER: (int, float, str), _LIST: (int, float, str)}
    return isinstance(value, taken.get(kind, (str,))) and not isinstance(value, bool)


def _cut(value: object) -> str:
    try:
        return _shown(value)[:60]
    except ValueError:  # Python prints no number of thousands of digits
        return "so large a number"


def _shown(value: object) -> str:
    """As TOML has it: JSON's texts, numbers and lists of them are TOML as well."""
    return json.dumps(value, default=str, ensure_ascii=False)


def _found(key: JobKey, value: JobValue, path: str) -> JobValue:
    """A path in a file, as it is found from the working directory; any other value as it is."""
    if not key.is_path or isinstance(value, bool):
        return value
    if isinstance(value, tuple):
        return tuple(_found_text(key, one, path) for one in value)
    return _found_text(key, value, path)


def _found_text(key: JobKey, value: str, path: str) -> str:
    """One of its texts."""
    if key.name == "log_to":
        kind, colon, name = value.partition(":")
        is_file = kind in ("tensorboard", "jsonl") or name.endswith(".prom")
        return f"{kind}{colon}{_beside(name, path)}" if colon and is_file else value
    is_no_file = {"name": not re.search(r"[/.]", value), "cluster": re.fullmatch(r"slurm|\d+x\d+", value) is not None}
    return value if is_no_file.get(key.name, False) else _beside(value, path)


def _beside(name: str, path: str) -> str:
    """`p.json` beside `../rtk.toml` is `../p.json`; as it is written where that is the working directory's own file."""
    folder = Path(path).parent
    if name == STANDARD_STREAM or Path(name).is_absolute() or folder.resolve() == Path.cwd().resolve():
        return name
    return os.path.normpath(folder / name)


# What is told of keys elsewhere: in messages about options, in the file that `rtk init` writes, and to editors.


def key_of(command: str, option: str) -> JobKey | None:
    """The key that stands for an option of a command."""
    return next((key for key in KEYS if key.options.get(command) == option), None)


def job_text(values: Mapping[str, object]) -> str:
    """A job's file with these values, by their places, and all other keys as comments.

    Args:
        values: such as `{"shape.pp": 2}`; texts, numbers, and lists of texts.
    """
    lines = ["# A job's file: rtk's commands take from here what their command lines leave open."]
    lines.append('# Times and sizes take units, as in "10ms" or "80GB". Paths are relative to this file.')
    for table, about in TABLES.items():
        lines += ["", f"[{table}]  # {about}"]
        keys = [key for key in KEYS if key.table == table]
        lines += [f"{key.name} = {_shown(values[key.place])}  # {key.about}" for key in keys if key.place in values]
        lines += [f"# {key.name} = {key.example}  # {key.about}" for key in keys if key.place not in values]
    return "\n".join(lines) + "\n"


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job's file, for editors."""
    text, number, whole = {"type": "string"}, {"type": "number"}, {"type": "integer"}
    types: dict[ValueKind, dict[str, Any]] = {
        _COUNT: whole,
        _NUMBER: {"type": ["number", "string"]},
        _TEXT: text,
        _FLAG: {"type": "boolean"},
        _TEXTS: {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]},
        _LIST: {"anyOf": [text, number, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]},
    }
    tables = {
        table: {
            "type": "object",
            "description": about,
            "additionalProperties": False,
            "properties": {
                key.name: {**types[key.kind], "description": key.about} for key in KEYS if key.table == table
            },
        }
        for table, about in TABLES.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:rtk:job",
        "title": FILE_NAME,
        "type": "object",
        "additionalProperties": False,
        "properties": tables,
    }
