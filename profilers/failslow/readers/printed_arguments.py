"""The arguments that Megatron-LM and Megatron-DeepSpeed print at their start, one a line.

Both write a name, as many dots as are left of 48 characters, and the value (megatron/training/arguments.py,
`_print_args`); launchers put the rank before each line.
"""

import re

BEGIN = re.compile(r"-{4,} arguments -+")
_END = re.compile(r"-+ end of arguments -+")
_DOTTED = re.compile(r"(\w+) \.+(?: (.*))?$")
_LONG = re.compile(r"(?:\[[^\]]*\]:|\d+:)?\s+(\w+)\s+(\S.*)$")  # a name that leaves no room for dots


class PrintedArguments:
    """Finds the arguments in a log, line by line.

    Attributes:
        ends: how many lists of them have ended.
    """

    def __init__(self) -> None:
        self._is_inside = False
        self.ends = 0

    def read(self, line: str) -> tuple[str, str] | None:
        """The name and the value that a line says; None where it is not within such a list."""
        if _END.search(line):
            self._is_inside = False
            self.ends += 1
        elif BEGIN.search(line):
            self._is_inside = True
        elif self._is_inside and (found := _DOTTED.search(line.rstrip()) or _LONG.match(line.rstrip())):
            return found[1], (found[2] or "").strip()
        return None
