"""Commands beside a job's file: what they take from it, what goes before it, and who is blamed."""

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from rtk.cli.commands import SUMMARIES, load
from rtk.cli.job import FromJob, JobDefaults, JobSource, command_of, names_of
from rtk.cli.main import app
from rtk.cli.verbs import CONTEXT
from rtk.schemas.documents import write_document
from rtk.schemas.job_file import COMMANDS, KEYS, WITHOUT_KEY, JobKey, ValueKind, key_of
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

from .shell import rtk, rtk_forked
from .test_flow import FACTORY

# Texts that options take, as TOML; of other keys the examples in the table.
OTHERS = {
    "pp": ("1", "2", "4"), "dp": ("1", "2", "3"), "microbatches": ("2", "4", "8"), "lr": ("1e-3", "0.5", "1e-30", "2"),
    "schedule": ('"1f1b"', '"zero-bubble"'), "memory_limit": ("1e9", '"1GB"', '["1GB", 2e9, 3000000000, "4GiB"]'),
    "heartbeat_limit": ("3", "2.5", '"500ms"'), "policies": ('"oobleck"', '["slipstream", "oobleck"]'),
    "data": ('"a b.txt"', '["a.txt", "b,c.txt"]'), "paced": ("true", "false"), "checkpointing": ("true", "false"),
    "cost": ('"restart_s=1"', '["restart_s=1", "rejoin_s=2"]'), "host_memory": ("1e9", '"4GB"'),
    "log_memory": ("0", '"1GB"'),
}  # fmt: skip
# What commands need beside keys.
NEEDED = {"plan oobleck": ("t.json", "--nodes", "4", "--global-batch", "64"), "replay": ("--trace", "t.jsonl")}
Told = Mapping[JobKey, str]


def files(command: str) -> st.SearchStrategy[Told]:
    """Values, as TOML, for all keys of a command."""
    return st.fixed_dictionaries(
        {key: st.sampled_from(OTHERS.get(key.name, (key.example,))) for key in KEYS if command in key.options}
    )


def toml(told: Told) -> str:
    """A file that says all this."""
    return "".join(f"{key.place} = {value}\n" for key, value in told.items())


def line(told: Told, command: str) -> list[str]:
    """A command line that says all this, as a person would type it; arguments stand in the command's order."""
    options: list[str] = []
    arguments: list[str] = []
    for key, text in told.items():
        (value,) = tomllib.loads(f"x = {text}").values()
        option, items = key.options[command], value if isinstance(value, list) else [value]
        if key.kind is ValueKind.FLAG:
            options.append(option if value else option.replace("--", "--no-"))
        elif not option.startswith("-"):
            arguments.append(value)
        elif key.kind is ValueKind.TEXTS:
            options += [one for item in items for one in (option, item)]
        else:
            options += [option, ",".join(map(str, items))]
    return [*options, *arguments]


