"""Each rule finds what it is about, and nothing where all is in order."""

from dataclasses import fields
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.profilers.diagnosing import findings_of
from rtk.profilers.doctor.costs import costs_of
from rtk.profilers.doctor.known import ENVIRONMENT
from rtk.profilers.doctor.rules.catalogue import RULES
from rtk.profilers.doctor.rules.rule import Rule
from rtk.profilers.doctor.settings import JobSettings
from rtk.profilers.doctor.young_daly import best_interval_s, lost_share

from .jobs import job_of

FIELDS = {one.name for one in fields(JobSettings)} - {"unknown"}  # which counts for all rules alike


class Case(NamedTuple):
    """Settings that break a rule, the words of the finding, and settings beside them that do not."""

    broken: dict[str, Any]
    says: str
    whole: dict[str, Any]


def env(text: str) -> dict[str, Any]:
    return {"environment": text}


def run(line: str) -> dict[str, Any]:
    return {"lines": [line]}


def titan(train: int = 200, replicas_ms: int = 120_000, initial: int = 300, **others: Any) -> dict[str, Any]:
    comm = f"[comm]\ninit_timeout_seconds = {initial}\ntrain_timeout_seconds = {train}\n"
    replicas = f"[fault_tolerance]\nenable = true\nprocess_group_timeout_ms = {replicas_ms}\n"
    return {"toml": comm + replicas, **others}


def batch(header: str, body: str = "srun --kill-on-bad-exit=1 python train.py") -> dict[str, Any]:
    return {"script": f"#!/bin/bash\n{header}\n{body}\n"}


def elastic(arguments: str = "--max-restarts 3") -> str:
    return f"torchrun --nnodes 2:4 --nproc-per-node 8 --rdzv-backend c10d {arguments} train.py"


SHORT = "python -c 'x' --distributed-timeout-seconds-after-init 100"
NODES = "#SBATCH --nodes=4"
INTERVAL = "[checkpoint]\ninterval = 100\n"
SAVES = "[checkpoint]\nenable = true\ninterval = 100\n"
ENOUGH = "TORCHFT_TIMEOUT_SEC=120\nTORCHFT_QUORUM_TIMEOUT_SEC=600\n"

