"""`rtk simulate --inject`: a failure trace on the virtual clock, as a user asks for it."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import read_document, write_document
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline

from .shell import rtk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan of 2 x 2 workers and traces for it."""
    place = tmp_path_factory.mktemp("story")
    layers = tuple(Layer((LayerCost(0.01, 0.01, 0.01),)) for _ in range(2))
    write_document(str(place / "p.json"), Profile(layers))
    shape = ("--pp", "2", "--dp", "2", "--microbatches", "3")
    done = rtk("plan", "pipeline", "p.json", "--schedule", "1f1b", *shape, "-o", "plan.json", cwd=place)
    assert done.returncode == 0, done.stderr
    dies = {"iteration": 1, "kind": "fail", "worker": "1/0"}
    traces = {
        "kill": [dies, {"iteration": 3, "kind": "join", "worker": "1/0"}],
        "end": [dies, {"iteration": 2, "kind": "fail", "worker": "0/0"}],
        "slow": [
            {"iteration": 1, "kind": "slow_link", "link": "0/0-0/1", "delay_s": 0.05},
            {"iteration": 8, "kind": "recover", "link": "0/0-0/1"},
            {"iteration": 18, "kind": "fail", "link": "1/0-1/1"},
        ],
        "bad": [{"iteration": 1, "kind": "fail", "worker": "5/0"}],
    }
    for name, events in traces.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return place


def test_without_a_trace_iterations_are_repeated(folder: Path) -> None:
    """--iterations alone repeats the timeline; the report stays that of one iteration."""
    once = rtk("simulate", "plan.json", "--json", cwd=folder)
    many = rtk("simulate", "plan.json", "--json", "--iterations", "3", "--timeline", "many.json", cwd=folder)
    assert once.stdout == many.stdout
    assert {span.iteration for span in read_document(str(folder / "many.json"), Timeline).spans} == {0, 1, 2}


def test_a_failure_and_a_join(folder: Path) -> None:
    """With --json one Report, whose iteration time holds what was lost; for people a line an event."""
    story = ("simulate", "plan.json", "--inject", "kill.jsonl", "--iterations", "5")
    done = rtk(*story, "--json", "--timeline", "s.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    healthy = json.loads(rtk("simulate", "plan.json", "--json", cwd=folder).stdout)
    assert report["format"] == "rtk.report"
    assert report["iteration_time_s"] > healthy["iteration_time_s"] >= report["lower_bound_s"]
    timeline = read_document(str(folder / "s.json"), Timeline)
    assert [event.kind for event in timeline.events] == ["failure", "epoch", "resume", "join", "epoch"]
    told = rtk(*story, cwd=folder).stdout
    assert "failure 1/0" in told
    assert "iteration 1 done" in told
    slower = json.loads(rtk(*story, "--regroup", "1", "--json", cwd=folder).stdout)
    assert slower["iteration_time_s"] == pytest.approx(report["iteration_time_s"] + 2 * 0.95 / 5)


def test_the_iteration_goes_on_where_it_was_unless_nothing_is_kept(folder: Path) -> None:
    """By default nothing is done twice; with --log-memory 0 the iteration is done again, and the job ends later."""
    story = ("simulate", "plan.json", "--inject", "kill.jsonl", "--iterations", "5")
    told = rtk(*story, cwd=folder).stdout
    assert "iteration 1 goes on" in told
    anew = rtk(*story, "--log-memory", "0", cwd=folder).stdout
    assert "goes on" not in anew
    kept, lost = (json.loads(rtk(*story, *more, "--json", cwd=folder).stdout) for more in ((), ("--log-memory", "0")))
    assert kept["iteration_time_s"] < lost["iteration_time_s"]


def test_a_limited_log_needs_the_sizes_of_messages(folder: Path) -> None:
    """--profile says them; without it the error says so."""
    story = ("simulate", "plan.json", "--inject", "kill.jsonl", "--iterations", "5", "--log-memory", "1MB")
    refused = rtk(*story, cwd=folder)
    assert refused.returncode == 2
    assert "at: --log-memory" in refused.stderr
    assert rtk(*story, "--profile", "p.json", cwd=folder).returncode == 0


def test_a_stage_that_is_lost_ends_with_5(folder: Path) -> None:
    """The job cannot go on: exit code 5, the reason on standard error, and the timeline is written all the same."""
    done = rtk(
        "simulate", "plan.json", "--inject", "end.jsonl", "--iterations", "5", "--timeline", "e.json", cwd=folder
    )
    assert done.returncode == 5
    assert "nobody is left who holds layer 0" in done.stderr
    assert "after 2 of 5 iterations" in done.stderr
    assert read_document(str(folder / "e.json"), Timeline).events[-1].kind == "end"


def test_a_trace_of_another_plan_is_refused(folder: Path) -> None:
    """The error names the file and the event."""
    done = rtk("simulate", "plan.json", "--inject", "bad.jsonl", cwd=folder)
    assert done.returncode == 2
    assert "bad.jsonl, /events/0/worker" in done.stderr


def test_links_that_slow_down_and_break(folder: Path) -> None:
    """The monitor of a real run looks on: a slow link is found and relieved, a broken one gets a detour."""
    story = ("simulate", "plan.json", "--inject", "slow.jsonl", "--iterations", "20")
    done = rtk(*story, "--timeline", "l.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "link 0/0-0/1 is slow: 50 ms" in done.stdout
    kinds = [event.kind for event in read_document(str(folder / "l.json"), Timeline).events]
    for kind in ("slow_link", "epoch", "recover", "relief", "epoch", "fail", "broken_link", "epoch"):
        kinds = kinds[kinds.index(kind) + 1 :]


def test_direct_sends(folder: Path) -> None:
    """--transport direct lets every message hold up its sender; by default it does not."""
    shape = ("--pp", "2", "--microbatches", "6", "-o", "zb.json")
    assert rtk("plan", "pipeline", "p.json", "--schedule", "zero-bubble", *shape, cwd=folder).returncode == 0
    told = ("simulate", "zb.json", "--link-delay", "0=0.05", "--json")
    direct, usual = (rtk(*told, *more, cwd=folder) for more in (("--transport", "direct"), ()))
    assert json.loads(direct.stdout)["iteration_time_s"] > json.loads(usual.stdout)["iteration_time_s"]


def test_the_first_line_says_something(folder: Path) -> None:
    """`rtk simulate` begins with the iteration's time, and not with an empty line of headings."""
    first, *_ = rtk("simulate", "plan.json", cwd=folder).stdout.splitlines()
    assert first.split()[0] == "iteration"