def parsed(command: str, arguments: Collection[str], file: Path | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """What a command is called with, and where each parameter comes from, without running it."""
    context = typer.Context(typer.main.get_command(app), info_name="rtk", **CONTEXT)  # type: ignore[arg-type]
    context.default_map = JobDefaults("", JobSource(None if file is None else str(file), file is None))  # type: ignore[assignment]
    *groups, last = command.split()
    for word in groups:
        context = typer.Context(load(word), parent=context, info_name=word)
    line = [*arguments, *NEEDED.get(command, ())]
    made = command_of(command).make_context(last, line, parent=context)
    return made.params, {name: made.get_parameter_source(name).name for name in made.params}


@pytest.fixture(scope="module", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory that has no file, whatever other tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.mark.parametrize("command", sorted(COMMANDS))
@given(data=st.data())
def test_the_file_and_the_line_together_say_what_the_line_says_alone(command: str, data: st.DataObject) -> None:
    """Whichever keys stand in the file and whichever on the line, a command is called with the same."""
    told = data.draw(files(command))
    inside = data.draw(st.sets(st.sampled_from(sorted(told, key=lambda key: key.place))))
    file = Path("rtk.toml")
    file.write_text(toml({key: told[key] for key in told if key in inside}))
    on_line = {key: told[key] for key in told if key not in inside}
    by_both, source = parsed(command, line(on_line, command), file)
    by_line, _ = parsed(command, line(told, command))
    file.unlink()
    assert by_both == by_line
    parameters = {key: name for name, key in keyed(command).items()}
    assert all((source[parameters[key]] == "DEFAULT_MAP") == (key in inside) for key in told)


@pytest.mark.parametrize("command", sorted(COMMANDS))
@given(data=st.data())
def test_the_line_goes_before_the_file(command: str, data: st.DataObject) -> None:
    """What both say is as the line says."""
    ours, theirs = data.draw(files(command)), data.draw(files(command))
    file = Path("rtk.toml")
    file.write_text(toml(theirs))
    found, _ = parsed(command, line(ours, command), file)
    file.unlink()
    assert found == parsed(command, line(ours, command))[0]


def keyed(command: str) -> dict[str, JobKey]:
    """The keys of a command by the names of its parameters."""
    names = [(one.name, key_of(command, option)) for one in command_of(command).params for option in names_of(one)]
    return {name: key for name, key in names if key is not None}


def test_every_key_stands_for_an_option_that_there_is() -> None:
    """The table of keys names options and arguments that the commands have, each for one key."""
    for key in KEYS:
        assert key.options
        for command, option in key.options.items():
            names = [name for one in command_of(command).params for name in names_of(one)]
            assert option in names, (key.place, command)
    for command in COMMANDS:
        assert len(keyed(command)) == sum(command in key.options for key in KEYS)


def test_every_option_of_a_job_has_a_key_or_has_none_on_purpose() -> None:
    """Options of the commands that plan, simulate and run a job stand in the file, or are named as what one call is."""
    open_ = {
        (command, name)
        for command in ("plan pipeline", "plan adaptra", "plan slipstream", "plan joint", "plan topology",
                        "run", "coordinate", "simulate")
        for one in command_of(command).params
        if one.param_type_name == "option" and not any(key_of(command, name) for name in names_of(one))
        for name in one.opts[:1]
        if name not in WITHOUT_KEY
    }  # fmt: skip
    # Options of which only the commands that they mean the job's in take it from the file.
    assert open_ == {
        ("plan adaptra", "--technique"),  # of other words
        ("plan slipstream", "--cost"),  # a word, where `rtk replay` has numbers
        ("plan slipstream", "--output"),  # a plan, or a folder of them
        *((command, "--profile") for command in ("run", "coordinate", "simulate")),  # a check of this call
        *((command, "--seed") for command in ("plan adaptra", "plan slipstream", "plan joint", "plan topology")),
        *((command, "--script") for command in ("run", "coordinate")),  # the model's name may be a script's
        ("simulate", "--seed"),
        ("simulate", "--iterations"),  # how long it is simulated
        ("simulate", "--timeline"),  # the simulated one, not the measured
        ("simulate", "--resumption"),  # where this call's goes
        ("simulate", "--log-memory"),  # a worker's option, tried out
    }


# The real commands in a folder with a profile.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of four layers, a cluster, a trace and a plan."""
    place = tmp_path_factory.mktemp("job")
    (place / "model.py").write_text(FACTORY)
    (place / "text.txt").write_text("To be, or not to be, that is the question. " * 20)
    (place / "trace.jsonl").write_text('{"time_s": 100, "kind": "fail", "node": "node1"}\n')
    cost = LayerCost(0.01, 0.01, 0.01)
    layers = tuple(Layer((cost,), parameter_bytes=8, activation_bytes=2, weight_stash_bytes=1) for _ in range(4))
    profile = Profile(layers, microbatch_size=2, sequence_length=16, network=Network(Connection(1e-5, 1e9)))
    write_document(str(place / "p.json"), profile)
    return place


FILE = """
[model]
profile = "p.json"
[cluster]
cluster = "4x1"
memory_limit = "1GB"
[shape]
pp = 2
dp = 2
microbatches = 4
schedule = "zero-bubble"
[policy]
technique = "adaptive"
policies = ["slipstream", "oobleck"]
normalize_within = 7
cost = ["restart_s=600"]
"""
SHAPE = ("--pp", "2", "--dp", "2", "--microbatches", "4", "--memory-limit", "1GB")
SITE = ("--cluster", "4x1")
POLICIES = ("--policies", "slipstream,oobleck", "--cost", "restart_s=600")
REPLAY = ("--trace", "trace.jsonl", "--until", "1h")


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (("plan", "pipeline"), ("p.json", *SHAPE, *SITE, "--schedule", "zero-bubble")),
        (("plan", "slipstream", "--failures", "1"), ("p.json", *SHAPE, *SITE, "--technique", "adaptive")),
        (("plan", "joint", "--slow", "0/1=1.5"), ("p.json", *SHAPE, *SITE, "--technique", "adaptive")),
        (("plan", "adaptra", "--link-delay", "0=0.01"), ("p.json", *SHAPE, *SITE)),
        (("plan", "topology", "--slow", "0/1=1.5"), ("p.json", *SHAPE, "--schedule", "zero-bubble")),
        (("replay", *REPLAY), ("--profile", "p.json", *SHAPE, *SITE, "--schedule", "zero-bubble", *POLICIES)),
    ],
)
def test_documents_are_the_same_bytes(folder: Path, short: tuple[str, ...], long: tuple[str, ...]) -> None:
    """A command beside the file writes what it writes with the same options typed."""
    file = folder / "rtk.toml"
    file.write_text(FILE)
    beside = rtk(*short, "--json", cwd=folder)
    file.unlink()
    typed = rtk(*short, *long, "--json", cwd=folder)
    assert beside.returncode == typed.returncode == 0, beside.stderr + typed.stderr
    assert beside.stdout == typed.stdout
    assert "from rtk.toml: " in beside.stderr
    assert "rtk.toml" not in typed.stderr


