"""Logs of made jobs as their frameworks would have written them, with lines between them that tell nothing."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from .made_jobs import BEGIN_S, FaultKind, MadeJob, MadeLine

LogName = Literal["megatron", "torchtitan", "deepspeed", "lightning", "pattern"]
LOGS: tuple[LogName, ...] = ("megatron", "torchtitan", "deepspeed", "lightning", "pattern")
TOTAL = 100_000  # iterations that the job is asked for
PATTERNS = (
    r"^(?P<time>\S+ \S+) step (?P<iteration>\d+) took (?P<took_ms>[\d.]+) ms",
    r"^(?P<time>\S+ \S+) wrote step (?P<save>\d+) in (?P<took_s>[\d.]+) s",
    r"^(?P<time>\S+ \S+) evaluated step (?P<evaluation>\d+) in (?P<took_s>[\d.]+) s",
    r"^(?P<time>\S+ \S+) read step (?P<load>\d+) in (?P<took_s>[\d.]+) s",
    r"^(?P<time>\S+ \S+) (?P<start>hello) from (?P<gpus>\d+) GPUs",
)
NOISE = (
    "NCCL INFO Channel 00/02 :    0   1   2   3   4   5   6   7",
    "/usr/lib/python3/dist-packages/torch/nn/modules/module.py:1511: FutureWarning: deprecated",
    "  warnings.warn(",
    "wandb: Network error (ConnectTimeout), entering retry loop.",
    "",
)


def stamp(time_s: float, form: str, digits: int = 0) -> str:
    """A time as logs write it."""
    shown = datetime.fromtimestamp(round(time_s, digits), UTC)
    return shown.strftime(form.replace("%f", f"{shown.microsecond:06d}"[: max(digits, 1)]))


def _iso(time_s: float, digits: int = 3) -> str:
    return stamp(time_s, "%Y-%m-%d %H:%M:%S,%f", digits)


def _glog(time_s: float) -> str:
    return stamp(time_s, "%m%d %H:%M:%S.%f", 6)


_AGENT = "torch/distributed/elastic/agent/server/api.py:870]"


def _start(told: MadeLine, job: MadeJob) -> Iterator[str]:
    """What torchrun says when it starts, and every framework's log has."""
    yield f"I{_glog(told.time_s)} 140 {_AGENT} [default] starting workers for entrypoint: python3"


def _broken(told: MadeLine, job: MadeJob) -> Iterator[str]:
    """What torch, torchrun and Slurm say of a failure."""
    fault: FaultKind = told.fault or "error"
    if fault == "hang":
        yield (
            f"[rank5]:[E{_glog(told.time_s)} ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
            "600029 milliseconds before timing out."
        )
    elif fault == "preempted":
        when = stamp(told.time_s, "%Y-%m-%dT%H:%M:%S")
        yield f"slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT {when} DUE TO PREEMPTION ***"
    elif fault == "killed":
        yield (
            f"E{_glog(told.time_s)} 140 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) "
            "local_rank: 3 (pid: 4711) of binary: /usr/bin/python3"
        )
    else:
        yield "[rank3]: Traceback (most recent call last):"
        yield '[rank3]:   File "/workspace/pretrain_gpt.py", line 264, in <module>'
        yield "[rank3]:     pretrain("
        yield "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        yield (
            f"E{_glog(told.time_s)} 141 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
            "local_rank: 3 (pid: 4711) of binary: /usr/bin/python3"
        )


def _ranks_ms(took_s: float) -> str:
    """The fastest and the slowest rank's time, as Megatron's timers have them."""
    return f"({took_s * 1e3 - 7:.2f}, {took_s * 1e3:.2f})"


