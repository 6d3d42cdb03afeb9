"""The README's pictures: python docs/make_pictures.py

`images/rank-survives.svg` is a real run of workers of two processes each, of which one process is killed and replaced.
`images/placements.svg` are four plans of one model, placed otherwise. `images/placement-loss.svg` is a V that has lost
a worker: planned, simulated, and a real run. `images/survives.svg` is a real run, too: the quickstart's, with a killed
worker. `images/goodput.svg` is a replay, on a virtual clock, of a trace of spot
instances under each policy; `docs/tour.md` has its command. `images/gpu-faults.svg` is one of a trace in which single
GPUs fail (`docs/replay.md`). Nothing else should run on the machine meanwhile.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import rtk
from rtk.runners.undisturbed import columns_of_plan
from rtk.schemas.columns import select
from rtk.schemas.profile import BoundaryCost, LayerCost
from rtk.schemas.trace import Trace, TraceEvent, print_event
from rtk.viz.timeline import comparison_picture, timelines_picture

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
TITLE = "Four workers train; 1/1 is killed and comes back (a real run)"
# What each policy is, for readers who know no papers; those are left out that are for slow machines only.
POLICIES = {
    "rtk": "rtk: re-routes, or takes another shape",
    "slipstream": "SlipStream: peers take over",
    "oobleck": "Oobleck: pipeline templates",
    "elastic-batching": "drop the pipeline that is hit",
    "spares": "spare machines",
    "bamboo": "Bamboo: redundant computation",
    "varuna": "Varuna: restart in another shape",
    "checkpoint-restart": "restart from a checkpoint",
}
FAILS_IN, STRETCHED = 3, 8.0
Cost = TypeVar("Cost", LayerCost, BoundaryCost)
WIDTH, ROW, LEFT, TOP = 840, 30, 330, 78


def placements() -> str:
    """Plain, loop and V at plain's memory, and a V at half of it, each with its bubbles, peak memory and proof."""
    profile = rtk.profile_analytic("gpt3-6.7b", gpu="a100-sxm", microbatch_size=1)
    whole = partial(rtk.plan_pipeline, profile, schedule="zero-bubble", pp=4, microbatches=8)
    plain = whole()
    assert plain.prediction is not None
    most = max(plain.prediction.peak_memory_bytes)
    plans = {
        "Plain: one stage a worker": plain,
        "A loop: two chunks a worker": whole(placement="loop", memory_limit=most),
        "A V: two chunks a worker": whole(placement="v", memory_limit=most),
        "A V at half the memory": whole(placement="v", memory_limit=most / 2),
    }
    timelines = [(name, columns_of_plan(plan)) for name, plan in plans.items()]
    return comparison_picture(timelines, "GPT-3 6.7B on four A100s, eight micro-batches: what each worker holds").svg()


def stretched(profile: rtk.Profile) -> rtk.Profile:
    """The profile of a machine on which everything takes `STRETCHED` times as long."""

    def slower(cost: Cost) -> Cost:
        times = {one.name: getattr(cost, one.name) for one in fields(cost) if one.name.endswith("_s")}
        return replace(cost, **{name: STRETCHED * time_s for name, time_s in times.items() if time_s is not None})

    layers = (replace(layer, costs=tuple(map(slower, layer.costs))) for layer in profile.layers)
    return replace(profile, layers=tuple(layers), boundary=profile.boundary and slower(profile.boundary))


def placement_loss() -> str:
    """The first whole iteration of a V without 1/1, over each other: as planned, simulated, and run by four processes.

    These share this machine's cores, so all operations are planned, and stretched, to take `STRETCHED` times as long.
    """
    profile = stretched(rtk.profile_measured("gpt-tiny", repeats=5))
    whole = partial(rtk.plan_slipstream, profile, pp=2, dp=2, microbatches=4, placement="v", technique="decoupled")
    starts, without = whole(failures=0), whole(failed=["1/1"])
    trace, lasting = Trace((TraceEvent("fail", iteration=FAILS_IN, worker="1/1"),)), FAILS_IN + 2
    simulated = rtk.inject(starts, trace, iterations=lasting).timeline
    with TemporaryDirectory() as folder:
        faults, timeline = Path(folder) / "faults.jsonl", Path(folder) / "run.json"
        rtk.write(faults, trace)
        how = rtk.JobConfig(lasting, inject=str(faults), timeline=str(timeline))
        rtk.run(starts, rtk.TrainingConfig("gpt-tiny", paced=True), how)
        ran = rtk.read(timeline, rtk.Timeline)
    part = rtk.Selection(iterations=(FAILS_IN + 1, FAILS_IN + 1))
    parts = [columns_of_plan(without), select(simulated, part), select(ran, part)]
    title = "A V of two pipelines goes on without worker 1/1: planned, simulated, and run by processes"
    return timelines_picture(list(zip(("planned", "simulated", "run"), parts, strict=True)), title).svg()


