"""Rules about Slurm's batch scripts: who is signalled, what ends when, and who starts it again."""

from collections.abc import Iterator

from ....schemas.quantities import print_time
from ..settings import JobSettings
from .rule import Broken, broken, rule

_SBATCH, _SRUN = "https://slurm.schedmd.com/sbatch.html", "https://slurm.schedmd.com/srun.html"
SIGNAL_LEAD_S = 60.0  # of sbatch --signal without a time


def signal_parts(text: str) -> tuple[bool, str, float]:
    """What `--signal=[B:]SIGNAL[@SECONDS]` says: whether only the shell is meant, the signal, and how long before."""
    head, _, lead = text.partition("@")
    options, _, name = head.rpartition(":")
    return "B" in options, name, float(lead) if lead.isdecimal() else SIGNAL_LEAD_S


@rule(
    "contradiction",
    "signal step",
    "start the program with srun; or signal the shell (--signal=B:…) and pass it on with a trap",
    f"{_SBATCH}#OPT_signal: “all job steps will be signaled, but not the batch shell itself”",
    "Lightning-AI/pytorch-lightning#6626",
    "martius-lab/cluster_utils#64",
)
def signal_reaches_nobody(job: JobSettings) -> Iterator[Broken]:
    """--signal is given without B:, and the script starts nothing by srun: only steps are signalled."""
    if job.signal.value is not None and not signal_parts(job.signal.value)[0] and not job.step.value:
        yield broken("only steps that srun has started get the signal, and the script starts none", job.signal)


@rule(
    "contradiction",
    "signal trap",
    "set a trap for the signal that passes it on, and wait for the program in the background",
    f"{_SBATCH}#OPT_signal",
)
def signal_ends_shell(job: JobSettings) -> Iterator[Broken]:
    """--signal=B: is given, and the script has no trap: the signal ends the shell."""
    if job.signal.value is not None and signal_parts(job.signal.value)[0] and not job.trap.value:
        yield broken("the signal goes to the shell only, which has no trap for it, and ends", job.signal)


@rule(
    "contradiction",
    "signal save_s iteration_s",
    "signal earlier: a save and an iteration before the end, and some more",
    f"{_SBATCH}#OPT_signal",
    "NVIDIA-NeMo/Automodel#3007",
)
def signal_too_late(job: JobSettings) -> Iterator[Broken]:
    """The signal comes less than an iteration and a save before the time is up."""
    if job.signal.value is None or job.save_s.value is None:
        return
    lead_s, needs_s = signal_parts(job.signal.value)[2], job.save_s.value + (job.iteration_s.value or 0.0)
    if lead_s < needs_s:
        says = f"the signal comes {print_time(lead_s)} before the end; iteration and save take {print_time(needs_s)}"
        yield broken(says, job.signal, job.save_s)


@rule(
    "risk",
    "step is_batch kill_on_bad_exit step_wait_s step_no_kill slurm_nodes slurm_tasks min_nodes max_nodes",
    "give srun --kill-on-bad-exit=1, or --wait=60",
    f"{_SRUN}#OPT_kill-on-bad-exit",
    "pytorch/pytorch#76287",
    "meta-pytorch/torchx#479",
)
def step_outlives_failure(job: JobSettings) -> Iterator[Broken]:
    """srun starts several tasks that need each other, and is not told to end all when one fails (KillOnBadExit is 0 by
    default)."""
    counts = (job.slurm_nodes.value, job.slurm_tasks.value)
    is_alone = all(count in (None, 1) for count in counts) and any(count == 1 for count in counts)
    is_told = job.kill_on_bad_exit.value is not None or job.step_wait_s.value > 0 or job.step_no_kill.value
    if job.step.value and job.is_batch.value and not (is_alone or is_told or job.is_elastic):
        says = "when one task fails, srun leaves the others running: they hang, and the allocation with them"
        yield broken(says, job.step, job.kill_on_bad_exit)


