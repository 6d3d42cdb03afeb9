"""Small files of every kind that rtk reads, as rtk and others write them, and the commands that read each."""

import json
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtk.runners.resilience.journal import take
from rtk.runners.resilience.protocol import Job

from ..cli.shell import rtk
from ..profilers.kineto_steps import BACKWARD, product_kernel, steps_of, write_trace
from ..profilers.test_attribution import Shape, table, written
from ..profilers.test_flight_recorder import dump, entry
from ..profilers.test_kineto import kernel, trace
from ..profilers.test_observed import ARGUMENTS, block_of, iteration, log_of
from ..profilers.test_readers import WRITERS
from ..runners.resilience.toy_cluster import ToyCluster, toy_plan

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
SHAPE = ("--pp", "2", "--dp", "2", "--microbatches", "4")
# Not commands: what a coordinator and a resumed run read before any training, for which commands need torch or sockets.
LOG, CHECKPOINT = "coordinator's log", "checkpoint"
JOB = Job(toy_plan(2, 2, 3, staggered=False), iterations=9)
HELLO: dict[str, Any] = {"plan": "0" * 64, "job": {"seed": 1}}

Command = tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        group: of tests, for there are several.
        file: that is damaged.
        form: how it is damaged, see `mutation.mutated`.
        commands: that read it; what they write is called `out…`.
    """

    group: str
    file: str
    form: str
    commands: tuple[Command, ...]


def _commands(*lines: str) -> tuple[Command, ...]:
    return tuple(tuple(line.split()) for line in lines)


_SHAPE = " ".join(SHAPE)
_REPLAY = f"replay --profile p.json {_SHAPE} --policies slipstream,checkpoint-restart -o out.json --trace"
_ANALYTIC = "--analytic --gpu h100-sxm --microbatch-size 1 --sequence-length 32"
_DETECT = ("detect {0}", "detect {0} -o out.html --json", "detect {0} --mode paper")
TARGETS = (
    Target("plans", "p.json", "json", _commands(
        f"plan pipeline p.json {_SHAPE} -o out.json", f"plan adaptra p.json {_SHAPE} --link-delay 0=0.5 -o out.json",
        f"plan slipstream p.json {_SHAPE} --failed 0/1 -o out.json", f"plan slipstream p.json {_SHAPE} --failures 1",
        f"plan joint p.json {_SHAPE} --failed 0/1 --slow 1/0=1.5 -o out.json",
        "plan templates p.json --nodes 4 --gpus-per-node 1 -o out.json", "profile compare same.json p.json",
        f"plan topology p.json {_SHAPE} --slow 0/0=2 -o out.json",
        f"plan pipeline p.json {_SHAPE} --schedule gpipe --memory-limit 100,100", f"{_REPLAY} own.jsonl",
    )),
    Target("plans", "plan.json", "json", _commands(
        "verify plan.json", "verify plan.json --timeline t.json --json", "simulate plan.json --timeline out.json",
        "simulate plan.json --slow 0/0=2 --link-delay 0=1 --json", "viz plan.json -o out.html",
        "viz plan.json --terminal",
        "simulate plan.json --iterations 6 --inject faults.jsonl", "diff same-plan.json plan.json", "explain plan.json",
        "export plan.json --to torch-csv -o out.csv", "profile refine p.json --plan plan.json --timeline measured.json",
        "simulate plan.json --cluster c.yaml --overlay o.yaml",
    )),
    Target("plans", "rerouted.json", "json", _commands(
        "verify rerouted.json", "simulate rerouted.json --iterations 4 --inject more-faults.jsonl --atlas atlas",
        "viz rerouted.json -o out.svg", "diff plan.json rerouted.json --json", "explain rerouted.json --json",
    )),
    Target("plans", "unlike.json", "json", _commands(
        "verify unlike.json", "plan reconfigure unlike.json --failed 0/0 -o out.json",
        "plan reconfigure unlike.json --join 1 -o out.json",
        "simulate unlike.json --iterations 6 --inject more-faults.jsonl",
        "explain unlike.json", "viz unlike.json -o out.html",
    )),
    Target("plans", "placed.json", "json", _commands("verify placed.json", "explain placed.json")),
    Target("plans", "templates.json", "json", _commands(
        "plan oobleck templates.json --nodes 4 --global-batch 8 --microbatch-size 1 -o out.json",
        "viz templates.json -o out.html",
    )),
    Target("atlases", "atlas/atlas.json", "json", _commands(
        "plan slipstream --from atlas --failures 1 -o out.json",
        "plan slipstream --from atlas --failed 1/1 -o out.json",
        "plan slipstream --from atlas --failures 0 -o out.json",
        "simulate whole.json --iterations 6 --inject faults.jsonl --atlas atlas",
    )),
    Target("atlases", "begun/unfinished.jsonl", "lines", _commands(
        f"plan slipstream p.json {_SHAPE} --max-failures 2 -o begun",
    )),
    Target("atlases", "t.json", "json", _commands(
        "verify plan.json --timeline t.json", "viz t.json -o out.html", "viz t.json -o out.json.gz",
        "viz t.json --terminal",
    )),
    Target("atlases", "measured.json", "json", _commands(
        "profile refine p.json --plan plan.json --timeline measured.json -o out.json",
        "verify plan.json --timeline measured.json",
    )),
    Target("atlases", "schedule.csv", "text", _commands(
        "import schedule.csv --from torch-csv --profile p.json -o out.json",
    )),
    Target("atlases", "c.yaml", "text", _commands(
        f"plan pipeline p.json {_SHAPE} --cluster c.yaml -o out.json",
        f"plan joint p.json {_SHAPE} --cluster c.yaml --overlay o.yaml -o out.json",
        "plan templates p.json --cluster c.yaml -o out.json", f"{_REPLAY} own.jsonl --cluster c.yaml",
    )),
    Target("atlases", "o.yaml", "text", _commands(
        f"plan joint p.json {_SHAPE} --cluster c.yaml --overlay o.yaml -o out.json",
        "simulate plan.json --cluster c.yaml --overlay o.yaml",
    )),
    Target("atlases", "config.json", "json", _commands(
        f"profile config.json {_ANALYTIC} -o out.json", f"profile config.json {_ANALYTIC} --checkpointing -o out.json",
    )),
    *(Target("traces", file, form, _commands(
        f"trace show {file} {hint}", f"trace convert {file} -o out.jsonl {hint}",
        f"trace convert {file} -o out.csv {hint}",
        f"{_REPLAY} {file} {hint}", f"trace show {file} {hint} --json --seed 3",
    )) for file, form, hint in (
        ("own.jsonl", "lines", ""), ("own.csv", "text", ""), ("spot.csv", "text", ""), ("parcae.jsonl", "lines", ""),
        ("samples.csv", "text", ""), ("counts.csv", "text", "--trace-format counts-s"),
        ("node-faults.json", "json", "--nodes 9 --slow-faults"),
    )),
    Target("traces", "faults.jsonl", "lines", _commands(
        "simulate plan.json --iterations 6 --inject faults.jsonl",
    )),
    Target("traces", "more-faults.jsonl", "lines", _commands(
        "simulate unlike.json --iterations 6 --inject more-faults.jsonl",
    )),
    Target("traces", "sweep.yaml", "text", _commands("sweep sweep.yaml -o out")),
    Target("traces", "replay.json", "json", _commands(
        "viz replay.json -o out.html", "viz replay.json -o out.svg", "viz replay.json --terminal",
        "viz replay.json same-replay.json -o out.html",
    )),
    Target("traces", LOG, "lines", ((LOG,),)),
    Target("traces", "step/checkpoint.json", "json", ((CHECKPOINT,),)),
    *(Target("detection", f"{name}.log", "lines" if name in ("jsonl", "rtk_run") else "text", _commands(
        *(line.format(f"{name}.log") for line in _DETECT)
    )) for name in sorted(WRITERS)),
    *(Target("detection", file, form, _commands(*(line.format(file) for line in _DETECT))) for file, form in (
        ("calls.jsonl", "lines"), ("dump0.json", "json"), ("dump1", "pickle"), ("inspector.jsonl", "lines"),
        ("operations.csv", "text"),
    )),
    Target("detection", "kineto.json", "json", _commands("detect kineto.json")),
    *(Target("detection", file, form, _commands(
        f"profile config.json {_ANALYTIC} --calibrate {file} -o out.json",
    )) for file, form in (
        ("steps.json", "json"), ("steps.yaml", "text"), ("job.out", "text"),
    )),
    Target("detection", "passes.json", "json", _commands(
        "profile refine p.json --plan plan.json --timeline passes.json -o out.json",
    )),
)  # fmt: skip


def make_samples(folder: Path) -> None:
    """Write an undamaged file of every kind into an empty folder."""
    _made_by_rtk(folder)
    _told_by_others(folder)
    _logged(folder)
    (folder / "step").mkdir()
    files = [{"name": "layers-0-2.safetensors", "layers": [0, 2], "sha256": "0" * 64, "size_bytes": 8}]
    checkpoint = {"iteration": 3, "layers": 2, "plan": "0" * 64, "seed": 0, "total_microbatches": 8, "files": files}
    _write_json(
        folder / "step" / "checkpoint.json", {"format": "rtk.checkpoint", "format_version": "1.0", **checkpoint}
    )
    _coordinators_log(folder / LOG)


def _made_by_rtk(folder: Path) -> None:
    """Plans and what comes of them."""
    costs = {"forward_s": 1.0, "backward_input_s": 1.5, "backward_weight_s": 0.5, "optimizer_s": 0.1}
    sizes = {"parameter_bytes": 16.0, "state_bytes": 32.0, "activation_bytes": 8.0, "weight_stash_bytes": 4.0}
    layer = {"costs": [costs], "output_bytes": 2.0, **sizes}
    network = {"intra_node": {"latency_s": 0.001, "bandwidth_bytes_per_s": 1e3}}
    profile = {"layers": [layer] * 4, "network": network, "microbatch_size": 1, "model": {"name": "toy"}}
    _write_json(folder / "p.json", {"format": "rtk.profile", "format_version": "1.0", **profile})
    (folder / "same.json").write_text((folder / "p.json").read_text())
    _tell(
        folder / "faults.jsonl",
        [(2, "fail", "0/1", {}), (4, "join", "0/1", {}), (5, "slow_compute", "1/0", {"factor": 2.0})],
    )
    _tell(
        folder / "more-faults.jsonl",
        [(2, "fail", "1/0", {}), (3, "slow_compute", "0/0", {"factor": 2.0}), (4, "join", "1/0", {})],
    )
    (folder / "own.jsonl").write_text(OWN)
    (folder / "c.yaml").write_text(CLUSTER)
    (folder / "o.yaml").write_text(OVERLAY)
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "config.json").write_text((CONFIGS / "llama-3.1-8b.json").read_text())
    for line in (
        f"plan pipeline p.json {_SHAPE} --schedule zero-bubble -o plan.json",
        f"plan slipstream p.json {_SHAPE} --failed 0/1 -o rerouted.json",
        f"plan topology p.json {_SHAPE} --slow 0/0=2 -o placed.json",
        "plan templates p.json --nodes 4 --gpus-per-node 1 -o templates.json",
        "plan oobleck templates.json --nodes 4 --global-batch 8 --microbatch-size 1 -o unlike.json",
        f"plan slipstream p.json {_SHAPE} --max-failures 2 -o atlas",
        "plan slipstream --from atlas --failures 0 -o whole.json",
        "simulate plan.json --timeline t.json",
        "export plan.json --to torch-csv -o schedule.csv",
        "trace convert own.jsonl -o own.csv",
        f"replay --profile p.json {_SHAPE} --policies slipstream,checkpoint-restart --trace own.jsonl -o replay.json",
    ):
        done = rtk(*line.split(), cwd=folder)
        assert done.returncode == 0, (line, done.stderr)
    (folder / "measured.json").write_text((folder / "t.json").read_text().replace('"simulated"', '"measured"'))
    (folder / "same-plan.json").write_text((folder / "plan.json").read_text())
    (folder / "same-replay.json").write_text((folder / "replay.json").read_text())
    _begin_anew(folder)


def _begin_anew(folder: Path) -> None:
    """An atlas that was interrupted after two of its entries: what stands in its journal."""
    atlas = json.loads((folder / "atlas" / "atlas.json").read_text())
    entries = atlas.pop("plans")
    (folder / "begun").mkdir()
    lines = [json.dumps(one, sort_keys=True, separators=(",", ":")) for one in (atlas, *entries[:2])]
    (folder / "begun" / "unfinished.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _told_by_others(folder: Path) -> None:
    """Traces of failures in other people's formats."""
    (folder / "spot.csv").write_text(
        "0,add,a\n0,add,b\n0,add,c\n0,add,d\n60000,remove,b\n90000,add,e\n300000,remove,a\n"
    )
    (folder / "parcae.jsonl").write_text(
        '[0, "add", {"nodes": ["a", "b", "c", "d"], "duration": 60000}]\n'
        '[60000, "remove", {"nodes": ["a"], "duration": 60000}]\n[120000, "no-op", {"nodes": [], "duration": 60000}]\n'
    )
    (folder / "samples.csv").write_text("".join(f"2021-12-10, 12:0{n}:00, {4 - n % 2}\n" for n in range(6)))
    (folder / "counts.csv").write_text("".join(f"{60 * n},{4 - n % 2}\n" for n in range(6)))
    faults = [("a", 0.1, True), ("a", 0.2, False), ("b", 0.3, True), ("b", 0.5, False)]
    _write_json(
        folder / "node-faults.json",
        [
            {"node_id": node, "event_time": days, "event_type": "fault_start" if begins else "fault_end",
             "fault_type": {"Level": "x", "Desc": "GPU Lost"}}
            for node, days, begins in faults
        ],
    )  # fmt: skip