CASES = {
    "nobody-reads-it": Case(
        env("NCCL_CONNECT_TIMEOUT=3600"), "neither NCCL 2.32 nor torch 2.13 reads it", env("NCCL_SOCKET_RETRY_CNT=34")
    ),
    "value-makes-no-sense": Case(
        env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=10m"), "is not a number", env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1000")
    ),
    "set-twice": Case(
        {"environment": "NCCL_IB_TIMEOUT=22", "script": "export NCCL_IB_TIMEOUT=20\n"},
        "set to 20 and to 22: 20 counts",
        {"environment": "NCCL_IB_TIMEOUT=22", "script": "export NCCL_IB_TIMEOUT=22\n"},
    ),
    "replicas-after-training": Case(titan(train=100), "replicas wait 2 min for each other", titan()),
    "replicas-start-as-they-train": Case(titan(train=300), "no more than a training step", titan()),
    "quorum-before-step": Case(titan(), "crashes after 60 s", titan(environment=ENOUGH)),
    "manager-before-group": Case(titan(), "gives up after 60 s", titan(environment=ENOUGH)),
    "torchtitan-overrides": Case(
        titan(environment="TORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
        "to 3, whatever it was",
        titan(environment="TORCH_NCCL_ASYNC_ERROR_HANDLING=3"),
    ),
    "blocking-and-async": Case(
        env("TORCH_NCCL_BLOCKING_WAIT=1\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
        "uses the blocking wait only",
        env("TORCH_NCCL_BLOCKING_WAIT=0\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
    ),
    "blocking-wait": Case(env("NCCL_BLOCKING_WAIT=1"), "waits for each collective", env("NCCL_BLOCKING_WAIT=0")),
    "timeout-without-watchdog": Case(
        {"environment": "TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "lines": [SHORT]},
        "never ends anything",
        {"lines": [SHORT]},
    ),
    "watchdog-off": Case(
        env("TORCH_NCCL_ASYNC_ERROR_HANDLING=0"),
        "hangs for ever",
        env("TORCH_NCCL_ASYNC_ERROR_HANDLING=0\nTORCH_NCCL_BLOCKING_WAIT=1"),
    ),
    "heartbeat-without-monitor": Case(
        env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=900\nTORCH_NCCL_ENABLE_MONITORING=0"),
        "watched by nobody",
        env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=900\nTORCH_NCCL_ENABLE_MONITORING=1"),
    ),
    "monitor-off": Case(
        env("TORCH_NCCL_ENABLE_MONITORING=0"), "watchdog itself hangs", env("TORCH_NCCL_ENABLE_MONITORING=1")
    ),
    "heartbeat-races-timeout": Case(
        env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600"), "time out together", env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=480")
    ),
    "dump-without-recorder": Case(
        env("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_NCCL_TRACE_BUFFER_SIZE=0"),
        "nothing is recorded",
        env("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_FR_BUFFER_SIZE=2000\nTORCH_NCCL_TRACE_BUFFER_SIZE=2000"),
    ),
    "dump-without-skipping-cleanup": Case(
        env("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
        "the dump says nothing",
        env("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_NCCL_ASYNC_ERROR_HANDLING=3"),
    ),
    "errors-swallowed": Case(
        {"environment": "TORCH_NCCL_RETHROW_CUDA_ERRORS=0", "lines": ["torchrun train.py"]},
        "torchrun sees no failure",
        {"environment": "TORCH_NCCL_RETHROW_CUDA_ERRORS=0", "lines": ["ft_launcher train.py"]},
    ),
    "long-hang": Case(
        run("torchrun pretrain.py --distributed-timeout-minutes 60"),
        "a hang costs 60 min",
        run("torchrun pretrain.py --distributed-timeout-minutes 60 --distributed-timeout-seconds-after-init 300"),
    ),
    "training-waits-longer": Case(titan(train=400), "training waits 6.667 min", titan()),
    "groups-keep-the-default": Case(
        {"python": "init_process_group(timeout=timedelta(hours=2))\nnew_group([0])"},
        "wait 10 min, not the 2 h",
        {"python": "init_process_group(timeout=timedelta(hours=2))\nnew_group([0], timeout=timedelta(hours=2))"},
    ),
    "ib-never-times-out": Case(env("NCCL_IB_TIMEOUT=0"), "0 means for ever", env("NCCL_IB_TIMEOUT=23")),
    "ib-too-many-retries": Case(env("NCCL_IB_RETRY_CNT=13"), "at most 7 retries", env("NCCL_IB_RETRY_CNT=7")),
    "ib-outlasts-collective": Case(env("NCCL_IB_TIMEOUT=25"), "the link is never named", env("NCCL_IB_TIMEOUT=23")),
    "elastic-without-restarts": Case(run(elastic("")), "ends with the first failure", run(elastic())),
    "departure-unheard": Case(
        run(elastic()), "knows after 15 s", run(elastic() + " --distributed-timeout-seconds-after-init 100")
    ),
    "static-agents-alone": Case(
        run("torchrun --nnodes 2 train.py"), "never told", run("torchrun --nnodes 2 --rdzv-backend c10d train.py")
    ),
    "rendezvous-timeout-unread": Case(
        run(elastic("--rdzv-conf timeout=900")),
        "does not read timeout=900",
        run(elastic("--rdzv-conf join_timeout=900")),
    ),
    "last-call-too-early": Case(
        run(elastic("--rdzv-conf join_timeout=900")),
        "closes after 30 s",
        run(elastic("--rdzv-conf join_timeout=900,last_call_timeout=300")),
    ),
    "last-call-unseen": Case(
        run(elastic("--monitor-interval 20")), "running nodes miss it", run(elastic("--monitor-interval 5"))
    ),
    "first-heartbeat-too-early": Case(
        run("ft_launcher --ft-initial-rank-heartbeat-timeout=60 --ft-rank-heartbeat-timeout=300 train.py"),
        "the first heartbeat has 60 s",
        run("ft_launcher --ft-initial-rank-heartbeat-timeout=600 --ft-rank-heartbeat-timeout=300 train.py"),
    ),
    "ft-watches-nothing": Case(
        run("ft_launcher --ft-rank-heartbeat-timeout=none train.py"),
        "notices no hang",
        run("ft_launcher --ft-rank-heartbeat-timeout=none --ft-rank-section-timeouts=step:120 train.py"),
    ),
    "heartbeat-before-save": Case(
        {**run("ft_launcher --ft-rank-heartbeat-timeout=120 train.py"), "save_s": 200.0},
        "silent for 2 min is killed",
        {**run("ft_launcher --ft-rank-heartbeat-timeout=120 train.py"), "save_s": 20.0},
    ),
    "slurm-kills-elastic": Case(
        batch(NODES, f"srun --kill-on-bad-exit=1 {elastic()}"),
        "srun kills all of them",
        batch(NODES, f"srun --kill-on-bad-exit=0 {elastic()}"),
    ),
    "signal-reaches-nobody": Case(
        batch("#SBATCH --signal=USR1@90", "python train.py"),
        "only steps that srun has started",
        batch("#SBATCH --signal=USR1@90"),
    ),
    "signal-ends-shell": Case(
        batch("#SBATCH --signal=B:USR1@90"),
        "no trap for it",
        batch("#SBATCH --signal=B:USR1@90", "trap : USR1\nsrun x &"),
    ),
    "signal-too-late": Case(
        {**batch("#SBATCH --signal=TERM"), "save_s": 50.0, "iteration_s": 20.0},
        "iteration and save take 70 s",
        {**batch("#SBATCH --signal=TERM@120"), "save_s": 50.0, "iteration_s": 20.0},
    ),
    "step-outlives-failure": Case(
        batch(NODES, "srun python train.py"), "the others running", batch(NODES, "srun --wait=60 python train.py")
    ),
    "node-failure-ends-elastic": Case(
        batch(NODES, f"srun {elastic()}"),
        "ends the whole job",
        batch(f"{NODES}\n#SBATCH --no-kill", f"srun {elastic()}"),
    ),
    "kept-and-killed": Case(
        batch("#SBATCH --no-kill"), "outlive a lost node", batch("#SBATCH --no-kill", "srun --kill-on-bad-exit=0 x")
    ),
    "nothing-starts-again": Case(
        batch(NODES), "submit it again", batch(NODES, "srun -K python x\nscontrol requeue $SLURM_JOB_ID")
    ),
    "requeue-overwrites-log": Case(
        batch("#SBATCH --requeue"), "overwrite the log", batch("#SBATCH --requeue\n#SBATCH --open-mode=append")
    ),
    "signal-ends-launcher": Case(
        batch("#SBATCH --signal=USR1@90", "srun -K bash -c 'torchrun --nnodes 1 train.py'"),
        "SIGUSR1 ends torchrun",
        batch("#SBATCH --signal=TERM@90", "srun -K bash -c 'torchrun --nnodes 1 train.py'"),
    ),
    "several-agents-a-node": Case(
        batch(f"{NODES} --ntasks-per-node=8", "srun -K torchrun --nnodes 4 --rdzv-backend c10d train.py"),
        "each node has 8 tasks, and each task is a torchrun",
        batch(f"{NODES} --ntasks-per-node=8", "srun -K -N4 -n4 torchrun --nnodes 4 --rdzv-backend c10d train.py"),
    ),
    "nodes-left-out": Case(
        batch(NODES, "srun -K torchrun --nproc-per-node 8 --rdzv-backend c10d train.py"),
        "srun starts torchrun on 4 nodes, and tells each that there are 1",
        batch(NODES, "srun -K torchrun --nnodes $SLURM_NNODES --rdzv-backend c10d train.py"),
    ),
    "one-rank-for-all": Case(
        batch(NODES, "srun -K torchrun --nnodes 4 --node_rank $SLURM_NODEID train.py"),
        "all nodes are told the same rank",
        batch(NODES, "srun -K bash -c 'torchrun --nnodes 4 --node_rank $SLURM_NODEID train.py'"),
    ),
    "standalone-of-several": Case(
        run("torchrun --standalone --nnodes=$N --master_addr=$HOST train.py"),
        "waits there",
        run("torchrun --standalone --nnodes=1 --nproc-per-node 8 train.py"),
    ),
    "master-address-unread": Case(
        run("torchrun --nnodes 2 --rdzv_backend=c10d --master_addr GPU03 train.py"),
        "does not read --master-addr",
        run("torchrun --nnodes 2 --rdzv_backend=c10d --rdzv_endpoint GPU03:29400 --master_addr GPU03 train.py"),
    ),
    "exits-after-limit": Case(
        batch("#SBATCH --time=3:00:00", "srun -K python pretrain.py --exit-duration-in-mins 220"),
        "after 3.667 h, and Slurm ends it after 3 h",
        batch("#SBATCH --time=4:00:00", "srun -K python pretrain.py --exit-duration-in-mins 220"),
    ),
    "interval-without-checkpoints": Case({"toml": INTERVAL}, "no checkpoint is saved", {"toml": SAVES}),
    "ends-before-checkpoint": Case(
        {**batch("#SBATCH --time=1:00:00"), "checkpoint_every": 1000, "iteration_s": 10.0},
        "the job ends after 60 min",
        {**batch("#SBATCH --time=4:00:00"), "checkpoint_every": 1000, "iteration_s": 10.0},
    ),
    "interval-far-from-best": Case(
        {"toml": SAVES, "iteration_s": 100.0, "save_s": 20.0, "mtbf_s": 36_000.0},
        "every 12 (20 min) would lose 3.3 %",
        {"toml": SAVES, "iteration_s": 12.0, "save_s": 20.0, "mtbf_s": 36_000.0},
    ),
}


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (batch(NODES, "torchrun --nnodes 4 train.py"), "nothing starts torchrun on any but the first"),
        (batch(NODES, "srun -K torchrun --nnodes 8 train.py"), "waits for 8 nodes, and Slurm gives 4"),
        (batch(NODES, "srun -K -N1 torchrun train.py &\nsrun -K -N1 torchrun train.py &"), None),
        (batch(NODES, "srun -K torchrun --nnodes $N train.py"), None),
        (batch("#SBATCH --nodes=2-4", f"srun {elastic()}"), None),
        (batch(NODES, "srun -K accelerate launch --config_file a.yaml train.py"), None),
        (batch(NODES, "accelerate launch --deepspeed_hostfile hosts --num_machines 4 train.py"), None),
    ],
)
def test_nodes_are_left_out_in_other_ways(script: dict[str, Any], says: str | None) -> None:
    """Nobody starts the launcher there, or it waits for more than there are; steps of one node each, numbers that only
    the job knows, and ranges are left alone."""
    found = [one.says for one in findings_of(job_of(**script)) if one.rule == "nodes-left-out"]
    assert (len(found) == 1 and says in found[0]) if says else found == []


@pytest.mark.parametrize(
    "again", ["#SBATCH --array=1-10%1", "#SBATCH --dependency=singleton", "until srun -K x; do sleep 9; done"]
)
def test_a_job_may_start_again_in_other_ways(again: str) -> None:
    """An array whose jobs run one after the other, jobs of one name that do, and a loop until training is done."""
    assert "nothing-starts-again" not in {one.rule for one in findings_of(job_of(**batch(again)))}


def test_lines_of_one_mistake_are_one_finding() -> None:
    """Five #SBATCH lines below the first command are told at once, with the place of each."""
    (found,) = (one for one in findings_of(job_of(script="set -e\n" + "#SBATCH --nodes=2\n" * 5)) if one.settings)
    assert [one.line for one in found.settings] == [2, 3, 4, 5, 6]


def test_every_rule_has_its_cases() -> None:
    """The table has all rules; no two share a name."""
    assert [rule.id for rule in RULES if rule.id not in CASES] == []
    assert len({rule.id for rule in RULES}) == len(RULES) == len(CASES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_finds_what_it_is_about(rule: Rule) -> None:
    """It says what is wrong, with the settings and a source; with those beside them it says nothing."""
    case = CASES[rule.id]
    (found,) = rule.findings(job_of(**case.broken))
    assert case.says in found.says
    assert found.settings and found.fix and found.sources and found.severity == rule.severity
    assert list(rule.findings(job_of(**case.whole))) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_reads_what_it_says(rule: Rule) -> None:
    """No rule asks for a field that it does not name, and none names one that there is not."""
    asked: set[str] = set()

    class Watched(JobSettings):
        def __getattribute__(self, name: str) -> Any:
            asked.update({name} & FIELDS)
            return super().__getattribute__(name)

    for settings in (CASES[rule.id].broken, CASES[rule.id].whole):
        job = job_of(**settings)
        list(rule.check(Watched(**{name: getattr(job, name) for name in FIELDS})))
    assert asked <= set(rule.reads) <= FIELDS


@given(
    st.dictionaries(
        st.sampled_from(sorted(ENVIRONMENT)), st.sampled_from(["0", "1", "3", "60", "600", "1e9", "-1", "x", ""])
    )
)
def test_no_environment_is_too_strange(variables: dict[str, str]) -> None:
    """Rules and costs have an answer to whatever stands in an environment, the same each time."""
    job = job_of("\n".join(f"{name}={value}" for name, value in variables.items()), lines=[elastic()])
    assert findings_of(job) == findings_of(job)
    costs = costs_of(job)
    assert costs.gpus == 32 and (costs.hang_s is None) == (costs.hang_gpu_hours is None)


@given(st.floats(1, 1e4), st.floats(1e3, 1e7), st.floats(1, 1e6))
def test_no_interval_is_better_than_youngs(save_s: float, mtbf_s: float, other_s: float) -> None:
    """Saves and redone work take least at sqrt(2 · save · MTBF)."""
    assert lost_share(best_interval_s(save_s, mtbf_s), save_s, mtbf_s) <= lost_share(other_s, save_s, mtbf_s) * (
        1 + 1e-9
    )


def test_dumps_are_made_by_default_and_nobody_has_asked_for_them() -> None:
    """torch's own default is a dump: settings that do without one contradict nothing that somebody has said."""
    job = job_of("TORCH_FR_BUFFER_SIZE=0\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1")
    assert (job.dumps.value, job.dumps.told.text) == (True, "1")
    assert not [one for one in findings_of(job) if one.rule.startswith("dump-")]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --standalone --nnodes=1 --nproc-per-node 8 --master_addr $HOST train.py",
        "torchrun --standalone --nproc-per-node 8 --rdzv-endpoint=localhost:29500 train.py",
        "torchrun --standalone --master-addr 127.0.0.1 train.py",
    ],
)
def test_a_single_node_may_stand_alone_and_say_where(line: str) -> None:
    """What is said of an address is unread there, and does no harm."""
    assert findings_of(job_of(lines=[line])) == ()