def test_a_plan_is_written_simulated_and_left_alone(folder: Path) -> None:
    """`plan` is what planners write and `rtk simulate` reads; `rtk verify` neither takes nor reads the file."""
    file = folder / "rtk.toml"
    file.write_text(FILE.replace("[shape]", '[shape]\nplan = "made.json"'))
    made = rtk("plan", "pipeline", cwd=folder)
    assert made.stdout == ""
    assert "from rtk.toml: profile p.json, pp 2, " in made.stderr
    assert rtk("simulate", cwd=folder).stdout.split()[0] == "iteration"
    assert "PLAN" in rtk("verify", cwd=folder).stderr.upper()
    file.write_text("no TOML")
    assert rtk("verify", "made.json", cwd=folder).stdout == "made.json: valid\n"
    assert rtk("simulate", cwd=folder).returncode == 2
    assert rtk("simulate", "made.json", "--help", cwd=folder).returncode == 0
    assert rtk("--no-config", "simulate", "made.json", cwd=folder).returncode == 0
    file.unlink()


@pytest.mark.parametrize(
    ("file", "command", "told"),
    [
        (
            "shape.pp = 0",
            "plan pipeline",
            ("error: pp: input should be greater", "shape.pp (line 1)", "plan pipeline --pp"),
        ),
        (
            "shape.schedule = 'gpip'",
            "plan pipeline --pp 2",
            ("error: schedule: 'gpip' is not one of", "shape.schedule (line 1)"),
        ),
        ("\ncluster.cluster = '1x1'", "plan pipeline --pp 2", ("2 workers need 2 GPUs", "cluster.cluster (line 2)")),
        ("cluster.memory_limit = '1 parsec'", "plan pipeline --pp 2", ("cluster.memory_limit (line 1)",)),
        (
            "policy.policy = 'join'",
            "simulate p.json",
            ("error: policy: 'join' is not one of", "policy.policy (line 1)"),
        ),
        ("policy.policies = ['x']", "replay --trace t --pp 1 --microbatches 1", ("policy.policies (line 1)",)),
        ("shape.ppp = 1", "plan pipeline", ("error: unknown key ppp", "shape.ppp (line 1)", "did you mean pp?")),
    ],
)
def test_what_does_not_fit_is_blamed_on_the_file(folder: Path, file: str, command: str, told: Collection[str]) -> None:
    """A value of the file that an option refuses is told with its line there, not as an option that nobody typed."""
    (folder / "bad.toml").write_text(file + "\nmodel.profile = 'p.json'\nshape.microbatches = 4\n")
    done = rtk("--config", "bad.toml", *command.split(), cwd=folder)
    assert done.returncode in (2, 3)
    assert "at: bad.toml, " in done.stderr
    for words in told:
        assert words in done.stderr
    assert done.stdout == ""


