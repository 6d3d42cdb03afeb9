"""Several virtual stages a worker: `python benchmarks/placement.py --only SECTION [-o FILE]`.

* published: ZB-V, V-Half, V-Min, DualPipeV, interleaved 1F1B and interleaved zero bubble, each at its own memory: the
  makespan and the period that the search finds there, beside the published order's and the bound; S up to 8 and M up to
  4 S, with `--full` up to 16 and 8 S.
* unlike: the same where costs are not equal: unlike F, I and W, a heavy head, slow links, and less memory than any
  published order needs.
* slow_links: `--placement best` for one slow link, with 1F1B's memory and without a limit: what plain, V and loop take.
* failures: four workers by three pipelines by six micro-batches, one dead in each column: plain, V and loop.
* overlap: forwards and backwards side by side, where a pair takes 0.8 of both: the best without pairs, DualPipeV's
  order with pairs, and what is found.
* size: how long planning 64 workers with two chunks each takes, 256 micro-batches.
* plain: how long plain plans take, in turns with those of another checkout (`--baseline PYTHON`, of its environment).

`--chart FILE` draws what slow_links has found, as docs/images/placement-links.svg.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import rtk
from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.planners.choosing import OPTION
from rtk.planners.placement.bounds import lower_bound
from rtk.planners.placement.pairs import neighbours_joined
from rtk.planners.placement.problem import PlacedProblem, placed_problem
from rtk.planners.placement.published import PUBLISHED, published_orders
from rtk.planners.placement.scheduler import SeatScheduler, fits
from rtk.planners.placement.search import solve
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import PlacementName, Shape, plan_without_orders
from rtk.schemas.conditions import LinkPlace
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Planner
from rtk.schemas.profile import Layer, LayerCost, Profile

MADE_BY = Planner("benchmark", "1", {})
DELAYS_MS = (0, 10, 20, 30, 40, 60)
LEAST_MS = 350  # where the chart begins
COLOURS = {"plain": "#667085", "v": "#2b6cb0", "loop": "#d9822b"}


def chunks_profile(count: int, costs: tuple[float, float, float] = (1.0, 1.0, 1.0), head: float = 1.0) -> Profile:
    """A layer a chunk, each with an activation of 1 byte that is held until W; the last takes `head` times as long."""
    layers = [Layer((LayerCost(*costs),), activation_bytes=1.0, weight_stash_bytes=1.0)] * count
    last = LayerCost(head * costs[0], head * costs[1], head * costs[2])
    return Profile((*layers[:-1], replace(layers[-1], costs=(last,))))


def problem_of(profile: Profile, shape: Shape, split: bool) -> PlacedProblem:
    """The problem of one pipeline of a shape."""
    return placed_problem(plan_without_orders(profile, shape, MADE_BY), split=split)


def compared(problem: PlacedProblem, name: str | None = None) -> Iterator[dict[str, Any]]:
    """Makespan and period, as found, bounded, and by the best published order that fits, or the one of that name."""
    for objective, staggered in (("makespan", False), ("period", True)):
        asked = problem.with_objective(staggered)
        bound_s = lower_bound(asked).value_s
        begun = time.perf_counter()
        found = solve(asked, Effort("heuristic"), bound_s)
        took_s = time.perf_counter() - begun
        scheduler = SeatScheduler(asked)
        timed = {
            form: scheduler.value_s(orders)
            for form, orders in published_orders(asked)
            if fits(asked, orders) and name in (None, form)
        }
        best = min(timed, key=lambda form: timed[form], default=None)
        yield {
            "objective": objective,
            "found": found.value_s,
            "found_by": found.found_by,
            "bound": bound_s,
            "optimal": found.optimal,
            "published": None if best is None else timed[best],
            "published_by": best,
            "planned_s": took_s,
        }


def published(full: bool) -> dict[str, Any]:
    """Each published order at its own memory."""
    rows: list[dict[str, Any]] = []
    for columns in (2, 4, 8, 16) if full else (4, 8):
        for factor in (1, 2, 4, 8) if full else (1, 2, 4):
            microbatches = factor * columns
            for form in PUBLISHED:
                if microbatches < form.fewest(columns):
                    continue
                for chunks in (2, 3, 4) if form.placement == "loop" and full else (2,):
                    held = form.activations(columns, chunks, microbatches)
                    shape = Shape(columns, 1, microbatches, [float(held * chunks)], None, 1, form.placement, chunks)
                    problem = problem_of(chunks_profile(columns * chunks), shape, form.split)
                    case = {"form": form.name, "S": columns, "C": chunks, "M": microbatches, "limit": float(held)}
                    rows += [case | row for row in compared(problem, form.name)]
    return {"rows": rows, "summary": summary(rows)}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many are equal to the published order, better or worse, and proven."""
    beside = [row for row in rows if row["published"] is not None]
    return {
        "cases": len(rows),
        "better": sum(row["found"] < row["published"] * (1 - 1e-9) for row in beside),
        "equal": sum(abs(row["found"] - row["published"]) <= 1e-9 * row["published"] for row in beside),
        "worse": sum(row["found"] > row["published"] * (1 + 1e-9) for row in beside),
        "optimal": sum(row["optimal"] for row in rows),
        "largest_gap": max(row["found"] / row["bound"] - 1 for row in rows),
        "slowest_s": max(row["planned_s"] for row in rows),
    }


