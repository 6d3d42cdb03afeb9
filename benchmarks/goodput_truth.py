"""How right `rtk goodput` is: against jobs of which the truth is known, and public logs that were counted by hand.

Ten made jobs, each as the logs of the frameworks of `made_logs.py`; thirty more with 200 faults, whose failures are
looked for; and three logs of BigScience's Megatron runs on V100s, which are the input of `by_hand`.
"""

import gzip
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.made_jobs import MadeJob, MadeShape, make_job
from rtk.benchmarks.made_logs import LOGS, PATTERNS, LogName, write_accounts, write_logs
from rtk.profilers.goodput import goodput
from rtk.schemas.ledger import GoodputLedger

JOBS, FAULTY_JOBS, FAULTS = 10, 30, 200
FRESH_JOBS = 20  # whose seeds nobody had looked at while the ledger was written
# As the log says, read with the eye: seconds of the day at `[after megatron is initialized] datetime`, and at the last
# line with a time (`slurmstepd: error: *** JOB … CANCELLED AT …`); both stand in the file once.
PUBLIC = {
    "meg_gpt2_base_n4_dp1_tp4_pp4-1809579": ("08:41:04", "08:45:57"),
    "meg_gpt2_base_n16_dp1_tp4_pp16-1809577": ("08:41:04", "08:46:02"),
    "meg_gpt2_base_n64_dp1_tp4_pp64-1809655": ("09:40:37", "09:50:34"),
}
LOGGED = Path(__file__).resolve().parents[2] / "shared" / "data" / "logs" / "megatron-v100"  # beside the repository


