"""Durations, sizes, rates and shares: one rule for all options and files."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from rtk.cli.commands import every
from rtk.cli.main import app
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.quantities import (
    DAYS,
    DURATION,
    RATE,
    SHARE,
    SIZE,
    SIZES,
    SPEEDS,
    TIMES,
    Quantity,
    parse_bytes,
    parse_memory_limit,
    parse_speed,
    parse_time_s,
)
from rtk.schemas.replay import parse_cost

from .shell import rtk

KINDS = [DURATION, DAYS, SIZE, RATE, SHARE]


@given(st.integers(1, 10**6), st.integers(0, 999), st.sampled_from(KINDS), st.data(), st.sampled_from(["", " "]))
def test_a_number_times_its_unit(whole: int, thousandths: int, kind: Quantity, data: st.DataObject, space: str) -> None:
    """The value is the nearest float to the number times the unit, not one that rounding on the way has moved."""
    unit = data.draw(st.sampled_from(sorted(kind.units)))
    exact = (whole * 1000 + thousandths) * kind.units[unit] / 1000
    assert kind.parse(f"{whole}.{thousandths:03d}{space}{unit}", "here") == float(exact)


@given(st.floats(0, 1e300), st.sampled_from(KINDS))
def test_a_number_without_a_unit_is_of_the_base_unit(value: float, kind: Quantity) -> None:
    """What JSON says can be given as it stands there, to the last bit."""
    assert kind.parse(repr(value), "here") == value


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_time_s, "5us", 5e-6),
        (parse_time_s, "3µs", 3e-6),
        (parse_time_s, "1.5ms", 1.5e-3),
        (parse_time_s, "2min", 120.0),
        (parse_time_s, "0s", 0.0),
        (parse_time_s, ".5", 0.5),
        (parse_bytes, "80GiB", 80 * 2**30),
        (parse_bytes, "80 GB", 80e9),
        (parse_bytes, "64KB", 64e3),
        (parse_bytes, "80e9", 80e9),
        (parse_speed, "50GB/s", 50e9),
        (parse_speed, "400Gbit/s", 50e9),
        (parse_speed, "400Gb/s", 50e9),
        (parse_speed, "1GiB/s", 2**30),
    ],
)
def test_what_people_write(parse: Callable[[str, str], float], text: str, value: float) -> None:
    """Binary prefixes count in 1024, others in 1000, and eight bits are a byte."""
    assert parse(text, "here") == value


@pytest.mark.parametrize(
    ("parse", "text", "says", "fix"),
    [
        (parse_speed, "50GB", "'GB' in '50GB' is no unit here", "write 50GB/s or 400Gb/s"),
        (parse_speed, "400Gbps", "'Gbps' in '400Gbps' is no unit here", "b is a bit, B a byte"),
        (parse_bytes, "80gib", "is no unit here", "did you mean GiB? write 80GB"),
        (parse_bytes, "80Gb", "is no unit here", "did you mean GB? write"),
        (parse_bytes, "80G", "is no unit here", "did you mean GB? write"),
        (parse_bytes, "0GB", "is nothing", "more than 0"),
        (parse_time_s, "2 sec", "'sec' in '2 sec' is no unit here", "units are s, ms"),
        (parse_time_s, "-5us", "'-5us' is too little", "give 0 or more"),
        (parse_time_s, "fast", "'fast' cannot be read", "write 10ms, 2s, 5min or 12h, or a plain number of seconds"),
        (parse_time_s, "", "cannot be read", "write 10ms"),
        (parse_time_s, "nan", "cannot be read", "write 10ms"),
        (parse_time_s, "inf", "cannot be read", "write 10ms"),
        (parse_time_s, "9" * 400 + "s", "cannot be read", "write 10ms"),
        (parse_time_s, "1e999", "is too much", "write 10ms"),
        (parse_time_s, "1e999d", "is too much", "write 10ms"),
        (parse_time_s, "1,5s", "cannot be read", "write 10ms"),
    ],
)
def test_what_is_refused(parse: Callable[[str, str], float], text: str, says: str, fix: str) -> None:
    """Units of something else, and what is no number, each with its place and what to write."""
    with pytest.raises(InvalidInputError) as caught:
        parse(text, "c.yaml, line 4, /memory")
    assert says in caught.value.what
    assert caught.value.where == "c.yaml, line 4, /memory"
    assert fix in str(caught.value.fix)


def test_every_unit_is_read() -> None:
    """All units that the messages name are read."""
    for units, parse in ((TIMES, parse_time_s), (SIZES, parse_bytes), (SPEEDS, parse_speed)):
        assert [parse(f"8{unit}", "here") for unit in units] == [float(8 * units[unit]) for unit in units]


def test_costs_are_quantities_of_their_kind() -> None:
    """A cost's name says whether it is a time or a rate; others are plain numbers."""
    assert parse_cost("restart_s", "10min", "--cost") == 600
    assert parse_cost("copy_bytes_per_s", "100Gb/s", "--cost") == 12.5e9
    assert parse_cost("gpu_hour_price", "2.5", "--cost") == 2.5
    assert parse_memory_limit("80GB,64MiB,1e9") == [80e9, 64 * 2**20, 1e9]


