"""Settings are read where they stand, with their lines, and what is not read is told."""

import gzip
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtk
from rtk.profilers.doctor.known import slurm_time
from rtk.profilers.doctor.readers.reading import recognised
from rtk.profilers.doctor.readers.shell_words import commands
from rtk.profilers.doctor.settings import JobSettings

from .jobs import job_of

MEASURED = Path(__file__).parents[3] / "benchmarks/measured"


def told(job: JobSettings, field: str) -> tuple[object, str, int | None]:
    """A field's value, how it is written, and its line."""
    setting = getattr(job, field)
    return setting.value, setting.told.text, setting.told.line


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0\r")), min_size=1, max_size=6))
def test_words_that_a_shell_quotes_come_back(words: list[str]) -> None:
    """What shlex.quote has quoted is one command of the same words, as in a shell."""
    (command,) = commands(" ".join(shlex.quote(one) for one in words))
    assert [word.text for word in command] == words


@given(st.text())
def test_no_script_is_too_strange(text: str) -> None:
    """Whatever a script holds, reading it ends, and each word has a line of it."""
    last = text.count("\n") + 1
    assert all(1 <= word.line <= last for command in commands(text) for word in command)
    job_of(script=text)


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4-8 --gres=gpu:h100:8
#SBATCH -t 1-12

nodes=4   # a comment with an ' in it
cat <<EOF
torchrun --max-restarts 99
EOF
ARGS=(
    --max-restarts 3   # each may fail
    --rdzv-conf "join_timeout=900,read_timeout=60"
)
export TORCH_NCCL_TRACE_BUFFER_SIZE="2000"; NCCL_IB_TIMEOUT=22 true
#SBATCH --requeue
echo "torchrun --monitor-interval 77"
srun -K1 bash -c "torchrun --nnodes ${nodes} --nproc_per_node=${GPUS:-8} \\
    --rdzv_backend c10d ${ARGS[@]} train.py"
"""


def test_a_script_is_followed() -> None:
    """Variables, arrays, defaults, nested commands and continued lines, each with the line where the value stands; no
    here-document, comment or echo is a command."""
    job = job_of(script=SCRIPT)
    assert told(job, "max_restarts") == (3, "3", 10)
    assert told(job, "join_timeout_s") == (900.0, "900", 11)
    assert told(job, "recorder_entries") == (2000, "2000", 13)
    assert told(job, "ib_timeout") == (22, "22", 13)
    assert told(job, "max_nodes") == (4, "4", 16)
    assert told(job, "processes") == (8, "8", 16)
    assert told(job, "rendezvous") == ("c10d", "c10d", 17)
    assert told(job, "kill_on_bad_exit") == (True, "1", 16)
    assert told(job, "slurm_nodes") == (4, "4-8", 2)
    assert told(job, "time_limit_s") == (129_600.0, "1-12", 3)
    assert job.monitor_interval_s.value == 0.1 and job.launcher.value == "torchrun"
    assert job.gpu_count == 32


def test_what_says_nothing_is_told() -> None:
    """An #SBATCH line below the first command, a variable that is not exported, and a mistyped one."""
    unread = job_of(script=f"{SCRIPT}NCCL_BLOCKING_WAIT=1\nexport TORCH_NCCL_HEARTBEAT_TIMEOUT=9\n").unread
    assert [(one.kind, one.setting.name, one.setting.line) for one in unread] == [
        ("ignored", "#SBATCH", 14),
        ("unknown", "TORCH_NCCL_HEARTBEAT_TIMEOUT", 19),
        ("ignored", "NCCL_BLOCKING_WAIT", 18),
    ]
    assert unread[1].why == "did you mean TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC?"


def test_what_only_the_job_knows_is_not_invented() -> None:
    """A node count that the scheduler sets is not known: neither elastic, nor one, nor an error."""
    job = job_of(script="torchrun --nnodes $NNODES --max-restarts $TRIES train.py")
    assert (job.nodes, job.is_elastic, job.max_restarts.value, job.unread) == (None, False, 0, ())


def test_the_stronger_setting_counts() -> None:
    """An argument overrules its variable, and the new name the old one; both are told."""
    variables = "PET_MAX_RESTARTS=1\nNCCL_ASYNC_ERROR_HANDLING=0\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1"
    job = job_of(variables, "torchrun --max-restarts=2 x")
    assert (job.max_restarts.value, job.async_error_handling.value) == (2, 1)
    assert [(one.text, other.text) for one, other in job.doubles] == [("1", "0"), ("2", "1")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("90:30", 5430.0),
        ("1:00:00", 3600.0),
        ("2-0", 172_800.0),
        ("0-1:30", 5400.0),
        ("UNLIMITED", None),
    ],
)
def test_times_of_slurm(text: str, seconds: float | None) -> None:
    """Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes."""
    assert slurm_time(text) == seconds


@pytest.mark.checkout
def test_the_arguments_that_megatron_prints() -> None:
    """A real log's list of arguments: the interval between checkpoints and the world size, at their lines."""
    with gzip.open(MEASURED / "meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out.gz", "rt") as log:
        text = log.read()
    job = job_of(megatron=text)
    lines = text.splitlines()
    assert job.checkpoint_every.is_set and job.gpu_count == 16
    for setting in (job.checkpoint_every, job.gpus):
        assert setting.told.line is not None and setting.told.text in lines[setting.told.line - 1]


