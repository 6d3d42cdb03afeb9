"""A job's settings, from files to a diagnosis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..schemas.diagnosis import SEVERITIES, Diagnosis, SettingsFinding, ToldSetting
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from .doctor.collected import ASKED, Collected
from .doctor.costs import costs_of
from .doctor.readers.reading import read_lines, read_settings, read_variables
from .doctor.rules.catalogue import RULES
from .doctor.settings import JobSettings


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """What no file says and a person knows; None: not known. Times are in seconds."""

    gpus: int | None = None
    iteration_s: float | None = None
    checkpoint_every: int | None = None
    save_s: float | None = None
    restart_s: float | None = None
    mtbf_s: float | None = None


# The option of `rtk doctor` that gives each fact.
FACT_OPTIONS = {
    "gpus": "--gpus",
    "iteration_s": "--iteration-time",
    "checkpoint_every": "--checkpoint-every",
    "save_s": "--save-time",
    "restart_s": "--restart-time",
    "mtbf_s": "--mtbf",
}


def doctor(
    files: Sequence[str] = (),
    *,
    environments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    lines: Sequence[str] = (),
    facts: KnownFacts = KnownFacts(),
) -> Diagnosis:
    """Say which settings of a job contradict each other, what a hang and a failure cost, and what is cheap to change.

    Args:
        files: batch scripts, launch scripts, torchtitan's TOML, logs of Megatron with its arguments, Python scripts,
            `.env` files, outputs of env; `-` is standard input. What each is is recognised.
        environments: files that are read as an environment, whatever they look like.
        variables: of an environment that is at hand, such as `os.environ`.
        lines: command lines of torchrun, ft_launcher or srun.
        facts: what no file says.

    Returns:
        The diagnosis: what was read, findings with places and sources, costs.

    Raises:
        InvalidInputError: a file cannot be read or is not recognised, or nothing was given.
    """
    if not files and not environments and variables is None and not lines:
        raise InvalidInputError(
            "no settings were given",
            where="FILES",
            fix="give a batch script, a .env file, a TOML file, --env or --torchrun",
        )
    if [*files, *environments].count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILES", fix="give one `-`")
    collected = Collected()
    if variables is not None:
        read_variables(variables, collected, "environment")
    read = [read_settings(path, collected, "environment") for path in environments]
    read += [read_settings(path, collected) for path in files]
    read_lines(lines, collected, "--torchrun")
    _note_facts(facts, collected)
    job = collected.settings()
    return Diagnosis(tuple(read), job.set_ones, findings_of(job), job.unread, costs_of(job))


def findings_of(job: JobSettings) -> tuple[SettingsFinding, ...]:
    """What all rules find, contradictions first."""
    found = [finding for rule in RULES for finding in rule.findings(job)]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _note_facts(facts: KnownFacts, collected: Collected) -> None:
    for field, option in FACT_OPTIONS.items():
        value = getattr(facts, field)
        if value is not None:
            collected.put(field, value, ToldSetting(option, f"{value:g}", "given"), ASKED)
