"""Settings in the arguments that Megatron-LM prints at its start (megatron/training/arguments.py, `_print_args`)."""

import re

from ....schemas.diagnosis import ToldSetting
from ..collected import Collected

BEGIN = re.compile(r"-{4,} arguments -{4,}")
_END = re.compile(r"-{4,} end of arguments -{4,}")
_ARGUMENT = re.compile(r"(\w+) \.{3,} ?(.*)$")


def read_megatron_arguments(text: str, collected: Collected, file: str) -> None:
    """Note what stands in the first list of arguments of a log; the log's other lines are not read.

    Args:
        text: of the log.
        collected: where what is found goes.
        file: its name.
    """
    is_within = False
    for number, line in enumerate(text.splitlines(), start=1):
        if _END.search(line):
            return
        if BEGIN.search(line):
            is_within = True
        elif is_within and (found := _ARGUMENT.search(line)) and found[2].strip() != "None":
            flag = "--" + found[1].replace("_", "-")
            collected.megatron(flag, ToldSetting(found[1], found[2].strip(), file, number))
