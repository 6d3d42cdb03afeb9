"""Settings in shell scripts: batch scripts of Slurm, launch scripts, single command lines.

Assignments that a person could follow are followed (`GPUS=8`, `ARGS="--max-restarts 3"`, arrays, `${NAME:-default}`);
what only the job itself knows (`$(scontrol …)`, `$SLURM_NODEID`) counts as not known.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from ....schemas.diagnosis import ToldSetting
from ..collected import ARGUMENT, EXPORT, Collected
from ..known import ENVIRONMENT, PREFIXES, SBATCH, SRUN, SWITCHES, KnownName, nobody_reads
from .shell_words import Word, commands

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^{}]*))?\})")
LAUNCHERS = frozenset({"torchrun", "ft_launcher", "torch.distributed.run", "torch.distributed.launch"})
_EXPORTERS = frozenset({"export", "env", "declare", "typeset"})
_SAYS = frozenset({"echo", "printf", "read", "unset"})
_MOST_NESTED = 8
_MOST_REPLACED = 20_000  # of a script's variables, in all: a script may double a text in every line
# What Slurm tells a job of its own header.
_SLURM_SAYS = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


class ShellReader:
    """Reads one script.

    Args:
        collected: where what is found goes.
        file: the script's name.
    """

    def __init__(self, collected: Collected, file: str) -> None:
        self._collected, self._file = collected, file
        self._variables: dict[str, tuple[Word, ...]] = {}  # what was assigned, and what was added to it
        self._replaced_count = 0
        self._followed: set[str] = set()
        self._exported: set[str] = set()

    def read(self, text: str) -> None:
        """All of a script's text."""
        self._header(text)
        for command in commands(text):
            self._command(command, 0)
        for name in [name for name in self._variables if name not in self._followed]:
            self._command(list(self._follow(Word(f"${name}", self._variables[name][-1].line), 0)), 0)
        for name, words in self._variables.items():
            is_meant = name in ENVIRONMENT or nobody_reads(name) or name.startswith(PREFIXES)
            if is_meant and name not in self._exported:
                self._collected.unread(self._told(name, words[-1]), "ignored", "it is assigned, but not exported")

    def _told(self, name: str, value: Word) -> ToldSetting:
        return ToldSetting(name, value.text, self._file, value.line)

    def _header(self, text: str) -> None:
        """The #SBATCH lines: sbatch stops at the first line that is neither a comment nor blank."""
        is_over = False
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("#SBATCH"):
                words = [word for command in commands(line.removeprefix("#SBATCH"), number) for word in command]
                if is_over:
                    told = ToldSetting("#SBATCH", " ".join(word.text for word in words), self._file, number)
                    self._collected.unread(told, "ignored", "sbatch reads no #SBATCH line below the first command")
                else:
                    self._collected.put("is_batch", True, ToldSetting("#SBATCH", "", self._file, number))
                    for flag, value in _flags(words, SBATCH):
                        self._collected.note(SBATCH[flag], self._told(f"#SBATCH {flag}", value), ARGUMENT)
                        for name in _SLURM_SAYS.get(flag, ()):
                            self._variables[name] = (value,)
                            self._followed.add(name)
            elif line.strip() and not line.startswith("#"):
                is_over = True

    def _command(self, words: list[Word], depth: int) -> None:
        """What one command says: what it assigns, and which arguments it gives to whom."""
        is_export = bool(words) and words[0].text in _EXPORTERS
        rest = words[1:] if is_export else words
        while rest and (found := _ASSIGNMENT.fullmatch(rest[0].text)):
            is_for_all = len(rest) == 1 or all(_ASSIGNMENT.fullmatch(word.text) for word in rest)
            self._set(found[1], Word(found[3], rest[0].line), bool(found[2]))
            if is_export or not is_for_all:
                self._export(found[1], depth)
            rest = rest[1:]
        for word in rest if is_export else ():  # `export NAME`, of what was assigned before
            self._export(word.text, depth)
        if not rest or PurePath(rest[0].text).name in _SAYS or depth > _MOST_NESTED:
            return
        flat = [inner for word in rest for inner in self._follow(word, depth)]
        self._program(flat)
        self._arguments(flat)
        for word in flat:
            if re.search(r"\s", word.text.strip()):
                for command in commands(word.text, word.line):
                    self._command(command, depth + 1)

    def _set(self, name: str, value: Word, is_more: bool) -> None:
        """`NAME=value`; what it says of its own name, or adds to it (`NAME+=value`), is what was there before."""
        before = self._variables.get(name, ())

        def own(found: re.Match[str]) -> str:
            is_own = (found[1] or found[2]) == name
            return "".join(word.text for word in before) or found[3] or found[0] if is_own else found[0]

        bare = value.text.lstrip(' \t\n"')  # an array's words have their quotes
        first = _VARIABLE.match(bare)
        if before and first is not None and (first[1] or first[2]) == name:
            is_more, value = True, Word(bare[first.end() :].removeprefix('"'), value.line)
        value = Word(_VARIABLE.sub(own, value.text), value.line)
        if is_more and before and not value.text[:1].isspace():  # one word with the one before
            before, value = before[:-1], Word(before[-1].text + value.text, before[-1].line)
        self._variables[name] = (*before, value) if is_more else (value,)

    def _export(self, name: str, depth: int) -> None:
        if name not in self._variables:
            return
        self._exported.add(name)
        text = "".join(word.text for word in self._variables[name])
        if "$" in text:
            text = " ".join(word.text for word in self._follow(Word(f"${name}", 0), depth))
        if "$" not in text:
            self._collected.variable(self._told(name, Word(text, self._variables[name][-1].line)), EXPORT)

    def _follow(self, word: Word, depth: int) -> Iterator[Word]:
        """A word with its variables replaced: the words that it becomes."""
        whole = _VARIABLE.fullmatch(word.text)
        if whole is not None and depth <= _MOST_NESTED:
            name = whole[1] or whole[2]
            self._followed.add(name)
            values = self._variables.get(name, (Word(whole[3], word.line),) if whole[3] is not None else None)
            if values is None or not self._may_replace():
                yield word
                return
            for value in values:
                for command in commands(value.text, value.line):
                    for inner in command:
                        yield from self._follow(inner, depth + 1)
        else:
            yield Word(word.text if re.search(r"\s", word.text) else self._replaced(word.text), word.line)

    def _may_replace(self) -> bool:
        self._replaced_count += 1
        return self._replaced_count <= _MOST_REPLACED

    def _replaced(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            self._followed.add(name)
            if name not in self._variables or not self._may_replace():
                return found[3] or found[0]
            return "".join(word.text for word in self._variables[name])

        for _ in range(_MOST_NESTED):
            text, before = _VARIABLE.sub(value, text), text
            if text == before:
                break
        return text

    def _program(self, words: list[Word]) -> None:
        """Which programs a command starts."""
        names = [PurePath(word.text).name for word in words]
        for name, word in zip(names, words, strict=True):
            if name in LAUNCHERS:
                self._collected.put("launcher", name, ToldSetting(name, "", self._file, word.line))
            elif name == "srun":
                self._collected.put("step", True, ToldSetting("srun", "", self._file, word.line))
                own = words[words.index(word) + 1 :]
                for flag, value in _flags(own, SRUN):
                    self._collected.note(SRUN[flag], self._told(f"srun {flag}", value), ARGUMENT)
        if names[:1] == ["trap"]:
            self._collected.put("trap", True, ToldSetting("trap", "", self._file, words[0].line))
        if names[:2] == ["scontrol", "requeue"] or names[:1] == ["sbatch"]:
            self._collected.put("resubmits", True, ToldSetting(" ".join(names[:2]), "", self._file, words[0].line))

    def _arguments(self, words: list[Word]) -> None:
        """Arguments of launchers, Megatron and torchtitan: their names are their own, wherever they stand."""
        for number, word in enumerate(words):
            flag, has_value, text = word.text.partition("=")
            if not flag.startswith("--"):
                continue
            following = words[number + 1] if number + 1 < len(words) else Word("", word.line)
            value = text if has_value else "" if following.text.startswith("--") else following.text
            told = ToldSetting(flag, value, self._file, word.line)
            dashed = flag.replace("_", "-")
            if "$" in value and dashed != "--nnodes":
                continue
            self._collected.launch_flag(dashed, told)
            self._collected.megatron(dashed, told)
            # A flag of torchtitan that is on by being there.
            self._collected.torchtitan(
                flag.removeprefix("--"), told if value else ToldSetting(told.name, "true", told.file, told.line)
            )


def _flags(words: list[Word], known: Mapping[str, KnownName]) -> Iterator[tuple[str, Word]]:
    """The known flags among words, with their values: `--flag=value`, `--flag value`, `-Nvalue`; of switches 1."""
    for number, word in enumerate(words):
        flag, has_value, text = word.text.partition("=")
        if flag in known and has_value:
            yield flag, Word(text, word.line)
        elif flag in SWITCHES and flag in known:
            yield flag, Word("1", word.line)
        elif flag in known and number + 1 < len(words):
            yield flag, Word(words[number + 1].text, word.line)
        elif re.fullmatch(r"-[A-Za-z]\d.*", word.text) and word.text[:2] in known:
            yield word.text[:2], Word(word.text[2:], word.line)