def _logged(folder: Path) -> None:
    """Logs of iteration times and of calls, of a job that becomes slow."""
    times_s = [1.0 + 0.01 * (n % 7) for n in range(60)] + [1.6 + 0.01 * (n % 5) for n in range(30)]
    for name, lines in WRITERS.items():
        (folder / f"{name}.log").write_text("".join(f"{line}\n" for line in lines(times_s)))
    begins_s = [sum(times_s[:n]) for n in range(len(times_s))]
    calls = [{"t": at_s, "rank": rank, "op": "all_reduce", "bytes": 8} for at_s in begins_s for rank in (0, 1)]
    (folder / "calls.jsonl").write_text("".join(f"{json.dumps(call)}\n" for call in calls))
    recorded = dump([entry(n + 1, at_s) for n, at_s in enumerate(begins_s)])
    _write_json(folder / "dump0.json", recorded)
    (folder / "dump1").write_bytes(pickle.dumps(recorded))
    (folder / "inspector.jsonl").write_text(
        "".join(f"{json.dumps(_inspected(n, at_s))}\n" for n, at_s in enumerate(begins_s))
    )
    passes = [
        {"ph": "X", "cat": "user_annotation", "name": f"PP:{stage}{kind}{n % 4}", "pid": stage,
         "ts": 1e6 * at_s, "dur": 1e4}
        for n, at_s in enumerate(begins_s[:8]) for stage, kind in ((0, "F"), (1, "F"), (1, "B"), (0, "B"))
    ]  # fmt: skip
    _write_json(folder / "kineto.json", trace([kernel(at_s) for at_s in begins_s]))
    _write_json(folder / "passes.json", {"traceEvents": passes})
    _calibrating(folder)
    written(folder / "operations.csv", table(Shape(2, 2, 3)))


