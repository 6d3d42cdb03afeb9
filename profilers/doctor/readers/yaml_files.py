"""Settings in YAML: configurations of transformers and what is made of it (LLaMA-Factory, axolotl), of accelerate and
Megatron's tests, and Kubernetes' manifests, whose containers have an environment and a command."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from ....schemas.cluster_file import invalid_yaml
from ....schemas.diagnosis import ToldSetting
from ....schemas.errors import InvalidInputError
from ..collected import ARGUMENT, Collected

if TYPE_CHECKING:
    from yaml import Node

# accelerate/commands/config/config_args.py; its launcher has them as options.
_OF_ACCELERATE = frozenset(
    {"--num-machines", "--num-processes", "--rdzv-backend", "--max-restarts", "--monitor-interval"}
)
# kubeflow/trainer, PyTorchJob's elasticPolicy: the operator gives them to torchrun as PET_… variables.
_OF_A_POLICY = {"maxRestarts": "--max-restarts", "rdzvBackend": "--rdzv-backend", "nProcPerNode": "--nproc-per-node"}
_OF_A_POLICY |= {"nprocPerNode": "--nproc-per-node"}
_VARIABLE, _ASSIGNED = re.compile(r"[A-Z][A-Z0-9_]+"), re.compile(r"([A-Z][A-Z0-9_]+)=(.*)")
_SHELLS = frozenset({"sh", "bash"})

# Reads a script that begins in a line of a file.
ScriptReader = Callable[[str, Collected, str, int], None]


def read_yaml(text: str, collected: Collected, file: str, read_script: ScriptReader) -> None:
    """Note what stands in all documents of a file.

    Args:
        text: of the file.
        collected: where what is found goes.
        file: its name.
        read_script: for the commands of containers.

    Raises:
        InvalidInputError: it is no YAML, or nothing of it is known.
    """
    import yaml

    before = collected.found_count
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if document is not None:
                _Walk(collected, file, read_script).walk(document)
    except (yaml.YAMLError, RecursionError) as error:
        raise invalid_yaml(error, file) from error
    if collected.found_count == before:
        raise InvalidInputError(
            "no setting in it is known",
            where=file,
            fix="give a configuration of transformers or accelerate, or a manifest whose containers have a command",
        )


class _Walk:
    """Through one document; nodes that several places share are visited once."""

    def __init__(self, collected: Collected, file: str, read_script: ScriptReader) -> None:
        self._collected, self._file, self._read_script = collected, file, read_script
        self._seen: set[int] = set()

    def walk(self, node: "Node") -> None:
        """A node, and all below it."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if node.id == "mapping":
            self._mapping({key.value: value for key, value in node.value if key.id == "scalar"})
        for child in node.value if node.id == "sequence" else ():
            if child.id == "scalar" and (found := _ASSIGNED.fullmatch(child.value)):
                self._collected.variable(self._told(found[1], found[2], child))
            self.walk(child)

    def _mapping(self, keys: "dict[str, Node]") -> None:
        if {"name", "value"} <= keys.keys() and keys["value"].id == "scalar":  # a variable of a container
            self._collected.variable(self._told(str(keys["name"].value), keys["value"].value, keys["value"]))
        if "image" in keys and ("command" in keys or "args" in keys):
            self._container([part for key in ("command", "args") if key in keys for part in _scalars(keys[key])])
        if {"minReplicas", "maxReplicas"} <= keys.keys() and keys["maxReplicas"].id == "scalar":
            most = keys["maxReplicas"]
            told = self._told("minReplicas:maxReplicas", f"{keys['minReplicas'].value}:{most.value}", most)
            self._collected.launch_flag("--nnodes", told)
            self._collected.put("launcher", "torchrun", self._told("elasticPolicy", "", most))
        for key, value in keys.items():
            if value.id == "scalar":
                self._setting(key, self._told(key, value.value, value))
            else:
                self.walk(value)

    def _setting(self, key: str, told: ToldSetting) -> None:
        dashed = f"--{key.lstrip('-').replace('_', '-')}"
        if told.text in ("", "null", "~"):
            return
        if _VARIABLE.fullmatch(key):
            self._collected.variable(told)
        elif key in _OF_A_POLICY:
            self._collected.launch_flag(_OF_A_POLICY[key], told)
        elif dashed in _OF_ACCELERATE:
            self._collected.launch_flag(dashed, told)
        self._collected.transformers(dashed, told)
        if key.startswith("--") or dashed != "--save":  # `save: true` is many a thing
            self._collected.megatron(dashed, told)
        if key == "num_machines":
            self._collected.put("launcher", "accelerate", self._told(key, "", None, told.line), ARGUMENT)

    def _container(self, words: "list[Node]") -> None:
        """A container's command: what a shell is to run, or the words themselves."""
        texts = [word.value for word in words]
        if len(texts) > 2 and PurePath(texts[0]).name in _SHELLS and texts[1].startswith("-") and "c" in texts[1]:
            script = words[2]
            line = script.start_mark.line + (2 if script.style in ("|", ">") else 1)
            self._read_script(script.value, self._collected, self._file, line)
        elif texts:
            self._read_script(shlex.join(texts), self._collected, self._file, words[0].start_mark.line + 1)

    def _told(self, name: str, text: str, node: "Node | None", line: int | None = None) -> ToldSetting:
        return ToldSetting(name, text, self._file, line if node is None else node.start_mark.line + 1)


def _scalars(node: "Node") -> "Iterator[Node]":
    if node.id == "sequence":
        yield from (one for one in node.value if one.id == "scalar")
