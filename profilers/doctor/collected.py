"""What readers have found so far, and which of it counts."""

import re
from collections import defaultdict
from dataclasses import fields
from typing import Any, NamedTuple

from ...schemas.diagnosis import ToldSetting, UnreadSetting
from ...schemas.text import near
from .known import (
    ENVIRONMENT,
    LAUNCH_FLAGS,
    MEGATRON,
    OTHER_RENDEZVOUS,
    OTHER_TORCHTITAN,
    OTHER_VARIABLES,
    PREFIXES,
    RENDEZVOUS,
    SECTIONS,
    TORCHTITAN,
    TRANSFORMERS,
    KnownName,
    is_given,
    nobody_reads,
    some,
)
from .settings import JobSettings, Setting, default

# Who overrules whom: the environment, a script that sets it anew, a program's own arguments, and who asks.
VARIABLE, EXPORT, ARGUMENT, ASKED = 10, 20, 30, 40
_TO_BE_FILLED_IN = re.compile(r"[$`]")  # a variable, or the output of a program: only the job itself knows it


class _Ranked(NamedTuple):
    strength: int
    setting: Setting[Any]
    is_known: bool = True


class Collected:
    """Settings as they are found; the strongest of each counts, and of equals the last."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[_Ranked]] = defaultdict(list)
        self._defaults: dict[str, Setting[Any]] = {}
        self._unread: list[UnreadSetting] = []
        self.count = 0

    @property
    def found_count(self) -> int:
        """How many settings were found, those among them that say nothing."""
        return self.count + len(self._unread)

    def note(self, known: KnownName, told: ToldSetting, strength: int) -> None:
        """A setting that is known by its name; one whose value makes no sense is told as unreadable."""
        told = _writable(told)
        if _TO_BE_FILLED_IN.search(told.text) and known.parse is not is_given:
            self.not_known(known.field, told, strength + known.rank)
            return
        self.count += 1
        try:
            value = known.parse(told.text)
        except ValueError as error:
            self.unread(told, "unreadable", str(error))
            return
        self._found[known.field].append(_Ranked(strength + known.rank, Setting(value, told)))

    def not_known(self, field: str, told: ToldSetting, strength: int = ARGUMENT) -> None:
        """A setting whose value only the job itself knows: what counts there is neither that nor a default."""
        self.unread(told, "unknown", "only the job itself knows it")
        self._found[field].append(_Ranked(strength, Setting(None, told), is_known=False))

    def put(self, field: str, value: Any, told: ToldSetting, strength: int = ARGUMENT) -> None:
        """A setting that a reader has understood itself; what is only there, such as srun, has no text."""
        self.count += bool(told.text)
        self._found[field].append(_Ranked(strength, Setting(value, _writable(told))))

    def default(self, field: str, setting: Setting[Any]) -> None:
        """What counts where nobody sets a field, by a program that is used here."""
        self._defaults[field] = setting

    def unread(self, told: ToldSetting, kind: Any, why: str) -> None:
        """A setting that says nothing; `kind` as of `UnreadSetting`."""
        self._unread.append(UnreadSetting(_writable(told), kind, why))

    def variable(self, told: ToldSetting, strength: int = VARIABLE) -> None:
        """A variable of the environment."""
        name = told.name
        if name in ENVIRONMENT:
            self.note(ENVIRONMENT[name], told, strength)
        elif name.startswith("PET_"):
            self.launch_flag("--" + name.removeprefix("PET_").lower().replace("_", "-"), told, strength)
        elif nobody_reads(name):
            why = "neither NCCL 2.32 nor torch 2.13 reads it, though a training script of one's own may"
            self.unread(told, "ignored", why)
        elif name.startswith(PREFIXES) and name not in OTHER_VARIABLES:
            meant = near(name, [*ENVIRONMENT, *OTHER_VARIABLES], 0.8)
            self.unread(told, "unknown", f"did you mean {meant}?" if meant else "torch 2.13 does not read it")

    def launch_flag(self, flag: str, told: ToldSetting, strength: int = ARGUMENT) -> None:
        """An argument of torchrun or ft_launcher, with dashes between its words."""
        if flag in LAUNCH_FLAGS:
            self.note(LAUNCH_FLAGS[flag], told, strength)
        elif flag in ("--nnodes", "--num-machines", "--num-nodes"):
            self._node_range(told, strength)
        elif flag in ("--rdzv-conf", "--ft-rank-section-timeouts"):
            self._pairs(flag, told, strength)
        elif flag == "--standalone":
            self.put("rendezvous", "c10d", told, strength)
            self.put("standalone", True, told, strength)

    def _node_range(self, told: ToldSetting, strength: int) -> None:
        least, _, most = told.text.partition(":")
        try:
            numbers = some(least), some(most or least)
            if numbers[0] > numbers[1]:
                raise ValueError
        except ValueError:
            if _TO_BE_FILLED_IN.search(told.text):
                numbers = None, None  # type: ignore[assignment]
            else:
                self.unread(told, "unreadable", "it is no number of nodes, and no range MIN:MAX")
                return
        self.put("min_nodes", numbers[0], told, strength)
        self.put("max_nodes", numbers[1], told, strength)

    def _pairs(self, flag: str, told: ToldSetting, strength: int) -> None:
        """`key=value,…` of --rdzv-conf, `section:seconds,…` of --ft-rank-section-timeouts."""
        between, names, others = ("=", RENDEZVOUS, OTHER_RENDEZVOUS) if flag == "--rdzv-conf" else (":", SECTIONS, None)
        for pair in filter(None, told.text.split(",")):
            key, _, text = pair.partition(between)
            inner = ToldSetting(f"{flag} {key.strip()}", text.strip(), told.file, told.line)
            if key.strip() in names:
                self.note(names[key.strip()], inner, strength)
            elif others is not None and key.strip() not in others:
                self.unread(inner, "unknown", "torch's rendezvous does not read it")

    def megatron(self, flag: str, told: ToldSetting) -> None:
        """An argument of Megatron-LM, with dashes between its words; those that no rule asks for are left out."""
        if flag in MEGATRON:
            self.note(MEGATRON[flag], told, ARGUMENT)

    def transformers(self, flag: str, told: ToldSetting) -> None:
        """An argument of transformers' TrainingArguments, with dashes between its words; without one it saves, too."""
        if flag in TRANSFORMERS:
            self.note(TRANSFORMERS[flag], told, ARGUMENT)
        if flag == "--save-steps":
            self.put("checkpoints", True, ToldSetting(told.name, "", told.file, told.line))

    def uses_torchtitan(self, told: ToldSetting) -> None:
        """torchtitan is what trains: its own defaults of the time-outs count, not torch's."""
        self.put("is_torchtitan", True, told)
        self.default("init_timeout_s", default(300.0, "comm.init_timeout_seconds", "300", "torchtitan"))
        self.default("train_timeout_s", default(100.0, "comm.train_timeout_seconds", "100", "torchtitan"))

    def torchtitan(self, key: str, told: ToldSetting, strength: int = ARGUMENT) -> None:
        """A key of torchtitan's configuration, `section.name`."""
        if key in TORCHTITAN:
            self.note(TORCHTITAN[key], told, strength)
        elif key.startswith(("comm.", "fault_tolerance.")) and key not in OTHER_TORCHTITAN:
            meant = near(key, [*TORCHTITAN, *OTHER_TORCHTITAN], 0.8)
            self.unread(told, "unknown", f"did you mean {meant}?" if meant else "torchtitan's configuration lacks it")

    def settings(self) -> JobSettings:
        """What counts, with what stands against it."""
        chosen: dict[str, Any] = dict(self._defaults)
        doubles: list[tuple[ToldSetting, ToldSetting]] = []
        unknown: set[str] = set()
        for name in (one.name for one in fields(JobSettings)):
            if found := self._found.get(name):
                ranked = max(enumerate(found), key=lambda item: (item[1].strength, item[0]))[1]
                chosen[name] = best = ranked.setting
                if not ranked.is_known:
                    unknown.add(name)
                    continue
                doubles += [
                    (best.told, other.setting.told)
                    for other in found
                    if other.is_known
                    and other.setting.value != best.value
                    # What is only there, such as a launcher, has no value to tell.
                    and best.told.text
                    and other.setting.told.text
                    and _is_elsewhere(best.told, other.setting.told)
                ]
        return JobSettings(
            **chosen, doubles=tuple(dict.fromkeys(doubles)), unread=tuple(self._unread), unknown=frozenset(unknown)
        )


def _writable(told: ToldSetting) -> ToldSetting:
    """A setting whose letters can all be written as UTF-8: variables may be bytes, and YAML has halves of letters."""
    name, text, file = (one.encode("utf-8", "backslashreplace").decode() for one in (told.name, told.text, told.file))
    return ToldSetting(name, text, file, told.line)


def _is_elsewhere(one: ToldSetting, other: ToldSetting) -> bool:
    """Whether two settings are no branches of one script: they have other names, or stand in other files."""
    return one.file != other.file or one.name != other.name
