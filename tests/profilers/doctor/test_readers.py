"""Settings are read where they stand, with their lines, and what is not read is told."""

import gzip
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtk
from rtk.profilers.diagnosing import findings_of
from rtk.profilers.doctor.costs import costs_of
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
    assert (job.nodes, job.is_elastic, told(job, "max_restarts")[0]) == (None, False, None)
    assert [(one.kind, one.setting.text) for one in job.unread] == [("unknown", "$TRIES")]
    assert findings_of(job) == ()  # not even that it ends with the first failure, as it would by torchrun's default
    late = job_of(lines=["torchrun --nnodes 4 --nproc-per-node $N x.py --distributed-timeout-minutes $T"])
    costs = costs_of(late)
    assert (costs.gpus, costs.hang_s) == (None, None)
    assert costs.hang_ended_by is not None and costs.hang_ended_by.text == "$T"
    saves = "torchrun pretrain.py --save-interval 100 --save $FOLDER/checkpoints"
    assert [one.rule for one in findings_of(job_of(lines=[saves]))] == []


INNER = """#!/bin/bash
#SBATCH --nodes=32 --ntasks-per-node=1 --gpus-per-task=8
#SBATCH --requeue --open-mode=append
export NCCL_IB_TIMEOUT=21
srun --kill-on-bad-exit=1 bash -c "torchrun --nnodes 32 --max-restarts \\$TRIES --monitor-interval $EVERY train.py"
"""


@pytest.mark.parametrize(
    "outer", ["sbatch <<EOF", "cat > job.sh <<'EOF'", "cat << EOF | tee job.sh", "ssh login <<-EOF"]
)
def test_a_script_within_a_script_is_read(outer: str) -> None:
    """A here-document that is submitted, or is a batch script by itself: its header is its own, and no #SBATCH line of
    it is one of the outer script; its lines are counted in the file."""
    job = job_of(script=f"#!/bin/bash\nEVERY=7\n{outer}\n{INNER}EOF\necho done\n")
    assert told(job, "slurm_nodes") == (32, "32", 5) and told(job, "ib_timeout") == (21, "21", 7)
    assert told(job, "monitor_interval_s") == (7.0, "7", 8) and job.gpu_count == 256
    assert [one.setting.name for one in job.unread] == ["--max-restarts"]


def test_a_document_that_is_no_script_is_none() -> None:
    """The JSON of a configuration, and a program of another language, say nothing; what follows them is read."""
    python = "python - <<'PY' || exit 3\nexport = 'torchrun --max-restarts 9'\nPY\n"
    job = job_of(
        script=f"cat <<EOT > ds.json\ntorchrun --max-restarts 8\nEOT\n{python}torchrun --max-restarts 3 x.py\n"
    )
    assert told(job, "max_restarts") == (3, "3", 7) and job.doubles == () and job.unread == ()


def test_a_file_that_a_script_sources_is_read_in_its_place(tmp_path: Path) -> None:
    """Its variables are followed, its settings have their own places; `set -a` exports them; a file that is not here is
    named, but not the scripts that an environment is activated with; a file that sources itself is read once."""
    (tmp_path / "env.sh").write_text("NCCL_IB_TIMEOUT=21\nARGS='--max-restarts 4'\nsource env.sh\n")
    script = "source venv/bin/activate\nset -a\n. ./env.sh\nset +a\nsource $HOME/more.sh\ntorchrun $ARGS train.py\n"
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{script}")
    found = rtk.doctor([str(tmp_path / "job.sh")])
    places = {one.name: (Path(one.file).name, one.line) for one in found.settings}
    assert places["NCCL_IB_TIMEOUT"] == ("env.sh", 1) and places["--max-restarts"] == ("env.sh", 2)
    assert [(one.kind, one.setting.text) for one in found.unread] == [("unknown", "$HOME/more.sh")]


def test_what_a_script_sources_and_what_is_no_text_file_does_no_harm(tmp_path: Path) -> None:
    """Two files that source each other are read once each; pipes, devices, folders and bytes are named, not read."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "env.sh").write_text("source job.sh\n")
    odd = ["pipe", "/dev/zero", "bytes", "."]
    (tmp_path / "job.sh").write_text("\n".join(["#!/bin/bash", "source env.sh", *(f"source {one}" for one in odd)]))
    found = rtk.doctor([str(tmp_path / "job.sh")])
    assert [one.setting.text for one in found.unread] == odd
    assert all("no such text file" in one.why for one in found.unread)


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        ("#SBATCH -N 4 --ntasks-per-node=2 --gpus-per-task=4\nsrun python x.py", 32),
        ("#SBATCH -n 4 --gpus-per-task=8\nsrun python x.py", 32),
        ("#SBATCH -G 24\nsrun python x.py", 24),
        ("#SBATCH --nodes=2 --gres=gpu:8\nsrun torchrun --nnodes 2 --nproc-per-node $N x.py", 16),
        ("accelerate launch --num_machines 2 --num_processes 16 x.py", 16),
        ("deepspeed --num_nodes=3 --num_gpus 8 x.py", 24),
        ("pip install accelerate\ncd /opt/torch-run/accelerate", None),
        ("python tokenize.py --num_processes 64 --num_gpus 1 --num_nodes 2", None),
    ],
)
def test_gpus_are_counted(script: str, gpus: int | None) -> None:
    """By the launcher's processes, or by what Slurm gives to nodes, to tasks, or in all."""
    assert job_of(script=script).gpu_count == gpus