@rule(
    "contradiction",
    "launcher min_nodes max_nodes is_batch no_kill",
    "give sbatch and srun --no-kill",
    f"{_SBATCH}#OPT_no-kill: “By default Slurm terminates the entire job allocation if any node fails”",
)
def node_failure_ends_elastic(job: JobSettings) -> Iterator[Broken]:
    """torchrun may go on with fewer nodes, and Slurm ends the whole job when a node fails."""
    if job.launcher.is_set and job.is_elastic and job.is_batch.value and not job.no_kill.value:
        says = "torchrun could go on without a node, but Slurm ends the whole job when one fails"
        yield broken(says, job.max_nodes, job.no_kill)


@rule(
    "contradiction",
    "no_kill kill_on_bad_exit",
    "set --kill-on-bad-exit=0, or leave --no-kill out",
    f"{_SBATCH}#OPT_no-kill",
    f"{_SRUN}#OPT_kill-on-bad-exit",
)
def kept_and_killed(job: JobSettings) -> Iterator[Broken]:
    """The job outlives a lost node (--no-kill), and srun kills all tasks when one fails."""
    if job.no_kill.value and job.kill_on_bad_exit.value:
        says = "the job is to outlive a lost node, but srun kills all tasks as soon as one fails with it"
        yield broken(says, job.no_kill, job.kill_on_bad_exit)


@rule(
    "risk",
    "is_batch requeue resubmits max_restarts launcher",
    "end the script with scontrol requeue $SLURM_JOB_ID where training failed, or give torchrun --max-restarts",
    f"{_SBATCH}#OPT_requeue",
    "https://slurm.schedmd.com/scontrol.html",
)
def nothing_starts_again(job: JobSettings) -> Iterator[Broken]:
    """Nothing starts training again after it has failed: no requeue, no restarts."""
    if job.is_batch.value and not (job.requeue.value or job.resubmits.value or job.max_restarts.value > 0):
        says = "after a failure the job ends, and waits for somebody to submit it again"
        yield broken(says, job.requeue, *([job.max_restarts] if job.launcher.is_set else []))


@rule(
    "risk",
    "is_batch requeue resubmits open_mode",
    "add #SBATCH --open-mode=append",
    f"{_SBATCH}#OPT_open-mode",
    "NVIDIA/pyxis#129",
)
def requeue_overwrites_log(job: JobSettings) -> Iterator[Broken]:
    """The job is requeued, and its output file is opened anew each time."""
    again = job.requeue if job.requeue.value else job.resubmits
    is_requeued = job.requeue.value or (job.resubmits.value and job.resubmits.told.name.startswith("scontrol"))
    if job.is_batch.value and is_requeued and job.open_mode.value != "append":
        yield broken("each new start may overwrite the log that says why the last one ended", again, job.open_mode)


@rule(
    "contradiction",
    "signal launched_by_step launcher signals_to_handle",
    "signal the shell (--signal=B:…) and let it tell the training, say by a file; or start the ranks with srun itself",
    f"{_SBATCH}#OPT_signal",
    "swiss-ai/Megatron-LM#3",
    "pytorch/pytorch torch/distributed/elastic/multiprocessing/subprocess_handler/subprocess_handler.py:66 (2.13): "
    "start_new_session",
)
def signal_ends_launcher(job: JobSettings) -> Iterator[Broken]:
    """Steps get a signal that torchrun does not handle: it ends torchrun, and never reaches the ranks, which have
    sessions of their own."""
    if job.signal.value is None or not job.launched_by_step.value:
        return
    is_for_shell, name, _ = signal_parts(job.signal.value)
    handled = {f"SIG{one.strip().upper().removeprefix('SIG')}" for one in job.signals_to_handle.value.split(",")}
    named = f"SIG{name.upper().removeprefix('SIG')}"
    if not is_for_shell and not name.isdecimal() and named not in handled:
        says = f"{named} ends {job.launcher.value}, which does not handle it; the ranks behind it never see it"
        yield broken(says, job.signal, job.launched_by_step)