def survives() -> str:
    """The timeline of a quickstart."""
    with TemporaryDirectory() as folder:
        rtk.quickstart(folder)
        picture = Path(folder) / "survives.svg"
        rtk.draw(rtk.read(Path(folder) / "run.json"), str(picture), title=TITLE)
        return picture.read_text()


def rank_survives() -> str:
    """A run of eight processes, two a worker: one of them is killed, the others go on, and a spare one joins."""
    profile = stretched(rtk.profile_measured("gpt-tiny", repeats=5, tp=(1, 2)))
    plan = rtk.plan_pipeline(profile, schedule="zero-bubble", pp=2, dp=2, microbatches=4, tensor_parallel=2)
    back = TraceEvent("join", iteration=FAILS_IN + 3, worker="1/1", gpu=1)
    trace = Trace((TraceEvent("fail", iteration=FAILS_IN, worker="1/1", gpu=1), back))
    with TemporaryDirectory() as folder:
        faults, timeline = Path(folder) / "faults.jsonl", Path(folder) / "run.json"
        rtk.write(faults, trace)
        how = rtk.JobConfig(FAILS_IN + 5, inject=str(faults), timeline=str(timeline))
        rtk.run(plan, rtk.TrainingConfig("gpt-tiny", paced=True), how)
        title = "Four workers of two processes; one of 1/1's is killed, and a spare one joins (a real run)"
        picture = Path(folder) / "picture.svg"
        rtk.draw(rtk.read(timeline, rtk.Timeline), str(picture), title=title)
        return picture.read_text()


def goodputs() -> dict[str, float]:
    """The share of the training of a cluster that never fails, by policy: a real trace, a computed profile."""
    profile = rtk.profile_analytic("gpt3-6.7b", gpu="a100-sxm", microbatch_size=1)
    trace = str(ROOT / "examples" / "spot.csv")
    report = rtk.replay(profile, trace, pp=7, dp=4, microbatches=16, cluster="28x1")
    return {one.policy: one.goodput for one in report.policies}


def gpu_faults() -> str:
    """What is left where a GPU's fault costs its node, its worker, half of its worker, or a share of its pipeline."""
    profile = rtk.profile_analytic("gpt3-13b", gpu="a100-sxm", microbatch_size=1, tp=(1, 2, 4), dtype="bf16")
    rates = {"gpus_per_node": 8, "gpu_mtbf": "100d", "gpu_repair": "5d", "mtbf": "400d", "repair": "5d"}
    with TemporaryDirectory() as folder:
        trace, picture = Path(folder) / "gpus.jsonl", Path(folder) / "picture.svg"
        trace.write_bytes(b"".join(map(print_event, rtk.trace_generate(nodes=16, days=54, seed=3, **rates))))
        policies = ("slipstream", "worker-lost", "degree-lowered", "ntp")
        whole = partial(rtk.replay, cluster="16x8", policies=policies, tensor_parallel=4)
        rtk.draw(whole(profile, str(trace), pp=4, dp=8, microbatches=16), str(picture))
        return picture.read_text()


def chart(shares: Mapping[str, float]) -> str:
    """Horizontal bars, the best on top; light and dark."""
    rows = sorted(((shares[name], words) for name, words in POLICIES.items()), reverse=True)
    height = TOP + ROW * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif">',
        "<style>text{fill:#1f2430}.dim{fill:#667085}.bar{fill:#b8c0cc}.own{fill:#2b6cb0}"
        "@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.dim{fill:#9aa4b2}.bar{fill:#4b5563}.own{fill:#63a4e8}}"
        "</style>",
        '<text x="16" y="28" font-size="18" font-weight="600">How much training is left when spot instances come and go'
        "</text>",
        '<text x="16" y="50" class="dim" font-size="13">GPT-3 6.7B on 28 A100s through 11 hours of AWS p3 spot '
        "instances, simulated. 100 %: nothing ever fails.</text>",
    ]
    for number, (share, words) in enumerate(rows):
        middle, own = TOP + ROW * number + ROW / 2, words.startswith("rtk")
        length = (WIDTH - LEFT - 80) * share
        weight = ' font-weight="600"' if own else ""
        parts += [
            f'<text x="{LEFT - 10}" y="{middle + 5:g}" font-size="14" text-anchor="end"{weight}>{escape(words)}</text>',
            f'<rect class="{"own" if own else "bar"}" x="{LEFT}" y="{middle - 10:g}" width="{length:.1f}" height="20" '
            'rx="2"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{middle + 5:g}" font-size="14"{weight}>{share * 100:.0f} %</text>',
        ]
    return "\n".join((*parts, "</svg>\n"))


if __name__ == "__main__":
    IMAGES.joinpath("placements.svg").write_text(placements())
    IMAGES.joinpath("placement-loss.svg").write_text(placement_loss())
    IMAGES.joinpath("goodput.svg").write_text(chart(goodputs()))
    IMAGES.joinpath("gpu-faults.svg").write_text(gpu_faults())
    IMAGES.joinpath("survives.svg").write_text(survives())
    IMAGES.joinpath("rank-survives.svg").write_text(rank_survives())
