"""Jobs in a few lines of settings."""

from collections.abc import Sequence

from rtk.profilers.doctor.collected import ASKED, Collected
from rtk.profilers.doctor.readers.reading import KINDS, read_lines
from rtk.profilers.doctor.settings import JobSettings
from rtk.schemas.diagnosis import ToldSetting


def job_of(
    environment: str = "",
    script: str = "",
    toml: str = "",
    python: str = "",
    megatron: str = "",
    yaml: str = "",
    lines: Sequence[str] = (),
    **facts: float,
) -> JobSettings:
    """The settings that stand in texts, each as if it were a file of its kind; `facts` by their fields."""
    collected = Collected()
    texts = {"environment": environment, "script": script, "torchtitan": toml, "python": python, "YAML": yaml}
    for kind, text in {**texts, "megatron arguments": megatron}.items():
        if text:
            KINDS[kind](text, collected, kind)
    read_lines(lines, collected, "--torchrun")
    for field, value in facts.items():
        collected.put(field, value, ToldSetting(field, f"{value:g}", "given"), ASKED)
    return collected.settings()
