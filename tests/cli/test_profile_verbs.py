"""`rtk profile refine` and `rtk profile compare`, as a user runs them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.documents import digest, read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile, Spread
from rtk.schemas.timeline import Span, Timeline

from .shell import rtk

TIMES_S = [0.01, 0.02, 0.03, 0.04]


def profile_of(times_s: Sequence[float], spread: float | None = None) -> Profile:
    """A profile of layers that take these times, each operation alike."""
    layers = []
    for number, time_s in enumerate(times_s):
        widths = None if spread is None else Spread(*[spread * time_s] * 4)
        cost = LayerCost(time_s, time_s, time_s, time_s, spread=widths)
        layers.append(Layer((cost,), name=f"{number} Block", activation_bytes=1e6))
    return Profile(tuple(layers), model={"name": "m"}, origin="analytic")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile, a plan of two stages, and the timeline of a run in which everything took twice as long."""
    profile = profile_of(TIMES_S)
    plan = plan_pipeline(profile, Shape(pp=2, dp=2, microbatches=4), "1f1b")
    write_document(str(tmp_path / "profile.json"), profile)
    write_document(str(tmp_path / "plan.json"), plan)
    write_document(str(tmp_path / "timeline.json"), run_of(plan))
    return tmp_path


def run_of(plan: Plan, **rest: Any) -> Timeline:
    """The timeline of a run of a plan that took twice as long as planned."""
    spans = tuple(replace(s, start_s=2 * s.start_s, end_s=2 * s.end_s) for s in simulate(plan).timeline.spans)
    return Timeline("measured", spans, **{"plan": digest(plan), **rest})


def trace_of(folder: Path, rank: int, stage: int, time_us: float) -> Path:
    """A trace of a rank whose F, I and W of two micro-batches take this long."""
    names = [f"PP:{stage}{kind}{j}" for kind in "FIW" for j in (0, 1)]
    common = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": time_us}
    events = [{**common, "name": name, "ts": 1e6 * n} for n, name in enumerate(names)]
    path = folder / f"rank{rank}_trace.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    return path


def forward_s(profile: Profile) -> list[float]:
    """The layers' forward times."""
    return [layer.costs[0].forward_s for layer in profile.layers]