def _calibrating(folder: Path) -> None:
    """What computed times are corrected by: a trace of steps, its settings, and a log with arguments and timers."""
    around = BACKWARD + "MmBackward0"
    step = [product_kernel(64, 32, 16, 40.0), product_kernel(64, 32, 16, 90.0, around, gap_us=3.0)]
    write_trace(folder / "steps.json", steps_of(step, 2), rank=0, world_size=2)
    (folder / "steps.yaml").write_text(
        "model: gpt3-medium\ngpu: a100-sxm\ntensor_parallel: 2\npp: 1\nglobal_batch: 8\ntrace: steps.json\n"
    )
    timers = {name: [20.0, 21.0] for name in ("forward-compute", "backward-compute", "optimizer-inner-step")}
    (folder / "job.out").write_text(log_of(ARGUMENTS, iteration(1, 90), iteration(2, 80), *block_of(timers, "minmax")))


def _inspected(number: int, at_s: float) -> dict[str, Any]:
    """A line of NCCL Inspector's."""
    done = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 100}
    began = {"event_trace_ts": {"coll_start_ts": 1e6 * at_s}}
    return {
        "header": {"id": "0x1", "rank": 0, "n_ranks": 2},
        "metadata": {"dump_timestamp_us": 1e6 * at_s},
        "coll_perf": {**done, **began},
    }