@pytest.mark.parametrize(
    "script",
    [
        'ARGS="--nnodes 1:16"\nARGS="$ARGS --max-restarts 2"\ntorchrun $ARGS x.py',
        'ARGS="--nnodes 1:1"\nARGS+="6 --max-restarts 2"\ntorchrun ${ARGS} x.py',
        'ARGS=(--nnodes 1:16)\nARGS+=(--max-restarts 2)\ntorchrun "${ARGS[@]}" x.py',
        'ARGS=(--nnodes 1:16)\nARGS=("${ARGS[@]}" --max-restarts 2)\ntorchrun "${ARGS[@]}" x.py',
    ],
)
def test_what_is_added_to_a_variable_stands_beside_what_was_there(script: str) -> None:
    """`NAME+=more` and `NAME="$NAME more"` lose nothing, and each part keeps its line."""
    job = job_of(script=script)
    assert told(job, "max_nodes")[0] == 16 and job.max_nodes.told.line == 1
    assert job.max_restarts.value == 2


def test_a_variable_may_be_its_own_value_or_a_default() -> None:
    """`export X=${X:-default}` is the default where nobody has set X, and what was set where somebody has."""
    own = "export NCCL_IB_TIMEOUT=${NCCL_IB_TIMEOUT:-31}\n"
    assert job_of(script=own).ib_timeout.value == 31
    assert job_of(script=f"NCCL_IB_TIMEOUT=18\n{own}").ib_timeout.value == 18
    assert not job_of(script="export NCCL_IB_TIMEOUT=$NCCL_IB_TIMEOUT\n").ib_timeout.is_set


@pytest.mark.parametrize("more", ["$A{0}$A{0}$A{0}$A{0}", '"$A{0} $A{0} $A{0}"'])
def test_a_script_that_doubles_its_text_in_every_line_is_read(more: str) -> None:
    """It would become longer than any memory; what stands elsewhere is read all the same."""
    lines = [f"A{number + 1}={more.format(number)}" for number in range(40)]
    job = job_of(script="\n".join(["A0='x x'", *lines, "torchrun $A40 --y=$A40 z.py", "torchrun --max-restarts 3"]))
    assert job.max_restarts.value == 3


def test_numbers_that_nobody_can_mean_are_told() -> None:
    """No nodes, more nodes than the most, a time below zero or none: they count for nothing."""
    job = job_of(
        lines=["torchrun --nnodes 4:1 --nproc-per-node 0"],
        environment="TORCHFT_TIMEOUT_SEC=-3\nTORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=nan",
        python="init_process_group(timeout=timedelta(minutes=-5))",
        script="#SBATCH --nodes=0 --gpus-per-node=99999999999999999999999999",
    )
    names = ["--nnodes", "--nproc-per-node", "TORCHFT_TIMEOUT_SEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]
    names += ["init_process_group(timeout)", "#SBATCH --nodes", "#SBATCH --gpus-per-node"]
    assert {one.setting.name for one in job.unread if one.kind == "unreadable"} == set(names)
    assert job.gpu_count is None and job.init_timeout_s.value == 600.0


def test_time_outs_in_python() -> None:
    """timedelta in either form; a bare number is what torch refuses; what only the script knows is told."""
    groups = "new_group([0], timeout=60)\nnew_group([1], timeout=T)"
    job = job_of(python=f"import x\ndist.init_process_group('nccl', timeout=timedelta(0, 90))\n{groups}")
    assert told(job, "init_timeout_s") == (90.0, "timedelta(0, 90)", 2)
    assert [(one.kind, one.setting.line) for one in job.unread] == [("unreadable", 3), ("unknown", 4)]


def test_torchtitans_keys_have_their_lines_and_its_defaults_count() -> None:
    """A key that is set has its line; one that is not has torchtitan's default, not torch's; a mistyped one is told."""
    job = job_of(toml="[comm]\n# in s\ntrain_timeout_seconds = 50\ninit_timeout_second = 5\n")
    assert told(job, "train_timeout_s") == (50.0, "50", 3)
    assert (job.init_timeout_s.value, job.init_timeout_s.told.place) == (300.0, "default of torchtitan")
    assert [one.why for one in job.unread] == ["did you mean comm.init_timeout_seconds?"]
    flags = job_of(lines=["torchrun train.py --comm.train_timeout_seconds=70 --fault_tolerance.enable"])
    assert (flags.train_timeout_s.value, flags.replicates.value) == (70.0, True)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("env.txt", "HOME=/root\nNCCL_DEBUG=INFO\n", "environment"),
        (".env", "# ours\nexport NCCL_DEBUG=INFO\n", "environment"),
        ("job", "#!/bin/sh\nA=1\nB=2\nC=3\ntorchrun train.py\n", "script"),
        ("job", "#SBATCH --nodes=2\nA=1\nB=2\n", "script"),
        ("a.toml", "", "torchtitan"),
        ("a.log", "x\n-------- arguments --------\n", "megatron arguments"),
        ("train.py", "", "python"),
        ("notes.md", "We set the time-out to 10 min.\n", None),
        ("empty", "", None),
    ],
)
def test_files_are_recognised(name: str, text: str, kind: str | None) -> None:
    """By what they hold, and where that says nothing by their ending."""
    assert recognised(name, text) == kind


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.toml", b"[comm\n", "not valid TOML"),
        ("a.toml", b"a = " + b"[" * 100_000, "not valid TOML"),
        ("a.py", b"def (:\n", "not valid Python"),
        ("a.py", b"-" * 100_000 + b"1", "not valid Python"),
        ("a.py", b"x = \0", "not valid Python"),
        ("a.sh", b"\xff\xfe#!\n", "not UTF-8 text"),
        ("notes.md", b"hello\n", "nothing of it is recognised"),
    ],
)
def test_what_is_no_settings_is_refused(name: str, data: bytes, says: str, tmp_path: Path) -> None:
    """One error, with the file, and what to give."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(rtk.RtkError, match=says) as caught:
        rtk.doctor([str(path)])
    assert str(path) in str(caught.value.where)