# What is asked for, in chunks: S, M, activations a worker, F I W, the head, and delays of links.
UNLIKE: Sequence[tuple[PlacementName, int, int, int, float, tuple[float, float, float], float, dict[int, float]]] = (
    ("v", 2, 4, 8, 4, (1.0, 1.2, 0.8), 1.0, {}),
    ("v", 2, 4, 8, 2.5, (1.0, 1.2, 0.8), 1.0, {}),
    ("v", 2, 8, 16, 5, (1.0, 1.2, 0.8), 1.0, {}),
    ("v", 2, 4, 8, 4, (1.0, 1.0, 1.0), 1.5, {}),
    ("v", 2, 8, 16, 8, (1.0, 1.0, 1.0), 1.5, {}),
    ("v", 2, 8, 16, 5, (1.0, 1.0, 1.0), 1.5, {}),
    ("v", 2, 8, 16, 8, (1.0, 1.0, 1.0), 1.0, dict.fromkeys(range(7), 0.5)),
    ("v", 2, 4, 12, 5, (1.0, 1.0, 1.0), 1.0, {0: 2.0}),
    ("v", 2, 4, 12, 5, (1.0, 1.0, 1.0), 1.0, {1: 4.0}),
    ("v", 2, 4, 12, 5, (1.0, 1.0, 1.0), 1.0, {2: 6.0}),
    ("loop", 2, 4, 12, 5, (1.0, 1.0, 1.0), 1.0, {0: 2.0}),
    ("loop", 2, 4, 12, 5, (1.0, 1.0, 1.0), 1.0, {1: 4.0}),
    ("loop", 2, 4, 12, 5, (1.0, 1.0, 1.0), 1.0, {2: 6.0}),
    ("v", 2, 8, 16, 6, (1.0, 1.0, 1.0), 1.0, {}),
    ("v", 2, 8, 16, 3.5, (1.0, 1.0, 1.0), 1.0, {}),
    ("v", 2, 8, 32, 3.5, (1.0, 1.0, 1.0), 1.0, {}),
    ("loop", 2, 8, 16, 6, (1.0, 1.0, 1.0), 1.0, {}),
    ("loop", 2, 8, 32, 5, (1.0, 1.0, 1.0), 1.0, {}),
    ("loop", 4, 4, 8, 2.5, (1.0, 1.0, 1.0), 1.0, {}),
    ("loop", 2, 8, 19, 8, (1.0, 1.0, 1.0), 1.0, {}),
    ("v", 3, 4, 8, 3, (1.0, 1.0, 1.0), 1.0, {}),
    ("v", 4, 4, 8, 3, (1.0, 1.0, 1.0), 1.0, {}),
)


def unlike(full: bool) -> dict[str, Any]:
    """Costs that published orders do not know, and memory that they do not fit in."""
    rows: list[dict[str, Any]] = []
    for name, chunks, columns, microbatches, held, costs, head, delays in UNLIKE:
        links: dict[LinkPlace, float] = {(None, link): delay for link, delay in delays.items()}
        shape = Shape(columns, 1, microbatches, [held * chunks], links, 1, name, chunks)
        problem = problem_of(chunks_profile(columns * chunks, costs, head), shape, split=True)
        case = {"placement": name, "C": chunks, "S": columns, "M": microbatches, "limit": held}
        told = {"costs": costs, "head": head, "delays": {f"{link}": delay for link, delay in delays.items()}}
        rows += [case | told | row for row in compared(problem)]
    return {"rows": rows, "summary": summary(rows)}


def slow_links(full: bool) -> dict[str, Any]:
    """S = 4, N = 12, a stage of 10 ms an operation: what each placement takes with one slow link, the worst one."""
    profile = Profile((Layer((LayerCost(0.005, 0.005, 0.005),), activation_bytes=0.5, weight_stash_bytes=0.5),) * 8)
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, limit in (("no limit", None), ("limit 4", 4.0)):
        rows = []
        for delay_ms in DELAYS_MS:
            plans = [
                rtk.plan_adaptra(
                    profile, pp=4, microbatches=12, memory_limit=limit, link_delay={link: delay_ms / 1000},
                    placement="best",
                )
                for link in ((1,) if limit is None else range(3))
            ]  # fmt: skip
            worst = [max((table[at] for table in map(_table, plans)), key=_time_s) for at in range(3)]
            best_ms = max(1000 * plan.prediction.iteration_time_s for plan in plans if plan.prediction)
            rows.append(
                {
                    "delay_ms": delay_ms,
                    **{
                        row["placement"]: {
                            "ms": 1000 * row["iteration_time_s"],
                            "bound_ms": 1000 * row["lower_bound_s"],
                            "peak": row["peak_memory_bytes"],
                        }
                        for row in worst
                    },
                    "best_ms": best_ms,
                }
            )
        tables[name] = rows
    return tables


