"""A worker of a plain run: one process of torchrun's, without a coordinator, which fails with the others."""

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from ..schemas.errors import InvalidInputError
from .conducting import Conduct, first_beyond
from .console import SETTINGS
from .run_report import RunReport
from .run_story import RunFacts
from .training import Training, device, load_training, tokens_of

if TYPE_CHECKING:
    from ..runners.torch.corpus import ByteBatch
    from ..runners.torch.runner import PlanRunner
    from ..schemas.plan import Plan


def work_under_torchrun(plan: "Plan", training: Training, how: Conduct, as_json: bool, quiet: bool) -> None:
    """Be one worker of a job without a coordinator, which ends when one of its workers fails.

    Raises:
        InvalidInputError: the model or the data do not fit the plan, or an option needs a coordinator.
    """
    _refuse_resilience(how)
    import torch

    from ..runners.torch.runner import PlanRunner
    from ..schemas.documents import write_document

    torch.set_num_threads(training.threads)
    model, corpus = load_training(plan, training)
    runner = PlanRunner(
        plan,
        model.layers,
        model.loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=training.learning_rate),
        device=device(),
        paced=training.paced,
        seed=training.seed,
        transport=training.transport,
    )
    SETTINGS.trains = True
    facts = RunFacts(plan, training.model, tokens_of(plan, corpus), training.paced, how.iterations)
    report = RunReport(facts, as_json=as_json, quiet=quiet, metrics=how.metrics)
    if runner.reports_loss():
        with report:
            _report_all(runner, corpus.batch, how.iterations, report)
    else:
        for iteration in range(how.iterations):
            runner.step(corpus.batch(iteration))
    if how.timeline is not None:
        timeline = runner.timeline()
        if timeline is not None:
            write_document(how.timeline, timeline)
    runner.close()


def _report_all(runner: "PlanRunner", batch: "Callable[[int], ByteBatch]", iterations: int, report: RunReport) -> None:
    """Run all iterations, and say what each gave; it lasts from the end of the one before it."""
    from ..runners.resilience.announcements import IterationCommitted, JobEnded, JobStarted

    live = len(runner.plan.live_workers())
    report.report(JobStarted(epoch=0, live_workers=live, iterations=iterations, iteration=0))
    times_s, last_end_s = [], None
    for iteration in range(iterations):
        result = runner.step(batch(iteration))
        times_s.append(result.end_s - (result.start_s if last_end_s is None else last_end_s))
        last_end_s = result.end_s
        report.report(
            IterationCommitted(
                epoch=0, iteration=iteration, loss=result.loss, iteration_time_s=times_s[-1], live_workers=live
            )
        )
    done = "all iterations are done"
    report.report(JobEnded(epoch=0, exit_code=0, reason=done, iterations=iterations, iteration_time_s=median(times_s)))


def _refuse_resilience(how: Conduct) -> None:
    """Without a coordinator there is nobody to lead."""
    option = first_beyond(Conduct(how.iterations, timeline=how.timeline, metrics=how.metrics), how)
    if option is not None:
        raise InvalidInputError(
            f"{option} needs a coordinator",
            where=option,
            fix="start `rtk coordinate`, and the workers with --coordinator",
        )
