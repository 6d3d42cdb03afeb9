"""Settings in shell scripts: batch scripts of Slurm, launch scripts, single command lines.

Assignments that a person could follow are followed (`GPUS=8`, `ARGS="--max-restarts 3"`, arrays, `${NAME:-default}`),
and so are files that a script sources, and here-documents that are scripts themselves (`sbatch <<EOF`). What only the
job itself knows (`$(scontrol …)`, `$SLURM_NODEID`) counts as not known.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from ....schemas.diagnosis import ToldSetting
from ..collected import ARGUMENT, EXPORT, Collected
from ..known import ENVIRONMENT, PREFIXES, SBATCH, SRUN, SWITCHES, KnownName, nobody_reads
from .shell_words import Word, commands

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^{}]*))?\})")
LAUNCHERS = frozenset({"torchrun", "ft_launcher", "torch.distributed.run", "torch.distributed.launch"})
# Only before their own arguments: others have these words in paths and names of packages.
_LAUNCHERS_OF_OTHERS = frozenset({"accelerate", "accelerate-launch", "accelerate.commands.launch"})
# Arguments that many a program has: they count behind these only.
_OF_ONE_LAUNCHER = dict.fromkeys(("--num-processes", "--num-machines"), _LAUNCHERS_OF_OTHERS)
_OF_ONE_LAUNCHER |= dict.fromkeys(("--num-gpus", "--num-nodes"), frozenset({"deepspeed"}))
_SHELLS = frozenset({"sbatch", "bash", "sh"})  # what a here-document on their standard input is, is a script
_SPREADERS = frozenset({"srun", "mpirun", "mpiexec", "ssh", "pdsh", "clush", "jsrun", "prun"})
_ENDS_LIKE_TRAINING = ("torchtitan.train", "torchtitan/train.py", "torchtitan/run_train.sh")
_EXPORTERS = frozenset({"export", "env", "declare", "typeset"})
_SAYS = frozenset({"echo", "printf", "read", "unset"})
_IS_SCRIPT = re.compile(r"^#SBATCH|\A#!.*sh\b", re.MULTILINE)
_OF_AN_INSTALLATION = re.compile(r"activate$|conda|/etc/|bashrc|profile|modules?\.sh|lmod|hpcx|setvars", re.IGNORECASE)
_MOST_NESTED = 8
_MOST_REPLACED = 1 << 19  # characters put in for variables, in all: a script may double a text in every line
_COST = 16  # characters: what a replacement takes beside them
# What Slurm tells a job of its own header.
_SLURM_SAYS = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


# Of a file that a script sources: its name as it is told, and its text; None: it is not here.
Sourced = Callable[[str], tuple[str, str] | None]


class ShellReader:
    """Reads one script.

    Args:
        collected: where what is found goes.
        file: the script's name.
        sourced: gives what the script sources.
    """

    def __init__(self, collected: Collected, file: str, sourced: Sourced) -> None:
        self._collected, self._file, self._sourced = collected, file, sourced
        self._exports_all = False  # after `set -a`
        self._variables: dict[str, tuple[Word, ...]] = {}  # what was assigned, and what was added to it
        self._replaced_count = 0
        self._followed: set[str] = set()
        self._exported: set[str] = set()

    def read(self, text: str, line: int = 1) -> None:
        """All of a script's text, which begins in a line of its file."""
        self._script(text, line, 0)
        for name in [name for name in self._variables if name not in self._followed]:
            self._command(list(self._follow(self._variables[name][-1].saying(f"${name}"), 0)), 0)
        for name, words in self._variables.items():
            is_meant = name in ENVIRONMENT or nobody_reads(name) or name.startswith(PREFIXES)
            if is_meant and name not in self._exported:
                self._collected.unread(self._told(name, words[-1]), "ignored", "it is assigned, but not exported")

    def _script(self, text: str, line: int, depth: int) -> None:
        """A script, or one within it, that begins in a line."""
        parsed = list(commands(text, line))
        documents = [word for command in parsed for word in command if word.is_document]
        self._header(text, line, [(one.line, one.line + one.text.count("\n")) for one in documents])
        for command in parsed:
            self._command(command, depth)

    def _told(self, name: str, value: Word) -> ToldSetting:
        return ToldSetting(name, value.text, value.file or self._file, value.line)

    def _header(self, text: str, first: int, documents: list[tuple[int, int]]) -> None:
        """The #SBATCH lines: sbatch stops at the first line that is neither a comment nor blank; those in a
        here-document are not the script's own."""
        is_over = False
        for number, line in enumerate(text.splitlines(), start=first):
            if line.startswith("#SBATCH") and not any(begin <= number <= end for begin, end in documents):
                words = [word for command in commands(line.removeprefix("#SBATCH"), number) for word in command]
                if is_over:
                    told = ToldSetting("#SBATCH", " ".join(word.text for word in words), self._file, number)
                    self._collected.unread(told, "ignored", "sbatch reads no #SBATCH line below the first command")
                else:
                    self._sbatch(words, number)
            elif line.strip() and not line.startswith("#"):
                is_over = True

    def _sbatch(self, words: list[Word], number: int) -> None:
        self._collected.put("is_batch", True, ToldSetting("#SBATCH", "", self._file, number))
        for flag, value in _flags(words, SBATCH):
            self._collected.note(SBATCH[flag], self._told(f"#SBATCH {flag}", value), ARGUMENT)
            for name in _SLURM_SAYS.get(flag, ()):
                self._variables[name] = (value,)
                self._followed.add(name)

    def _command(self, words: list[Word], depth: int, is_step: bool = False) -> None:
        """What one command says: what it assigns, and which arguments it gives to whom; `is_step`: srun starts it."""
        documents, words = [one for one in words if one.is_document], [one for one in words if not one.is_document]
        is_export = bool(words) and words[0].text in _EXPORTERS
        rest = self._assignments(words[1:] if is_export else words, is_export, depth)
        for document in documents:
            is_fed = any(PurePath(word.text).name in _SHELLS | _SPREADERS for word in rest)
            if (is_fed or _IS_SCRIPT.search(document.text)) and depth <= _MOST_NESTED:
                self._script(document.text, document.line, depth + 1)
        if not rest or PurePath(rest[0].text).name in _SAYS or depth > _MOST_NESTED:
            return
        if rest[0].text in ("source", ".") and len(rest) > 1:
            self._source(rest[1], depth)
            return
        flat = [inner for word in rest for inner in self._follow(word, depth)]
        self._program(flat, is_step)
        self._arguments(flat, depth)
        is_step = is_step or any(PurePath(word.text).name == "srun" for word in flat)
        for word in flat:
            if re.search(r"\s", word.text.strip()):
                for command in word.commands():
                    self._command(command, depth + 1, is_step)

    def _assignments(self, rest: list[Word], is_export: bool, depth: int) -> list[Word]:
        """Follow what a command assigns before its program, or exports; the words that are left."""
        while rest and (found := _ASSIGNMENT.fullmatch(rest[0].text)):
            is_for_all = len(rest) == 1 or all(_ASSIGNMENT.fullmatch(word.text) for word in rest)
            self._set(found[1], rest[0].saying(found[3]), bool(found[2]))
            if is_export or not is_for_all or self._exports_all:
                self._export(found[1], depth)
            rest = rest[1:]
        for word in rest if is_export else ():  # `export NAME`, of what was assigned before
            self._export(word.text, depth)
        return rest

    def _source(self, word: Word, depth: int) -> None:
        """A file that the script sources, in its place; one that is not here is told, but for those of environments."""
        path = self._replaced(word.text)
        found = None if "$" in path else self._sourced(path)
        if found is not None:
            for command in commands(found[1], file=found[0]):
                self._command(command, depth + 1)
        elif not _OF_AN_INSTALLATION.search(path):
            self._collected.unread(
                self._told("source", word.saying(path)), "unknown", "no such text file is here: give it, too"
            )

    def _set(self, name: str, value: Word, is_more: bool) -> None:
        """`NAME=value`; what it says of its own name, or adds to it (`NAME+=value`), is what was there before."""
        before = self._variables.get(name, ())

        def own(found: re.Match[str]) -> str:
            if (found[1] or found[2]) != name or not self._may_replace(before):
                return found[0]
            return "".join(word.text for word in before) or found[3] or found[0]

        bare = value.text.lstrip(' \t\n"')  # an array's words have their quotes
        first = _VARIABLE.match(bare)
        if before and first is not None and (first[1] or first[2]) == name:
            is_more, value = True, value.saying(bare[first.end() :].removeprefix('"'))
        value = value.saying(_VARIABLE.sub(own, value.text))
        if is_more and before and not value.text[:1].isspace():  # one word with the one before
            before, value = before[:-1], before[-1].saying(before[-1].text + value.text)
        self._variables[name] = (*before, value) if is_more else (value,)

    def _export(self, name: str, depth: int) -> None:
        if name not in self._variables:
            return
        self._exported.add(name)
        text, last = "".join(word.text for word in self._variables[name]), self._variables[name][-1]
        if "$" in text:
            text = " ".join(word.text for word in self._follow(last.saying(f"${name}"), depth))
        if text not in (f"${name}", f"${{{name}}}"):  # what it was, whatever that was
            self._collected.variable(self._told(name, last.saying(text)), EXPORT)

    def _follow(self, word: Word, depth: int) -> Iterator[Word]:
        """A word with its variables replaced: the words that it becomes."""
        whole = _VARIABLE.fullmatch(word.text)
        if whole is not None and depth <= _MOST_NESTED:
            name = whole[1] or whole[2]
            self._followed.add(name)
            values = self._variables.get(name, (word.saying(whole[3]),) if whole[3] is not None else None)
            if values is None or not self._may_replace(values):
                yield word
                return
            for value in values:
                for command in value.commands():
                    for inner in command:
                        yield from self._follow(inner, depth + 1)
        else:
            yield word if re.search(r"\s", word.text) else word.saying(self._replaced(word.text))

    def _may_replace(self, values: tuple[Word, ...]) -> bool:
        self._replaced_count += sum(_COST + len(word.text) for word in values)
        return self._replaced_count <= _MOST_REPLACED

    def _replaced(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            self._followed.add(name)
            if name not in self._variables or not self._may_replace(self._variables[name]):
                return found[3] or found[0]
            return "".join(word.text for word in self._variables[name])

        for _ in range(_MOST_NESTED):
            text, before = _VARIABLE.sub(value, text), text
            if text == before:
                break
        return text

    def _program(self, words: list[Word], is_step: bool) -> None:
        """Which programs a command starts."""
        names = [PurePath(word.text).name for word in words]
        for number, (name, word) in enumerate(zip(names, words, strict=True)):
            own = words[number + 1 :]
            if name in LAUNCHERS or (name in _LAUNCHERS_OF_OTHERS and own and re.match(r"-|launch$", own[0].text)):
                self._put("launcher", name, name, word)
                if is_step or "srun" in names[:number]:
                    self._put("launched_by_step", True, name, word)
            if name == "srun":
                self._put("step", True, name, word)
                for flag, value in _flags(own, SRUN):
                    self._collected.note(SRUN[flag], self._told(f"srun {flag}", value), ARGUMENT)
            if name in _SPREADERS:
                self._put("spread", True, name, word)
            if word.text.endswith(_ENDS_LIKE_TRAINING):
                self._collected.uses_torchtitan(self._told(name, word.saying("")))
        self._of_the_shell(names, words)

    def _of_the_shell(self, names: list[str], words: list[Word]) -> None:
        """Commands that say what becomes of variables and signals, and of the job when it has failed."""
        if names[:1] == ["trap"]:
            self._put("trap", True, "trap", words[0])
        if names[:1] == ["set"] and {"-a", "+a", "allexport"} & set(names):
            self._exports_all = "+a" not in names and "+o" not in names
        is_submitted = names[:2] == ["scontrol", "requeue"] or names[:1] == ["sbatch"]
        if is_submitted or (names[:1] in (["until"], ["while"]) and {"srun", *LAUNCHERS} & set(names)):
            self._put("resubmits", True, " ".join(names[:2]), words[0])

    def _put(self, field: str, value: object, name: str, word: Word) -> None:
        self._collected.put(field, value, self._told(name, word.saying("")))

    def _arguments(self, words: list[Word], depth: int) -> None:
        """Arguments of launchers, Megatron and torchtitan: their names are their own, wherever they stand."""
        names = {PurePath(word.text).name for word in words}
        is_in_step = depth == 0 and "srun" in names
        for number, word in enumerate(words):
            flag, has_value, text = word.text.partition("=")
            if not flag.startswith("--"):
                continue
            following = words[number + 1] if number + 1 < len(words) else word.saying("")
            value = text if has_value else "" if following.text.startswith("--") else following.text
            told = self._told(flag, word.saying(value))
            dashed = flag.replace("_", "-")
            if dashed in _OF_ONE_LAUNCHER and not names & _OF_ONE_LAUNCHER[dashed]:
                continue
            if dashed == "--node-rank" and is_in_step and re.match(r"\d|\$\{?SLURM_", value):
                self._collected.put(
                    "node_rank", value, told
                )  # the same on all nodes: the batch script's shell fills it in
            self._collected.launch_flag(dashed, told)
            self._collected.megatron(dashed, told)
            self._collected.transformers(dashed, told)
            self._collected.torchtitan(flag.removeprefix("--"), told if value else _on(told))


def _on(told: ToldSetting) -> ToldSetting:
    """A flag of torchtitan that is on by being there."""
    return ToldSetting(told.name, "true", told.file, told.line)


def _flags(words: list[Word], known: Mapping[str, KnownName]) -> Iterator[tuple[str, Word]]:
    """The known flags among words, with their values: `--flag=value`, `--flag value`, `-Nvalue`; of switches 1."""
    for number, word in enumerate(words):
        flag, has_value, text = word.text.partition("=")
        if flag in known and has_value:
            yield flag, word.saying(text)
        elif flag in SWITCHES and flag in known:
            yield flag, word.saying("1")
        elif flag in known and number + 1 < len(words):
            yield flag, words[number + 1]._replace(line=word.line)
        elif re.fullmatch(r"-[A-Za-z]\d.*", word.text) and word.text[:2] in known:
            yield word.text[:2], word.saying(word.text[2:])