def test_an_option_that_is_typed_is_blamed_itself(folder: Path) -> None:
    """Beside a file that says something else."""
    (folder / "bad.toml").write_text("cluster.cluster = '8x8'\n")
    done = rtk("--config", "bad.toml", "plan", "pipeline", "p.json", *SHAPE, "--cluster", "1x1", cwd=folder)
    assert "at: --cluster" in done.stderr


def test_a_remark_says_what_is_taken_unless_it_is_quiet(folder: Path) -> None:
    """One line on standard error, with the values; nothing under --quiet, and nothing where the line says it all."""
    (folder / "some.toml").write_text("shape.pp = 2\nshape.dp = 3\n")
    rest = ("plan", "pipeline", "p.json", "--microbatches", "4")
    said = rtk("--config", "some.toml", *rest, "--dp", "1", cwd=folder)
    assert said.stderr.splitlines()[0] == "from some.toml: pp 2"
    assert rtk("--config", "some.toml", *rest, "--quiet", cwd=folder).stderr == ""
    assert "some.toml" not in rtk("--config", "some.toml", *rest, "--pp", "2", "--dp", "1", cwd=folder).stderr


def test_the_file_is_found_above_and_named_by_the_environment(folder: Path) -> None:
    """In a folder of a repository below the file, paths lead up to it; RTK_CONFIG and --config name another."""
    inner = folder / "repository" / "results"
    inner.mkdir(parents=True)
    (inner.parent / ".git").mkdir()
    (inner.parent / "rtk.toml").write_text("[model]\nprofile = '../p.json'\n[shape]\npp = 2\nmicrobatches = 4\n")
    (inner / "other.toml").write_text("[model]\nprofile = '../../p.json'\n[shape]\npp = 4\nmicrobatches = 4\n")
    found = rtk("plan", "pipeline", cwd=inner)
    assert found.stderr.startswith("from ../rtk.toml: profile ../../p.json, pp 2, microbatches 4\n")
    assert ", 2 workers" in found.stderr
    other = {"RTK_CONFIG": "other.toml"}
    assert ", 4 workers" in rtk("plan", "pipeline", cwd=inner, environment=other).stderr
    named = rtk("--config", "../rtk.toml", "plan", "pipeline", cwd=inner, environment=other)
    assert ", 2 workers" in named.stderr
    nowhere = rtk("--config", "none.toml", "plan", "pipeline", cwd=inner)
    assert (nowhere.returncode, "at: none.toml" in nowhere.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "arguments", "left_out"),
    [
        ("profile model", (), {"cluster", "gpu"}),
        ("profile model", ("--analytic",), set()),
        ("run", ("plan.json", "--model", "x"), set()),
        ("run", ("plan.json", "--model", "x", "--coordinator", "a:1"), {"iterations", "policy", "checkpoint"}),
        ("coordinate", ("plan.json",), set()),
    ],
)
def test_what_another_decides_is_not_taken(
    folder: Path, command: str, arguments: tuple[str, ...], left_out: set[str]
) -> None:
    """A coordinator's worker leaves to it how the job is led, and a profile that is measured is of no cluster."""
    from rtk.cli.job import TAKEN, settle

    told = "cluster = {cluster='8x8', gpu='h100-sxm'}\nmodel = {name='m'}\npolicy = {policy='joint'}\n"
    file = folder / "all.toml"
    file.write_text(told + "training = {iterations=3, checkpoint='c', lr=0.5}\n")
    TAKEN.clear()
    given, _ = parsed(command, arguments, file)
    taken = {name: one.key.name for name, one in TAKEN.items()}
    settled = settle(given)
    usual, _ = parsed(command, arguments if command != "profile model" else ("m", *arguments))
    assert {key for name, key in taken.items() if name not in TAKEN} == left_out
    assert all((settled[name] == usual[name]) == (key in left_out) for name, key in taken.items() if key != "name")
    TAKEN.clear()