def _megatron(told: MadeLine, job: MadeJob) -> Iterator[str]:
    day = stamp(told.time_s, "%Y-%m-%d %H:%M:%S")
    match told.kind:
        case "start":
            yield from _start(told, job)
            yield (
                f"using world size: {job.shape.gpus}, data-parallel size: {job.shape.gpus // 4}, context-parallel "
                "size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2"
            )
        case "rendezvous":
            yield f"[after megatron is initialized] datetime: {day} "
        case "init":
            yield f"[after model, optimizer, and learning rate scheduler are built] datetime: {day} "
        case "load":
            yield f" loading checkpoint from /ckpt at iteration {told.iteration}"
            yield f"  successfully loaded checkpoint from /ckpt [ t 1/2, p 1/2 ] at iteration {told.iteration}"
            yield "(min, max) time across ranks (ms):"
            yield f"    load-checkpoint ................................: {_ranks_ms(told.took_s)}"
        case "save":
            yield f"saving checkpoint at iteration {told.iteration:7d} to /ckpt in torch_dist format"
            yield f"  successfully saved checkpoint from iteration {told.iteration:7d} to /ckpt [ t 1/2, p 1/2 ]"
            yield "(min, max) time across ranks (ms):"
            yield f"    save-checkpoint ................................: {_ranks_ms(told.took_s)}"
        case "evaluation":
            yield "(min, max) time across ranks (ms):"
            yield f"    evaluate .......................................: {_ranks_ms(told.took_s)}"
            yield "-" * 93
            yield f" validation loss at iteration {told.iteration} | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | "
            yield "-" * 93
        case "iteration":
            yield (
                f" [{day}] iteration {told.iteration:8d}/ {TOTAL:7d} | consumed samples: {told.iteration * 256:12d} | "
                f"elapsed time per iteration (ms): {told.took_s * 1e3:.1f} | learning rate: 1.5E-04 | global batch "
                "size:   256 | lm loss: 2.41E+00 | loss scale: 1.0 | grad norm: 0.31 | number of skipped iterations:   "
                "0 | number of nan iterations:   0 |"
            )
        case "end":
            yield f"[after training is done] datetime: {day} "
        case _:
            yield from _broken(told, job)


def _torchtitan(told: MadeLine, job: MadeJob) -> Iterator[str]:
    head = f"[rank0]:[titan] {_iso(told.time_s)} - root - INFO - "
    tokens = 8192 * 8
    match told.kind:
        case "start":
            yield from _start(told, job)
            yield f"{head}Starting job: Llama 3 8B training"
        case "rendezvous":
            shard = job.shape.gpus // 2
            yield f"{head}Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard={shard}, cp=1, tp=1"
        case "load":
            yield f"{head}Loading the checkpoint from outputs/checkpoint/step-{told.iteration}."
            yield f"{head}Finished loading the checkpoint in {told.took_s:.2f} seconds."
            yield f"{head}Training starts at step {told.iteration + 1}"
        case "init":
            if told.iteration == 0:
                yield f"{head}Training starts at step 1"
        case "save":
            yield f"{head}Finished saving the checkpoint (or staging if async is enabled)in {told.took_s:.2f} seconds."
        case "evaluation":
            yield f"{head}validate step: {told.iteration:2d}  loss:  2.5100  memory: 61.20GiB(64.42%)  tps: 9,111"
        case "iteration":
            # Its clock runs on while a checkpoint is saved: torchtitan/components/metrics.py, `time_last_log`.
            rate = tokens / (told.took_s + told.paused_s / told.steps)
            yield (
                f"{head}step: {told.iteration:2d}  loss:  2.4100  grad_norm:  0.3100  memory: 61.20GiB(64.42%)  "
                f"tps: {rate:,.0f}  tflops: 310.11  mfu: 31.36%"
            )
        case "end":
            yield f"{head}Training completed"
        case _:
            yield from _broken(told, job)


def _deepspeed(told: MadeLine, job: MadeJob) -> Iterator[str]:
    head = f"[{_iso(told.time_s)}] [INFO]"
    match told.kind:
        case "start":
            yield from _start(told, job)
            yield f"{head} [launch.py:162:main] dist_world_size={job.shape.gpus}"
        case "init":
            yield f"{head} [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0], mom=[(0.9, 0.999)]"
        case "load":
            begun = f"[{_iso(told.time_s - told.took_s)}] [INFO]"
            tag = f"/ckpt/global_step{told.iteration}/mp_rank_00_model_states.pt"
            yield f"{begun} [torch_checkpoint_engine.py:27:load] [Torch] Begin Load checkpoint from {tag}..."
            yield f"{head} [torch_checkpoint_engine.py:29:load] [Torch] End Load checkpoint from {tag}..."
        case "save":
            begun = f"[{_iso(told.time_s - told.took_s)}] [INFO]"
            tag = f"global_step{told.iteration}"
            yield f"{begun} [logging.py:96:log_dist] [Rank 0] [Torch] Checkpoint {tag} is about to be saved!"
            yield f"{head} [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint {tag} is ready now!"
        case "iteration":
            yield f"{head} [logging.py:96:log_dist] [Rank 0] step={told.iteration}, skipped=0, lr=[1e-4], mom=[0.9]"
            yield f"steps: {told.iteration} loss: 2.4100 iter time (s): {told.took_s:.3f} samples/sec: 61.200"
        case "end":
            yield f"{head} [launch.py:347:main] Process 4711 exits successfully."
        case "rendezvous" | "evaluation":
            pass
        case _:
            yield from _broken(told, job)


