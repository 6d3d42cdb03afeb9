"""`rtk init`: asks what a job is, and writes its file."""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ..runners.processes import available_cores
from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import write_bytes
from ..schemas.job_file import FILE_NAME, job_text
from ..schemas.site import read_cluster
from .console import Common, Writes, grouped, print_json

HERE = "here"
WORKERS_HERE = 4
NEXT = """next:
  rtk profile         what the model costs, into profile.json
  rtk plan pipeline   a plan for this shape, into plan.json
  rtk simulate        the plan on a virtual clock
  rtk run             the plan on real processes
  rtk config show     all that {path} says, and could say"""

Answer = TypeVar("Answer", str, int)


@dataclass(frozen=True)
class JobQuestions:
    """What is asked, where no option answers it."""

    model: Annotated[
        str | None, typer.Option("--model", help="A preset, file.py:factory, or a Hugging Face config.json.")
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="FILE|slurm|NxM|here",
            help="The machines, as for `rtk plan`; here: processes of this machine.",
        ),
    ] = None
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Stages of a pipeline.")] = None
    dp: Annotated[int | None, typer.Option("--dp", min=1, help="Pipelines (data-parallel degree).")] = None
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", min=1, help="Micro-batches of each pipeline.")
    ] = None
    data: Annotated[
        list[str] | None, typer.Option("--data", help="Text or tokens to train on, as for `rtk run`. Repeatable.")
    ] = None
    iterations: Annotated[int | None, typer.Option("--iterations", min=1, help="How many to train.")] = None

    def answered(self, is_asking: bool) -> dict[str, object]:
        """The keys of the file with their values, asked for where nothing is given.

        Args:
            is_asking: else the suggestions count.

        Raises:
            InvalidInputError: an answer is missing or wrong.
        """
        ask = _ask if is_asking else lambda _, suggested: suggested
        model = self.model or ask("Model (a preset, file.py:factory, or a config.json)", "gpt-tiny")
        cluster = self.cluster or ask("Machines (nodes x GPUs as in 8x8, a YAML file, slurm; or here)", HERE)
        workers = WORKERS_HERE if cluster == HERE else read_cluster(cluster).size
        pp = self.pp or ask(f"Stages of a pipeline, of {workers} workers", stages_for(workers))
        dp = self.dp or ask("Pipelines (two or more go on when a worker dies)", max(1, workers // pp))
        microbatches = self.microbatches or ask("Micro-batches of each pipeline", 4 * pp)
        asked = "Text or tokens to train on (files with commas; empty: Python's own library)"
        data = self.data or ask(asked, "").split(",")
        iterations = self.iterations or ask("Iterations", 10)
        values = {
            "model.name": model,
            "model.profile": "profile.json",
            "cluster.cluster": None if cluster == HERE else cluster,
            "shape.pp": pp,
            "shape.dp": dp,
            "shape.microbatches": microbatches,
            "shape.plan": "plan.json",
            "training.data": [one.strip() for one in data if one.strip()],
            "training.iterations": iterations,
            "training.paced": cluster == HERE and pp * dp > available_cores(),
        }
        return {key: value for key, value in values.items() if value}


@grouped
def command(
    questions: JobQuestions,
    output: Annotated[str, typer.Option("--output", "-o", help="The file to write."), Writes()] = FILE_NAME,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: what no option says is as suggested.")] = False,
    *,
    common: Common,
) -> None:
    """Ask what the job is, and write its file, rtk.toml, which the other commands read.

    Then `rtk profile`, `rtk plan pipeline`, `rtk simulate` and `rtk run` need no more options; those that are given
    count. All other keys stand in the file as comments.
    """
    if Path(output).exists() and not common.force:
        raise InvalidInputError(
            "there is such a file already", where=output, fix="change it by hand, name another with -o, or give --force"
        )
    values = questions.answered(is_asking=not yes)
    write_bytes(output, job_text(values).encode())
    if common.as_json:
        print_json({"file": output, "values": values})
    remark(f"wrote {output}")
    remark(NEXT.format(path=output))


def stages_for(workers: int) -> int:
    """The most stages of equal pipelines that are no fewer than their stages: 2 of 4, 2 of 6, 8 of 64 workers."""
    return max(stages for stages in range(1, isqrt(workers) + 1) if workers % stages == 0)


def _ask(text: str, suggested: Answer) -> Answer:
    try:
        answer: Answer = typer.prompt(text, default=suggested, type=type(suggested), err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise InvalidInputError(
            "a question has no answer", where=text, fix="give --yes to take what is suggested, or the options"
        ) from None
    if isinstance(answer, int) and answer < 1:
        raise InvalidInputError(f"{answer} is too few", where=text, fix="give 1 or more")
    return answer