def ledger_of_job(job: MadeJob, name: LogName, has_accounts: bool = False) -> GoodputLedger:
    """What `rtk goodput` makes of a made job's logs.

    Args:
        job: that wrote them.
        name: whose logs.
        has_accounts: Slurm's accounts of the job are given with them.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(path) for path in write_logs(job, name, Path(folder))]
        accounts = Path(folder) / "sacct.txt"
        if has_accounts:
            write_accounts(job, accounts)
        return goodput(
            paths,
            patterns=PATTERNS if name == "pattern" else (),
            gpus=job.shape.gpus if name == "lightning" else None,
            sacct=str(accounts) if has_accounts else None,
        )


def compared(job: MadeJob, found: GoodputLedger) -> dict[str, Any]:
    """A made job beside its ledger."""
    gpus = found.time.total_gpu_s / found.span_s  # one, where the log does not say
    return {
        "seed": job.shape.seed,
        "goodput": job.goodput,
        "found": found.goodput,
        "error": found.goodput - job.goodput,
        "failures": len(job.failures_s),
        "failures_found": len(found.failures),
        "iterations_differ": found.iterations - job.iterations,
        "classes_s": {name: [job.truth_s[name], found.time.of(name) / gpus] for name, _ in found.time},
    }


def matched(job: MadeJob, found: GoodputLedger) -> tuple[int, int]:
    """How many failures were found, and how many that were none: each true one is found once, in its time.

    That is from its beginning, or the last line before it, which is up to a log interval earlier, to the next attempt.
    """
    left, right, within_s = list(job.failures_s), 0, 60.0 + 3 * job.shape.interval * job.shape.base_s
    for failure in found.failures:
        near = next((one for one in left if one[0] - within_s <= failure.time_s <= one[1] + within_s), None)
        if near is not None:
            left.remove(near)
            right += 1
    return right, len(found.failures) - right


def faults_of(jobs: int, faults: int) -> list[int]:
    """So many faults, dealt to the jobs as evenly as it goes, with a few more for the first ones."""
    return [faults // jobs + (number < faults % jobs) for number in range(jobs)]


def by_hand(path: Path, began: str, ended: str) -> dict[str, float]:
    """A Megatron log counted without anything of rtk.

    An iteration is worth what it took, but no more than the healthy time where it took over 10 % longer; the healthy
    time is the median of those within 10 % of the lower quartile, without the first line, in which all warms up. The
    timers of these logs run on while the model is evaluated, which is useful: lines after an evaluation are worth all.
    """
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    lines = re.findall(r"iteration +(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+)", text)
    evaluated = {int(number) for number in re.findall(r"validation loss at iteration (\d+)", text)}
    numbers, times_s = [int(number) for number, _ in lines], [float(time_ms) / 1e3 for _, time_ms in lines]
    ordered = sorted(times_s[1:])
    quartile = ordered[(len(ordered) - 1) // 4]
    healthy_s = median(one for one in ordered if quartile / 1.1 <= one <= quartile * 1.1)
    useful_s = 0.0
    for before, number, time_s in zip([0, *numbers], numbers, times_s, strict=False):
        slow_from = 1.02 if before == 0 else 1.1
        is_slow = time_s > slow_from * healthy_s and before not in evaluated
        useful_s += (number - before) * (healthy_s if is_slow else time_s)
    seconds = [
        sum(int(part) * unit for part, unit in zip(time.split(":"), (3600, 60, 1), strict=True))
        for time in (began, ended)
    ]
    span_s = float(seconds[1] - seconds[0])
    return {"span_s": span_s, "useful_s": useful_s, "goodput": useful_s / span_s}


def public(folder: Path) -> list[dict[str, Any]]:
    """The public logs: counted by hand, and by rtk."""
    found = []
    for name, (began, ended) in PUBLIC.items():
        path = folder / f"{name}.out.gz"
        counted, ledger = by_hand(path, began, ended), goodput([str(path)])
        found.append(
            {
                "log": name,
                "by_hand": counted,
                "found": ledger.goodput,
                "found_span_s": ledger.span_s,
                "error": ledger.goodput - counted["goodput"],
            }
        )
    return found


def shape_for(name: LogName, shape: MadeShape) -> MadeShape:
    """A job whose log can tell of it: DeepSpeed's lines say nothing of evaluations.

    Tables of Lightning's attempts are put in order by their clocks, which must not be put back for that.
    """
    return replace(
        shape,
        clock=0.0 if name == "lightning" else shape.clock,
        evaluate_every=0 if name == "deepspeed" else shape.evaluate_every,
        saves_first=name == "torchtitan",
    )


def measured(jobs: Iterable[int], faulty: int) -> dict[str, Any]:
    """Goodput of jobs, and failures of others.

    Args:
        jobs: seeds of those whose goodput is compared.
        faulty: the first seed of those whose failures are looked for.
    """
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for seed in jobs:
        shape = MadeShape.of(seed)
        for name in LOGS:
            job = make_job(shape_for(name, shape))
            rows[name].append(compared(job, ledger_of_job(job, name)))
            if name == "lightning":  # its tables do not say what was before their first row, and after their last
                rows["lightning with sacct"].append(compared(job, ledger_of_job(job, name, has_accounts=True)))
    right = false = 0
    for seed, faults in enumerate(faults_of(FAULTY_JOBS, FAULTS), start=faulty):
        name = LOGS[seed % 3]
        job = make_job(shape_for(name, MadeShape.of(seed, faults)))
        found, wrong = matched(job, ledger_of_job(job, name))
        right, false = right + found, false + wrong
    return {
        "jobs": dict(rows),
        "worst_error": {name: max(abs(one["error"]) for one in of) for name, of in rows.items()},
        "faults": {"jobs": FAULTY_JOBS, "there": FAULTS, "found": right, "false": false},
    }


def truth(size_bytes: int) -> dict[str, Any]:
    """All of it; the size of logs is of no account here."""
    fresh = measured(range(100, 100 + FRESH_JOBS), 2000)
    return {
        **measured(range(JOBS), 1000),
        "fresh": {name: fresh[name] for name in ("worst_error", "faults")},
        "public": public(LOGGED),
    }