# Every option that is a quantity, and how it is written: with a unit, then without one, for the same value.
DURATIONS = {
    "--time-limit": ("1min", "60"),
    "--link-delay": ("0=10ms", "0=0.01"),
    "--slow-link": ("0/0-0/1=10ms", "0/0-0/1=0.01"),
    "--costs": ("5s,1min,20min", "5,60,1200"),
    "--revert-cost": ("1min", "60"),
    "--times": ("7s,3500ms", "7,3.5"),
    "--mitigate": ("S3=20s,S4=10min", "S3=20,S4=600"),
    "--heartbeat-limit": ("500ms", "0.5"),
    "--kernel-gap": ("47us", "0.000047"),
    "--stall-limit": ("1min", "60"),
    "--join-wait": ("1min", "60"),
    "--regroup": ("50ms", "0.05"),
    "--patience": ("1min", "60"),
    "--until": ("12h", "43200"),
    "--from": ("1ms", "0.001"),
    "--iteration-time": ("2s", "2"),
    "--link-time": ("10us", "1e-5"),
    "--days": ("48h", "2"),
    **{
        f"--{name}": ("1h", "3600")
        for name in (
            *("mtbf", "repair", "rack-mtbf", "rack-repair", "gpu-mtbf", "gpu-repair"),
            *("slow-every", "slow-lasts", "slow-link-every"),
        )
    },
    **{f"--{name}-time": ("5min", "300") for name in ("save", "restart")},
    "--slow-link-lasts": ("1h", "3600"),
    "--slow-link-delay": ("20ms", "0.02"),
    "--cost": ("restart_s=10min", "restart_s=600"),
}
OTHERS = {
    "--memory-limit": ("80GB", "8e10"),
    "--host-memory": ("1GiB", "1073741824"),
    "--log-memory": ("1GiB", "1073741824"),
    "--max-input": ("1GiB", "1073741824"),
    "--shard-size": ("5GB", "5e9"),
    "--sizes": ("16MB,32MB", "16000000,32000000"),
    "--efficiency": ("50%", "0.5"),
    "--left": ("60%,20%,0%", "0.6,0.2,0"),
    "--tolerance": ("5%", "0.05"),
    "--max-failures": ("25%", "1"),  # of the workers, or a count: no fraction
}
QUANTITIES = DURATIONS | OTHERS
# What looks like one and is none: counts, of samples, tokens, nodes and iterations.
COUNTS = {"--microbatch-size", "--sequence-length", "--rack-size", "--checkpoint-every", "--gpus-per-node"}
COUNTS |= {"--eval-every", "--fault-tolerance", "--normalize-within", "--pays-within"}
COUNTS |= {"--fail-if"}  # WHAT:LIMIT, in tests/viz/test_diff.py
LOOKS = re.compile(
    r"SECONDS|BYTES|DURATION|SIZE|RATE|SHARE|TIME\b|DAYS"
    r"|-(limit|delay|time|cost|every|lasts|within|size|memory|mtbf|repair|share|tolerance)s?$|--(until|patience|days)"
)


def options() -> Iterator[tuple[str, Any]]:
    """Every option of every command, with the command's name."""
    commands = {"": typer.main.get_command(app), **every()}
    return (
        (name, one)
        for name, command in commands.items()
        for one in command.params
        if one.param_type_name == "option" and not one.is_flag
    )


def test_every_option_that_looks_like_a_quantity_is_one() -> None:
    """An option whose name or metavar looks like a quantity is in the table above, or counted."""
    found = {
        (name, option.opts[0]) for name, option in options() if LOOKS.search(f"{option.metavar or ''} {option.opts[0]}")
    }
    assert {option for _, option in found} <= set(QUANTITIES) | COUNTS, found
    assert set(QUANTITIES) <= {opt for _, option in options() for opt in option.opts}


def test_help_pages_name_each_kind_once() -> None:
    """DURATION, SIZE, RATE and SHARE are what help pages call them."""
    for name, option in options():
        if option.opts[0] in QUANTITIES and option.opts[0] not in ("--cost", "--max-failures", "--days", "--from"):
            kind = "DURATION" if option.opts[0] in DURATIONS else "SHARE|SIZE"
            assert re.search(kind, option.metavar or ""), (name, option.opts)