@pytest.mark.wheel("profile refine")
def test_a_timeline_and_its_plan_refine_a_profile(folder: Path) -> None:
    """All times double; people see each stage's, and that a single iteration may be no good measure."""
    given = ("--timeline", "timeline.json", "--plan", "plan.json")
    done = rtk("profile", "refine", "profile.json", *given, "-o", "refined.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    refined = read_document(str(folder / "refined.json"), Profile)
    assert forward_s(refined) == pytest.approx([2 * time_s for time_s in TIMES_S])
    assert refined.origin == "measured"
    assert "stage 1" in done.stderr
    assert "60→120" in done.stderr
    assert "2.000" in done.stderr
    assert "timeline.json has one iteration only" in done.stderr
    assert "all times are measured now" in done.stderr
    again = rtk("profile", "refine", "profile.json", *given, "--json", "--quiet", cwd=folder)
    assert again.stderr == ""
    assert again.stdout == (folder / "refined.json").read_text()


def test_without_a_plan_stages_are_cut_as_rtk_plan_cuts_them(folder: Path) -> None:
    """Two stages of this profile are layers 0 to 2 and 3, with and without the plan."""
    without = rtk("profile", "refine", "profile.json", "--timeline", "timeline.json", cwd=folder)
    by_plan = ("--timeline", "timeline.json", "--plan", "plan.json")
    assert without.stdout == rtk("profile", "refine", "profile.json", *by_plan, cwd=folder).stdout


def test_several_timelines_take_their_own_plans(folder: Path) -> None:
    """Found by what the timelines say they are of, whatever the order."""
    other = plan_pipeline(profile_of(TIMES_S), Shape(pp=3, dp=1, microbatches=3), "gpipe")
    write_document(str(folder / "other.json"), other)
    write_document(str(folder / "second.json.gz"), run_of(other))
    given = (
        "--timeline",
        "timeline.json",
        "--timeline",
        "second.json.gz",
        "--plan",
        "other.json",
        "--plan",
        "plan.json",
    )
    done = rtk("profile", "refine", "profile.json", *given, "-o", "refined.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert forward_s(read_document(str(folder / "refined.json"), Profile)) == pytest.approx([2 * x for x in TIMES_S])
    assert "run 1, stage 2" in done.stderr


def test_traces_of_a_job_refine_a_profile(folder: Path) -> None:
    """A folder of them, or one by one; a slow rank is named, and a step that no trace tells stays as it was."""
    traces = folder / "traces"
    traces.mkdir()
    for rank, (stage, time_us) in enumerate([(0, 30_000.0), (1, 80_000.0), (0, 90_000.0), (1, 80_000.0)]):
        trace_of(traces, rank, stage, time_us)
    done = rtk("profile", "refine", "profile.json", "--timeline", "traces", "-o", "refined.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    refined = read_document(str(folder / "refined.json"), Profile)
    assert forward_s(refined) == pytest.approx([0.005, 0.01, 0.015, 0.08])
    assert refined.origin == "analytic"
    assert "worker 1/0 (rank 2) takes 3.00 times as long as its peers" in done.stderr
    assert "times are the CPU's" in done.stderr
    assert "some times are not corrected: the profile stays analytic" in done.stderr
    one_by_one = [word for path in sorted(traces.iterdir()) for word in ("--timeline", str(path))]
    again = rtk("profile", "refine", "profile.json", *one_by_one, "--plan", "plan.json", cwd=folder)
    assert again.stdout == (folder / "refined.json").read_text()


def refused(folder: Path, *arguments: str) -> str:
    """The error of `rtk profile refine profile.json …`, which must be one of its input."""
    done = rtk("profile", "refine", "profile.json", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") <= 3
    return done.stderr


def test_what_cannot_refine_is_refused(folder: Path) -> None:
    """With the file, the place in it and what to do, and exit code 2."""
    plan = read_document(str(folder / "plan.json"), Plan)
    simulated, paced = simulate(plan).timeline, run_of(plan, paced=True)
    deep = Timeline("measured", tuple(Span(f"0/{stage}", "F0", 0.0, 1.0) for stage in range(5)))
    gap = Timeline("measured", (Span("0/1", "F0", 0.0, 1.0),))
    for name, timeline in {"simulated": simulated, "paced": paced, "deep": deep, "gap": gap}.items():
        write_document(str(folder / f"{name}.json"), timeline)
    assert "at: simulated.json, /source" in refused(folder, "--timeline", "simulated.json")
    assert "at: paced.json, /paced" in refused(folder, "--timeline", "paced.json", "--plan", "plan.json")
    assert "5 stages, the profile 4 layers" in refused(folder, "--timeline", "deep.json")
    assert "has a stage 4, the plan 2 stages" in refused(folder, "--timeline", "deep.json", "--plan", "plan.json")
    assert "stage 0 computes nothing" in refused(folder, "--timeline", "gap.json")
    other = plan_pipeline(profile_of(TIMES_S), Shape(pp=3, dp=1, microbatches=3), "gpipe")
    write_document(str(folder / "other.json"), other)
    assert "of another plan" in refused(folder, "--timeline", "timeline.json", "--plan", "other.json")
    two = ("--plan", "other.json", "--plan", "plan.json")
    assert "0 of the plans have the timeline's 5 stages" in refused(folder, "--timeline", "deep.json", *two)
    assert "a timeline is needed here" in refused(folder, "--timeline", "profile.json")
    (folder / "empty").mkdir()
    assert "holds no traces" in refused(folder, "--timeline", "empty")
    (folder / "trace.json").write_text('{"traceEvents": []}')
    assert "no operation of a pipeline is annotated" in refused(folder, "--timeline", "trace.json")
    assert "cannot read the file" in refused(folder, "--timeline", "nowhere.json")
    assert "only once" in refused(folder, "--timeline", "-", "--plan", "-")


def compared(folder: Path, after: Profile, *options: str, before: Profile | None = None) -> tuple[int, str]:
    """The exit code and the output of `rtk profile compare`."""
    write_document(str(folder / "a.json"), before or profile_of(TIMES_S, 0.01))
    write_document(str(folder / "b.json"), after)
    done = rtk("profile", "compare", "a.json", "b.json", *options, cwd=folder)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_profiles_alike_differ_in_nothing(tmp_path: Path) -> None:
    """A line says so and how large the noise is; exit code 0 either way."""
    after = profile_of([1.01 * time_s for time_s in TIMES_S], 0.01)
    code, words = compared(tmp_path, after, "--exit-code")
    assert (code, words) == (0, "no difference: times agree within their noise (overall 1.010, noise 3.5 %)\n")
    assert json.loads(compared(tmp_path, after, "--json")[1])["equal"]


@pytest.mark.parametrize("ratio", [1.0, 1.5, 1.96, 0.6])
def test_a_factor_of_two_within_the_noise_is_no_agreement(tmp_path: Path, ratio: float) -> None:
    """With a noise above 25 % times are too noisy to tell, which is neither agreement nor, for CI, a difference."""
    before, after = profile_of(TIMES_S, 0.3), profile_of([ratio * time_s for time_s in TIMES_S], 0.3)
    code, words = compared(tmp_path, after, "--exit-code", before=before)
    assert (code, words) == (0, f"the times are too noisy to tell: overall {ratio:.2f} x, noise 106.1 %\n")
    tree = json.loads(compared(tmp_path, after, "--json", before=before)[1])
    assert tree["equal"]
    assert tree["overall"]["too_noisy"]


def test_a_difference_beyond_a_large_noise_is_one(tmp_path: Path) -> None:
    """Sizes, and factors that exceed even a large noise, are told as ever; the other layers are too noisy to tell."""
    before = profile_of(TIMES_S, 0.3)
    code, words = compared(tmp_path, profile_of([3 * time_s for time_s in TIMES_S], 0.3), "--exit-code", before=before)
    assert (code, words) == (1, "times are 3.000 times as long in all layers alike (noise 106.1 %)\n")
    times_s = [time_s * (9 if n == 0 else 1) for n, time_s in enumerate(TIMES_S)]
    code, words = compared(tmp_path, profile_of(times_s, 0.3), "--exit-code", before=before)
    assert code == 1
    assert words.startswith("the times of 1 of 4 layers differ, the others are too noisy to tell (overall 1.00 x,")


def test_the_machine_is_told_from_the_model(tmp_path: Path) -> None:
    """First whether all became slower, then which layers did beside that; 1 is for --exit-code only."""
    slower = profile_of([1.5 * time_s for time_s in TIMES_S], 0.01)
    code, words = compared(tmp_path, slower)
    assert (code, words) == (0, "times are 1.500 times as long in all layers alike (noise 3.5 %)\n")
    times_s = [1.5 * time_s * (1.2 if n == 1 else 1) for n, time_s in enumerate(TIMES_S)]
    code, words = compared(tmp_path, profile_of(times_s, 0.01), "--exit-code")
    assert code == 1
    verdict, head, row = words.rstrip().split("\n")
    assert verdict == "the times of 1 of 4 layers differ, the others are 1.500 times as long (noise 3.5 %)"
    assert head.split() == ["layer", "F", "I", "W", "step", "F+I+W", "before", "after"]
    assert row.split() == ["1", "Block", *["1.200"] * 5, "60", "ms", "108", "ms"]


def test_sizes_and_settings_are_told(tmp_path: Path) -> None:
    """By the part they belong to; layers that changed alike in one line."""
    before = profile_of(TIMES_S, 0.01)
    layers = [replace(x, activation_bytes=2e6 if n != 2 else 1e6) for n, x in enumerate(before.layers)]
    after = replace(
        before, layers=tuple(layers), microbatch_size=8, model={"name": "n", "refined": {"origin": "given"}}
    )
    code, words = compared(tmp_path, after, "--exit-code")
    assert code == 1
    assert words.split("\n") == [
        "4 sizes or settings differ; times agree within their noise (overall 1.000, noise 3.5 %)",
        "model",
        "  name: m → n",
        "  refined: none → 1 entry",
        "settings",
        "  microbatch size: none → 8",
        "layers",
        "  activations of a micro-batch of layers 0 to 1, 3: 976.6 KiB → 1.907 MiB (+976.6 KiB, +100 %)",
        "",
    ]
    code, words = compared(tmp_path, profile_of(TIMES_S[:3], 0.01))
    assert "  layer 3 (3 Block) is gone" in words


@pytest.mark.wheel("profile compare")
def test_documents_for_scripts_and_pull_requests(tmp_path: Path) -> None:
    """JSON has every time with its ratio and noise; Markdown a row for each change."""
    times_s = [time_s * (1.2 if n == 1 else 1) for n, time_s in enumerate(TIMES_S)]
    tree = json.loads(compared(tmp_path, profile_of(times_s, 0.01), "--json")[1])
    assert not tree["equal"]
    assert tree["overall"]["ratio"] == pytest.approx(1.0)
    assert {one["operation"] for one in tree["times"] if one["differs"]} == {"F", "I", "W", "step", "F+I+W"}
    assert "/layers/1/costs/0/forward_s" in {change["path"] for change in tree["changes"]}
    _, text = compared(tmp_path, profile_of(times_s, 0.01), "--md")
    assert "| part | change |" in text
    assert "| times | F of layer 1 (1 Block): 20 ms → 24 ms (+4 ms, +20 %); 1.200 times the overall ratio" in text
    write_document(str(tmp_path / "a.json"), profile_of(TIMES_S))
    for wrong in (("-", "-"), ("a.json", "a.json", "--md", "--json")):
        assert rtk("profile", "compare", *wrong, cwd=tmp_path).returncode == 2