def _table(plan: rtk.Plan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plan.planner.options[OPTION]
    return found


def _time_s(row: Mapping[str, Any]) -> float:
    time_s: float = row["iteration_time_s"]
    return time_s


OBJECTIVES: tuple[tuple[Literal["decoupled", "staggered"], str], ...] = (
    ("decoupled", "makespan"), ("staggered", "period"),
)  # fmt: skip


def failures(full: bool) -> dict[str, Any]:
    """4 x 3 x 6, worker 1/c dead, a stage of F = I = W = 1: makespan and period of plain, V and loop."""
    profile = Profile((Layer((LayerCost(0.5, 0.5, 0.5),), activation_bytes=0.5, weight_stash_bytes=0.5),) * 8)
    rows = []
    for column in range(4):
        for name in ("plain", "v", "loop"):
            for limit in (None, 4.0):
                row: dict[str, Any] = {"dead": column, "placement": name, "limit": limit}
                for technique, objective in OBJECTIVES:
                    try:
                        made = rtk.plan_slipstream(
                            profile, pp=4, dp=3, microbatches=6, failed=[(1, column)], technique=technique,
                            memory_limit=limit, placement=name,
                        )  # fmt: skip
                    except InfeasibleError as error:
                        row[objective] = error.what
                        continue
                    assert made.prediction is not None
                    row[objective] = made.prediction.iteration_time_s
                    row[f"{objective}_bound"] = made.prediction.lower_bound_s
                rows.append(row)
    return {"rows": rows}


def overlap(full: bool) -> dict[str, Any]:
    """Vs of equal chunks, each with and without pairs, beside DualPipeV's order with its own pairs."""
    rows = []
    for columns, microbatches in ((4, 8), (4, 16), (8, 16), (8, 32), *(((16, 64),) if full else ())):
        profile = replace(chunks_profile(2 * columns), overlap=0.8)
        asked: dict[str, Any] = {"pp": columns, "microbatches": microbatches, "placement": "v"}
        begun = time.perf_counter()
        found = rtk.plan_pipeline(profile, **asked, schedule="zero-bubble", overlap=True)
        took_s = time.perf_counter() - begun
        alone = rtk.plan_pipeline(profile, **asked, schedule="zero-bubble")
        shape = Shape(columns, 1, microbatches, placement="v", chunks=2, overlap=True)
        split = problem_of(profile, shape, True)
        dual = neighbours_joined(split, dict(published_orders(split))["DualPipeV"])
        assert found.prediction is not None and alone.prediction is not None
        rows.append(
            {
                "S": columns,
                "M": microbatches,
                "without_pairs": alone.prediction.makespan_s,
                "without_pairs_proof": alone.prediction.proof,
                "DualPipeV": SeatScheduler(dual[0]).value_s(dual[1]),
                "found": found.prediction.makespan_s,
                "bound": found.prediction.lower_bound_s,
                "pairs": sum(len(worker.pairs()) for worker in found.workers),
                "held": max(found.prediction.peak_memory_bytes) / 2,
                "planned_s": took_s,
            }
        )
    return {"rows": rows}


def size(full: bool) -> dict[str, Any]:
    """64 workers, two chunks each, 256 micro-batches."""
    rows = []
    for name in ("v", "loop"):
        for limit in (None, 64.0):
            begun = time.perf_counter()
            made = rtk.plan_pipeline(
                chunks_profile(128), pp=64, microbatches=256, schedule="zero-bubble", placement=name,
                memory_limit=None if limit is None else 2 * limit,
            )  # fmt: skip
            took_s = time.perf_counter() - begun
            assert made.prediction is not None
            rows.append({
                "placement": name, "limit": limit, "planned_s": took_s,
                "makespan": made.prediction.makespan_s, "bound": made.prediction.lower_bound_s,
            })  # fmt: skip
    return {"rows": rows}


PLAIN = """
import time
import rtk
from rtk.schemas.profile import Layer, LayerCost, Profile
profile = Profile((Layer((LayerCost(1.0, 1.2, 0.8),), activation_bytes=1.0),) * 16)
rtk.plan_adaptra(profile, pp=16, microbatches=64, memory_limit=16.0)
begun = time.perf_counter()
for limit in (None, 12.0, 16.0):
    rtk.plan_pipeline(profile, pp=16, dp=8, microbatches=64, schedule="zero-bubble", memory_limit=limit)
    rtk.plan_adaptra(profile, pp=16, microbatches=64, memory_limit=limit, link_delay={3: 2.0})
print(time.perf_counter() - begun)
"""


def plain(full: bool, baseline: str) -> dict[str, Any]:
    """Plain plans by this checkout and by another one, in turns."""

    def measured(python: str) -> Callable[[], float]:
        return lambda: float(subprocess.run([python, "-c", PLAIN], capture_output=True, check=True, text=True).stdout)

    sides = {"now": measured(sys.executable), "baseline": measured(baseline)}
    values = in_turns(sides, rounds=5 if full else 3, repeats=2)
    flat = {name: [one for turn in turns for one in turn] for name, turns in values.items()}
    return {**{name: spread(one) for name, one in flat.items()}, "ratio": min(flat["now"]) / min(flat["baseline"])}


def chart(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Iteration times over the delay, a panel a limit, a line a placement; light and dark."""
    width, height, left, top, plot_w, plot_h = 880, 390, 60, 96, 340, 230
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif">',
        "<style>text{fill:#1f2430}.dim{fill:#667085}.axis{stroke:#b8c0cc}"
        "@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.dim{fill:#9aa4b2}.axis{stroke:#4b5563}}</style>",
        '<text x="16" y="28" font-size="18" font-weight="600">Which placement wins on a slow link</text>',
        '<text x="16" y="50" class="dim" font-size="13">4 workers, 12 micro-batches, stages of 10 ms an operation; ms '
        "an iteration over the delay of one link. The ring marks the best.</text>",
    ]
    for panel, (title, rows) in enumerate(tables.items()):
        x0, most = left + panel * (plot_w + 80), max(row[name]["ms"] for row in rows for name in COLOURS)

        def place(delay_ms: float, value_ms: float, x0: int = x0, most: float = most) -> tuple[float, float]:
            share = (value_ms - LEAST_MS) / (most - LEAST_MS)
            return x0 + plot_w * delay_ms / DELAYS_MS[-1], top + plot_h * (1 - share)

        words = "without a limit" if title == "no limit" else "with the memory of 1F1B (4 activations)"
        parts.append(f'<text x="{x0}" y="{top - 10}" font-size="14" font-weight="600">{escape(words)}</text>')
        parts.append(f'<path class="axis" d="M{x0} {top}V{top + plot_h}H{x0 + plot_w}" fill="none"/>')
        for delay_ms in DELAYS_MS:
            x, _ = place(delay_ms, LEAST_MS)
            label = f'<text x="{x:.1f}" y="{top + plot_h + 18}" class="dim" font-size="12" text-anchor="middle">'
            parts.append(f"{label}{delay_ms}</text>")
        for value_ms in range(400, int(most) + 1, 25 if most < 500 else 100):
            _, y = place(0, value_ms)
            label = f'<text x="{x0 - 6}" y="{y + 4:.1f}" class="dim" font-size="12" text-anchor="end">'
            parts.append(f"{label}{value_ms}</text>")
        for number, (name, colour) in enumerate(COLOURS.items()):
            points = [place(row["delay_ms"], row[name]["ms"]) for row in rows]
            dash = ' stroke-dasharray="6 4"' if name == "loop" else ""
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"{dash}/>')
            if panel == 0:
                x, y = left + 110 * number, height - 30
                parts.append(f'<path d="M{x} {y}h28" stroke="{colour}" stroke-width="2.5"{dash}/>')
                parts.append(f'<text x="{x + 36}" y="{y + 5}" font-size="14">{"V" if name == "v" else name}</text>')
        for row in rows:
            x, y = place(row["delay_ms"], min(row[name]["ms"] for name in COLOURS))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="none" stroke="#3a7d44" stroke-width="2"/>')
    return "\n".join((*parts, "</svg>\n"))


def main() -> None:
    """Run one section, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = {
        "published": published,
        "unlike": unlike,
        "slow_links": slow_links,
        "failures": failures,
        "overlap": overlap,
        "size": size,
    }
    parser.add_argument("--only", choices=(*sections, "plain"))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--baseline", default=sys.executable)
    parser.add_argument("--chart")
    parser.add_argument("-o", "--output", default="-")
    given = parser.parse_args()
    if given.only == "plain":
        result = plain(given.full, given.baseline)
    else:
        result = (
            sections[given.only](given.full) if given.only else {name: run(False) for name, run in sections.items()}
        )
    write_result({"section": given.only, "result": result}, given.output)
    if given.chart:
        Path(given.chart).write_text(chart(result if given.only else result["slow_links"]))


if __name__ == "__main__":
    main()