def _pattern(told: MadeLine, job: MadeJob) -> Iterator[str]:
    head = stamp(told.time_s, "%Y-%m-%d %H:%M:%S.%f", 3)
    match told.kind:
        case "start":
            yield f"{head} hello from {job.shape.gpus} GPUs"
        case "load":
            yield f"{head} read step {told.iteration} in {told.took_s:.3f} s"
        case "save":
            yield f"{head} wrote step {told.iteration} in {told.took_s:.3f} s"
        case "evaluation":
            yield f"{head} evaluated step {told.iteration} in {told.took_s:.3f} s"
        case "iteration":
            yield f"{head} step {told.iteration} took {told.took_s * 1e3:.1f} ms"
        case "failure" | "detected":
            yield from _broken(told, job)
        case _:
            pass


_WRITERS: dict[str, Callable[[MadeLine, MadeJob], Iterator[str]]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "pattern": _pattern,
}


def write_logs(job: MadeJob, name: LogName, folder: Path) -> list[Path]:
    """A made job's logs; of Lightning's tables one an attempt, else one for all.

    Args:
        job: what is told.
        name: whose logs.
        folder: where they are written.

    Returns:
        The files.
    """
    if name == "lightning":
        return _write_tables(job, folder)
    path, chance = folder / f"{name}.log", random.Random(job.shape.seed)
    with path.open("w") as stream:
        for told in job.told:
            for line in _WRITERS[name](told, job):
                stream.write(f"{line}\n")
            if chance.random() < 0.2:
                stream.write(f"{chance.choice(NOISE)}\n")
    return [path]


def write_accounts(job: MadeJob, path: Path) -> None:
    """What `sacct -P -D` says of a made job whose clock was never put back: when each attempt began, and when it ended.

    Of an attempt that ended without a word it has the end all the same: the scheduler saw the node go.
    """
    begun_s = [told.time_s for told in job.told if told.kind == "start"]
    ended_s = [BEGIN_S + failed_s for failed_s, _ in job.failures_s]
    states = dict.fromkeys(ended_s, "NODE_FAIL")
    for told in job.told:
        if told.kind in ("failure", "detected"):
            place = max(number for number, since_s in enumerate(begun_s) if since_s <= told.time_s)
            ended_s[place] = told.time_s
    ended_s.append(job.told[-1].time_s)
    rows = ["JobID|State|Start|End|ExitCode|AllocTRES|NodeList"]
    for begin_s, end_s in zip(begun_s, ended_s, strict=True):
        state = "COMPLETED" if end_s == ended_s[-1] else states.get(end_s, "FAILED")
        times = "|".join(stamp(time_s, "%Y-%m-%dT%H:%M:%S") for time_s in (begin_s, end_s))
        rows.append(f"4711|{state}|{times}|0:0|gres/gpu={job.shape.gpus}|node[1-8]")
    path.write_text("\n".join(rows) + "\n")


def _write_tables(job: MadeJob, folder: Path) -> list[Path]:
    """Lightning's metrics.csv of each attempt: it tells of iterations and of nothing else."""
    paths: list[Path] = []
    rows: list[str] = []
    for told in (*job.told, MadeLine("start", 0.0)):
        if told.kind == "start":
            if rows:
                paths.append(folder / f"version_{len(paths)}" / "metrics.csv")
                paths[-1].parent.mkdir()
                paths[-1].write_text(
                    "".join(["epoch,step,timestamp,train_loss,val_loss,train_step_timing in s\n", *rows])
                )
            rows = []
        if told.kind == "iteration":
            rows.append(f"0,{told.iteration - 1},{told.time_s:.3f},2.41,,{told.took_s:.4f}\n")
        if told.kind == "evaluation":
            rows.append(f"0,{told.iteration - 1},{told.time_s:.3f},,2.51,\n")
    return paths
