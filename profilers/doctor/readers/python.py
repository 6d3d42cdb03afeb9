"""Time-outs of process groups in Python scripts; nothing is executed."""

import ast

from ....schemas.diagnosis import ToldSetting
from ....schemas.errors import InvalidInputError
from ..collected import Collected
from ..settings import default

_UNITS = {"weeks": 604_800.0, "days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
_UNITS |= {"milliseconds": 1e-3, "microseconds": 1e-6}
_ORDER = ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks")  # of timedelta's arguments
_FIELDS = {"init_process_group": "init_timeout_s", "new_group": "group_timeout_s", "set_timeout": "train_timeout_s"}
_FIELDS |= {"InitProcessGroupKwargs": "init_timeout_s", "init_distributed": "init_timeout_s"}  # accelerate, DeepSpeed
# lightning/fabric/plugins/collectives/torch_collective.py: default_pg_timeout, 30 min
_OF_LIGHTNING = frozenset({"DDPStrategy", "FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"})
# transformers/training_args.py: ddp_timeout, in seconds, 1800
_OF_TRANSFORMERS = frozenset({"TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig"})


def read_python(text: str, collected: Collected, file: str) -> None:
    """Note the time-outs given to `init_process_group` and `new_group`, and whether groups are made without one.

    Lightning's strategies and transformers' arguments have time-outs as well, and defaults of their own.

    Args:
        text: of the script.
        collected: where what is found goes.
        file: its name.

    Raises:
        InvalidInputError: it is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:  # the last of too deep a nesting
        line = getattr(error, "lineno", None)
        raise InvalidInputError(
            f"the file is not valid Python: {getattr(error, 'msg', 'it is nested too deeply')}",
            where=file if line is None else f"{file}, line {line}",
            fix="correct the place",
        ) from error
    for node in ast.walk(tree):
        name = _name_of(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in _OF_TRANSFORMERS:
            _transformers(name, node, collected, file)
        elif isinstance(node, ast.Call) and name in _FIELDS.keys() | _OF_LIGHTNING:
            given = next((one.value for one in node.keywords if one.arg == "timeout"), None)
            place = ToldSetting(f"{name}(timeout)", "" if given is None else ast.unparse(given), file, node.lineno)
            _note(name, given, place, collected)


def _transformers(name: str, call: ast.Call, collected: Collected, file: str) -> None:
    """Arguments of transformers: constants are read as on a command line, and others are what only the script knows."""
    collected.default("init_timeout_s", default(1800.0, f"{name}(ddp_timeout)", "1800", "transformers"))
    for one in call.keywords:
        is_constant = isinstance(one.value, ast.Constant)
        text = str(one.value.value) if isinstance(one.value, ast.Constant) else ast.unparse(one.value)
        told = ToldSetting(f"{name}({one.arg})", text, file, one.value.lineno)
        if is_constant and one.arg is not None:
            collected.transformers("--" + one.arg.replace("_", "-"), told)
        elif one.arg == "ddp_timeout":
            collected.not_known("init_timeout_s", told)


def _note(name: str, given: ast.expr | None, told: ToldSetting, collected: Collected) -> None:
    if given is None:
        if name == "new_group":
            collected.put("makes_groups", True, ToldSetting("new_group", "", told.file, told.line))
        elif name in _OF_LIGHTNING:
            collected.default("init_timeout_s", default(1800.0, f"{name}(timeout)", "30 min", "Lightning"))
        return
    field = _FIELDS.get(name, "init_timeout_s")
    value = _timedelta(given)
    if value is not None and not value > 0:
        collected.unread(told, "unreadable", "it is no time above zero")
    elif value is not None:
        collected.put(field, value, told)
    elif isinstance(given, ast.Constant) or _is_number(given):
        collected.unread(told, "unreadable", "torch takes a datetime.timedelta only, and raises TypeError")
    else:
        collected.not_known(field, told)


def _name_of(function: ast.expr) -> str:
    """`init_process_group` of `torch.distributed.init_process_group`."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_number(given: ast.expr) -> bool:
    """Whether it is `timedelta(…).total_seconds()`."""
    return isinstance(given, ast.Call) and _name_of(given.func) == "total_seconds"


def _timedelta(given: ast.expr) -> float | None:
    """The seconds of `timedelta(minutes=10)`; None: it is none, or not of plain numbers."""
    if not isinstance(given, ast.Call) or _name_of(given.func) != "timedelta":
        return None
    parts = dict(zip(_ORDER, given.args, strict=False)) | {one.arg: one.value for one in given.keywords if one.arg}
    try:
        return float(sum(_UNITS[name] * float(ast.literal_eval(value)) for name, value in parts.items()))
    except (KeyError, ValueError, TypeError):
        return None
