"""Settings in the arguments that Megatron-LM prints at its start."""

from ....schemas.diagnosis import ToldSetting
from ...failslow.readers.printed_arguments import PrintedArguments
from ..collected import Collected


def read_megatron_arguments(text: str, collected: Collected, file: str) -> None:
    """Note what stands in the first list of arguments of a log; the log's other lines are not read.

    Args:
        text: of the log.
        collected: where what is found goes.
        file: its name.
    """
    printed = PrintedArguments()
    for number, line in enumerate(text.splitlines(), start=1):
        argument = printed.read(line)
        if printed.ends:
            return
        if argument is not None and argument[1] != "None":
            name, value = argument
            collected.megatron("--" + name.replace("_", "-"), ToldSetting(name, value, file, number))