@rule(
    "contradiction",
    "launched_by_step launcher slurm_tasks_per_node step_tasks_per_node step_tasks step_nodes slurm_nodes",
    "set --ntasks-per-node=1: the launcher itself starts a process for each GPU",
    "awslabs/awsome-distributed-ai#1112",
    "pytorch/pytorch torch/distributed/elastic/agent/server/local_elastic_agent.py:121 (2.13): “deployed per host”",
)
def several_agents_a_node(job: JobSettings) -> Iterator[Broken]:
    """srun starts several tasks on a node, and each of them is a launcher that starts processes for all its GPUs."""
    own, whole = job.step_tasks_per_node, job.slurm_tasks_per_node
    each = own if own.value is not None else whole
    nodes = job.step_nodes.value or job.slurm_nodes.value
    is_one = job.step_tasks.value is not None and job.step_tasks.value <= (nodes or 1)
    if job.launched_by_step.value and each.value is not None and each.value > 1 and not (is_one and own.value is None):
        says = f"each node has {each.value} tasks, and each task is a {job.launcher.value} for the whole node"
        yield broken(says, each, job.launched_by_step)


@rule(
    "contradiction",
    "launcher slurm_nodes min_nodes max_nodes spread step_nodes launched_by_step",
    "give the launcher as many nodes as Slurm gives (--nnodes $SLURM_NNODES), and start it on each with srun",
    "pytorch/pytorch torch/distributed/run.py (2.13): --nnodes, default “1:1”",
    "pytorch/examples#1012",
)
def nodes_left_out(job: JobSettings) -> Iterator[Broken]:
    """Slurm gives several nodes, and the launcher waits for more, is told of fewer, or is started on the first only."""
    given, most, least = job.slurm_nodes.value, job.max_nodes.value, job.min_nodes.value
    is_whole = job.step_nodes.value is None or job.step_nodes.value == given
    is_accelerate = job.launcher.value.startswith("accelerate")  # a file may tell it, and DeepSpeed start it elsewhere
    if not job.launcher.is_set or given is None or most is None or least is None:
        return
    if least > given:
        says = f"{job.launcher.value} waits for {least} nodes, and Slurm gives {given}"
        yield broken(says, job.min_nodes, job.slurm_nodes)
    elif given > 1 and not job.spread.value and not is_accelerate:
        says = f"Slurm gives {given} nodes, and nothing starts {job.launcher.value} on any but the first"
        yield broken(says, job.slurm_nodes, job.launcher)
    elif given > most and job.launched_by_step.value and is_whole and (job.max_nodes.is_set or not is_accelerate):
        says = f"srun starts {job.launcher.value} on {given} nodes, and tells each that there are {most}"
        yield broken(says, job.slurm_nodes, job.max_nodes)


@rule(
    "contradiction",
    "launched_by_step rendezvous node_rank slurm_nodes max_nodes",
    "let each node fill it in (srun bash -c '… --node-rank $SLURM_NODEID …', in single quotes); or --rdzv-backend c10d",
    "NVIDIA/DeepLearningExamples#1188",
    "ai4d-iasc/trixie#52",
)
def one_rank_for_all(job: JobSettings) -> Iterator[Broken]:
    """srun starts launchers that meet by the static rendezvous, and gives all of them the same --node-rank."""
    many = job.nodes is not None and job.nodes > 1
    if job.launched_by_step.value and job.rendezvous.value == "static" and many and job.node_rank.value is not None:
        says = f"{job.node_rank.told.text} is filled in before srun starts anything: all nodes are told the same rank"
        yield broken(says, job.node_rank, job.rendezvous)


RULES = (
    signal_reaches_nobody, signal_ends_shell, signal_too_late, step_outlives_failure, node_failure_ends_elastic,
    kept_and_killed, nothing_starts_again, requeue_overwrites_log, signal_ends_launcher, several_agents_a_node,
    nodes_left_out, one_rank_for_all,
)  # fmt: skip