def test_workers_read_no_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Who is started by `rtk run` has all values from it, also where the file is wrong or is named."""
    (folder / "wrong.toml").write_text("no TOML")
    monkeypatch.setenv("RTK_LAUNCHED", "1")
    assert JobSource(str(folder / "wrong.toml"), False).file is None


def test_a_profile_is_planned_simulated_and_run_beside_a_file(folder: Path) -> None:
    """The whole flow without options; the workers train what they train with the options typed."""
    place = folder / "flow"
    place.mkdir()
    file = place / "rtk.toml"
    file.write_text(
        """
        model = {name = "../model.py:tiny", profile = "profile.json", microbatch_size = 2, sequence_length = 16}
        shape = {pp = 2, microbatches = 3, plan = "plan.json"}
        training = {data = "../text.txt", iterations = 2, lr = 0.05, seed = 3, transport = "direct"}
        """
    )
    profiled = rtk_forked("profile", "model", "--repeats", "1", cwd=place)
    assert profiled.returncode == 0, profiled.stderr
    assert rtk("plan", "pipeline", cwd=place).returncode == 0
    assert rtk("simulate", cwd=place).returncode == 0
    beside = rtk_forked("run", "--json", cwd=place)
    typed = ("plan.json", "--model", "../model.py:tiny", "--data", "../text.txt", "--iterations", "2")
    more = ("--lr", "0.05", "--seed", "3", "--transport", "direct")
    by_hand = rtk_forked("--no-config", "run", *typed, *more, "--json", cwd=place)
    assert beside.returncode == by_hand.returncode == 0, beside.stderr + by_hand.stderr
    found, expected = (
        [one["loss"] for one in map(json.loads, done.stdout.splitlines()) if one["event"] == "iteration"]
        for done in (beside, by_hand)
    )
    assert found == expected
    assert len(found) == 2
    assert beside.stderr.count("from rtk.toml: ") == 1


def test_the_model_of_the_file_is_profiled(folder: Path) -> None:
    """`rtk profile` alone takes the file's model; where no file names one it prints its help."""
    (folder / "some.toml").write_text("model.name = 'gpt-tinyy'\n")
    done = rtk("--config", "some.toml", "profile", cwd=folder)
    assert (done.returncode, "gpt-tinyy" in done.stderr) == (2, True)
    (folder / "some.toml").write_text("shape.pp = 2\n")
    help_page = rtk("--config", "some.toml", "profile", cwd=folder)
    assert "Usage: " in help_page.stdout + help_page.stderr
    assert rtk("profile", cwd=folder).stdout == help_page.stdout


def test_what_is_missing_may_stand_in_the_file(folder: Path) -> None:
    """The error for a line without required options says which keys would do."""
    done = rtk("plan", "pipeline", "p.json", cwd=folder)
    assert done.returncode == 2
    assert ", or pp and microbatches in [shape] of rtk.toml; " in done.stderr
    assert "rtk.toml" not in rtk("verify", cwd=folder).stderr


def test_a_wrong_file_keeps_nobody_from_help(folder: Path) -> None:
    """Help is the same in every folder."""
    (folder / "bad.toml").write_text("shape.pp = 'x'\n")
    page = rtk("--config", "bad.toml", "plan", "pipeline", "--help", cwd=folder)
    assert page.returncode == 0
    assert page.stdout == rtk("plan", "pipeline", "--help", cwd=folder).stdout


def test_commands_without_keys_look_for_no_file() -> None:
    """They do not even look whether there is one."""

    class Untouchable:
        @property
        def path(self) -> str:
            raise AssertionError

    root = JobDefaults("", Untouchable())  # type: ignore[arg-type]
    for name in SUMMARIES:
        inner = root.get(name)
        assert not isinstance(inner, FromJob)
        if inner is None:
            assert not any(f"{command} ".startswith(f"{name} ") for command in COMMANDS)