def _coordinators_log(path: Path) -> None:
    """What the coordinator of a job wrote of which a worker died and came back."""
    cluster = ToyCluster(JOB, random.Random(7))
    dead = False
    while cluster.finished is None and cluster.step():
        if cluster.rules.committed >= 2 and not dead:
            cluster.kill(cluster.live()[1])
            dead = True
        if cluster.rules.committed == 5 and len(cluster.live()) < 4:
            cluster.start("0/1")
    take(path, **HELLO).close()
    with path.open("ab") as file:
        file.writelines(cluster.log)


def _tell(path: Path, events: list[tuple[int, str, str, dict[str, Any]]]) -> None:
    lines = [{"iteration": at, "kind": kind, "worker": worker, **more} for at, kind, worker, more in events]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _write_json(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=1))


OWN = "".join(f'{{"time_s": 0.0, "kind": "join", "node": "n{n}"}}\n' for n in range(5)) + (
    '{"time_s": 60.0, "kind": "fail", "node": "n1"}\n'
    '{"time_s": 200.0, "kind": "slow_compute", "node": "n2", "factor": 1.5}\n'
    '{"time_s": 300.0, "kind": "join", "node": "n1"}\n{"time_s": 900.0, "kind": "end"}\n'
)
CLUSTER = """\
name: toy
nodes: node[1-4]
gpus_per_node: 1
gpu: h100-sxm
memory: 80GB
network:
  intra_node: {latency: 5us, bandwidth: 300GB/s}
  inter_node: {latency: 10us, bandwidth: 400Gbit/s}
"""
OVERLAY = """\
failed: [node2]
slow: {node3: 1.5}
slow_links: {node3-node4: 20ms}
"""
SWEEP = """\
profiles: p.json
jobs: {pp: 2, dp: 2, microbatches: [2, 4]}
clusters: [4x1]
traces:
  - spot.csv
  - generate: {duration: 2h, mtbf: 1h, repair: 10min}
    seeds: 2
policies: [spares, checkpoint-restart]
costs:
  restart_s: [60]
"""