def test_the_defaults_are_those_of_what_trains() -> None:
    """torchtitan's own time-outs count where a script starts it, without any TOML; DeepSpeed's are in minutes."""
    assert job_of(lines=["srun torchrun -m torchtitan.train --module llama3"]).collective_timeout_s.value == 100.0
    assert job_of(lines=["srun torchrun train.py"]).collective_timeout_s.value == 600.0
    assert job_of("DEEPSPEED_TIMEOUT=60").collective_timeout_s.value == 3600.0
    assert job_of(lines=["torchrun sft.py --ddp_timeout 7200 --save_steps 50"]).collective_timeout_s.value == 7200.0


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


@pytest.mark.parametrize("more", ['"$A $A"', '"a$A$A"', "$A$A"])
def test_a_variable_that_doubles_itself_is_read(more: str) -> None:
    """What is put in for variables has a bound: 40 lines would else be a million million words."""
    job = job_of(script="\n".join(["A='x xxxxx'", *[f"A={more}"] * 40, "torchrun $A --max-restarts 3"]))
    assert job.max_restarts.value == 3


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
        ("job.yml", "", "YAML"),
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
        ("a.yaml", b"a: [", "not valid YAML"),
        ("a.yaml", b"[" * 100_000, "not valid YAML"),
        ("a.yaml", b"a: &a [*a]\nb: 1\n", "no setting in it is known"),
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


MANIFEST = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  elasticPolicy: {rdzvBackend: c10d, minReplicas: 2, maxReplicas: 4, maxRestarts: 9}
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
            - image: pytorch
              env: &env
                - name: NCCL_IB_TIMEOUT
                  value: "21"
                - {name: RANK, valueFrom: {fieldRef: {fieldPath: x}}}
              command: [/bin/bash, -c]
              args:
                - |
                  cd /job
                  torchrun --monitor-interval 7 --nproc-per-node 8 train.py
            - image: other
              env: *env
              command: [python, -m, torch.distributed.run]
              args: ["--rdzv-conf", "last_call_timeout=60", "train.py"]
"""


def test_a_manifest_is_read() -> None:
    """The operator's policy, the containers' environment and what they run, each with its line."""
    job = job_of(yaml=MANIFEST)
    assert (job.min_nodes.value, job.max_nodes.value, job.gpu_count) == (2, 4, 32)
    assert told(job, "max_restarts") == (9, "9", 4) and told(job, "ib_timeout") == (21, "21", 13)
    assert told(job, "monitor_interval_s") == (7.0, "7", 19) and told(job, "last_call_s") == (60.0, "60", 22)
    assert job.doubles == ()


@pytest.mark.parametrize(
    ("yaml", "timeout_s", "gpus"),
    [
        ("stage: sft\nddp_timeout: 180000000\nsave_steps: 500\n", 180_000_000.0, None),
        ("num_machines: 2\nnum_processes: 16\nrdzv_backend: static\n", 600.0, 16),
        ("ENV_VARS:\n  NCCL_IB_TIMEOUT: 21\nMODEL_ARGS:\n  --distributed-timeout-minutes: 60\n", 3600.0, None),
        ("services: {job: {environment: [DEEPSPEED_TIMEOUT=5]}}\n", 300.0, None),
    ],
)
def test_configurations_in_yaml(yaml: str, timeout_s: float, gpus: int | None) -> None:
    """Of LLaMA-Factory, of accelerate, of Megatron's tests, and of a compose file."""
    job = job_of(yaml=yaml)
    assert (job.collective_timeout_s.value, job.gpu_count, job.unread) == (timeout_s, gpus, ())


def test_a_manifest_that_says_only_what_nobody_reads_is_read() -> None:
    """That is a finding, and no error."""
    job = job_of(yaml="env: [{name: NCCL_TIMEOUT, value: 1800}]\n")
    assert [(one.kind, one.setting.name) for one in job.unread] == [("ignored", "NCCL_TIMEOUT")]


def test_an_interval_is_no_second_value_of_whether_to_save() -> None:
    """`save_strategy: no` beside an interval is one finding: that nothing is saved."""
    found = findings_of(job_of(yaml="save_strategy: 'no'\nsave_steps: 500\n"))
    assert [one.rule for one in found] == ["interval-without-checkpoints"]


def test_letters_that_no_file_can_hold_are_told_all_the_same() -> None:
    """Variables of a process may be any bytes, and YAML has halves of letters: both can be written."""
    job = job_of(yaml='ddp_timeout: "\\ud800"\n')
    found = rtk.doctor(variables={"NCCL_IB_TIMEOUT": "\udcff", "TORCH_NCCL_X": "\udcff"})
    for one in (*job.unread, *found.unread):
        assert one.setting.text.encode().isascii() and one.why.encode()
    assert len(job.unread) == 1 and len(found.unread) == 2


@pytest.mark.parametrize(
    ("python", "timeout_s"),
    [
        ("Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=2))])", 120.0),
        ("deepspeed.init_distributed(timeout=timedelta(minutes=3))", 180.0),
        ("Trainer(strategy=DDPStrategy(timeout=timedelta(hours=1)))", 3600.0),
        ("Trainer(strategy=FSDPStrategy())", 1800.0),
        ("TrainingArguments('out', ddp_timeout=7200, save_steps=0.1)", 7200.0),
        ("SFTConfig(output_dir='out')", 1800.0),
        ("TrainingArguments(ddp_timeout=T)", None),
    ],
)
def test_time_outs_of_other_frameworks_in_python(python: str, timeout_s: float | None) -> None:
    """Of accelerate, DeepSpeed, Lightning and transformers, each with its own default; what only the script knows is
    neither of them."""
    job = job_of(python=python)
    assert (job.init_timeout_s.value, "init_timeout_s" in job.unknown) == (timeout_s, timeout_s is None)