PLAN = ("plan", "pipeline", "p.json", "--pp", "4", "--dp", "4", "--microbatches", "8")
GENERATE = ("trace", "generate", "--nodes", "4", "--days", "3", "--mtbf", "1d", "--repair", "2h")
RATES = (
    *("--rack-size", "2", "--rack-mtbf", "2d", "--gpus-per-node", "8", "--gpu-mtbf", "2d", "--gpu-repair", "1h"),
    *("--slow-every", "1d", "--slow-link-every", "1d"),
)
BATCH = ("plan", "batch", "--microbatches", "30", "--times", "7,3.5")
SIMULATE = ("simulate", "plan.json", "--json", "--inject", "faults.jsonl")
REPLAY = ("replay", "--profile", "p.json", "--pp", "4", "--dp", "2", "--microbatches", "8", "--trace", "spot.csv")
DOCTOR = (
    *("doctor", "--torchrun", "torchrun --nnodes 2 x", "--checkpoint-every", "9", "--mtbf", "1d"),
    *("--iteration-time", "1s", "--json"),
)
# A command that takes each, and whose output says what it has understood: equal outputs, equal values.
TRIED: dict[tuple[str, ...], tuple[str, ...]] = {
    (*PLAN,): ("--memory-limit", "--link-delay"),
    ("plan", "joint", *PLAN[2:]): ("--time-limit",),
    ("plan", "topology", *PLAN[2:]): ("--slow-link",),
    ("plan", "slipstream", *PLAN[2:], "--technique", "adaptive", "--json", "-o", "atlas"): ("--max-failures",),
    ("plan", "mitigate", "--costs", "5,60,1200", "--json"): ("--costs", "--revert-cost", "--left"),
    (*BATCH, "--json"): ("--times", "--time-limit"),
    SIMULATE: ("--heartbeat-limit", "--regroup", "--host-memory", "--mitigate", "--link-delay"),
    ("verify", "plan.json"): ("--max-input",),
    ("viz", "plan.json", "--json"): ("--from",),
    ("diff", "plan.json", "plan.json", "--json"): ("--tolerance",),
    ("trace", "show", "spot.csv", "--json"): ("--iteration-time", "--link-time"),
    DOCTOR: ("--save-time", "--restart-time"),
    (*GENERATE, *RATES): tuple(
        one for one in DURATIONS if re.match("--(mtbf|repair|rack|gpu|slow-(?!link$)|days)", one)
    ),
    (*REPLAY, "--policies", "spares", "--json"): ("--until", "--cost", "--memory-limit"),
    ("profile", "gpt3-6.7b", "--analytic", "--gpu", "h100-sxm"): ("--efficiency", "--kernel-gap"),
}
# Those of commands that start processes: refused as late as that with a value that can be read, and before with others.
REFUSED = {
    ("run", "plan.json", "--model", "gpt-tiny"): (
        *("--patience", "--stall-limit", "--heartbeat-limit", "--host-memory", "--log-memory"),
    ),
    ("probe", "--processes", "2"): ("--sizes",),
    ("profile", "links", "--processes", "2"): ("--sizes",),
    ("coordinate", "plan.json"): ("--stall-limit", "--join-wait"),
    ("checkpoint", "export", "missing", "--to", "hf", "-o", "out"): ("--shard-size",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A profile, a plan of it, and traces."""
    place = tmp_path_factory.mktemp("quantities")
    done = rtk("profile", "gpt3-medium", "--analytic", "--gpu", "h100-sxm", "-o", "p.json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert rtk(*PLAN, "-o", "plan.json", cwd=place).returncode == 0
    (place / "faults.jsonl").write_text('{"iteration": 0, "kind": "fail", "worker": "1/2"}\n')
    (place / "spot.csv").write_text("".join(f"{i},add,n{i}\n" for i in range(8)) + "9000000,remove,n1\n")
    return place


def test_every_quantity_is_tried() -> None:
    """The tables below try every option of the table above."""
    assert {option for tried in (TRIED, REFUSED) for options in tried.values() for option in options} == set(QUANTITIES)


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in TRIED.items() for option in options]
)
def test_every_quantity_is_read_both_ways(command: tuple[str, ...], option: str, folder: Any) -> None:
    """With a unit and in its base unit it gives the same output; another unit is refused, with the option's name."""

    def outcome(value: str) -> tuple[int, str]:
        at = 0 if option == "--max-input" else len(command)
        done = rtk(*command[:at], option, value, *command[at:], cwd=folder)
        if value != "1parsec":
            assert done.returncode == 0, done.stderr
        else:
            assert option in done.stderr
        return done.returncode, done.stdout

    with_unit, without = QUANTITIES[option]
    if option != "--max-failures":  # a share of all workers, and a number of them
        assert outcome(with_unit) == outcome(without)
    else:
        assert [outcome(value)[0] for value in (with_unit, without)] == [0, 0]
    assert outcome("1parsec")[0] == 2


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in REFUSED.items() for option in options]
)
def test_every_other_quantity_is_refused_before_a_process_starts(
    command: tuple[str, ...], option: str, folder: Any
) -> None:
    """Options of commands that start processes are read before that."""
    done = rtk(*command, option, "1parsec", cwd=folder)
    assert (done.returncode, option in done.stderr) == (2, True), done.stderr
