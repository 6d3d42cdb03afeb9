"""Rules about torchrun and ft_launcher: who restarts what, and who is told."""

import math
from collections.abc import Iterator

from ....schemas.quantities import print_time
from ..settings import JobSettings
from .rule import Broken, broken, rule

_AGENT = "pytorch/pytorch torch/distributed/elastic/agent/server/api.py, _invoke_run (2.13)"
_RUN = "pytorch/pytorch torch/distributed/run.py:491-495 (2.13)"
_DYNAMIC = "pytorch/pytorch torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1384-1431 (2.13)"
_NVRX = "https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/configuration.html"
_NVRX_API = "https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/integration/heartbeats.html"
_STANDALONE = "pytorch/pytorch torch/distributed/run.py (2.13), config_from_args: standalone, “localhost:0”"
_OWN_ADDRESSES = ("localhost", "127.", "[::1]")
DYNAMIC = frozenset({"c10d", "etcd-v2"})
MUCH_LATER = 10.0


@rule(
    "contradiction",
    "launcher min_nodes max_nodes max_restarts",
    "set --max-restarts to the number of failures that the job may survive",
    _AGENT,
    _RUN,
    "pytorch/pytorch#111646",
)
def elastic_without_restarts(job: JobSettings) -> Iterator[Broken]:
    """A range of nodes is given, and no restarts: at a node's loss the others' workers fail, and all agents stop."""
    if job.launcher.is_set and job.is_elastic and job.max_restarts.value == 0:
        says = f"the job may have {job.min_nodes.value} to {job.max_nodes.value} nodes, and ends with the first failure"
        yield broken(says, job.max_nodes, job.max_restarts)


@rule(
    "risk",
    "launcher min_nodes max_nodes rendezvous keep_alive_s keep_alives init_timeout_s train_timeout_s",
    "set a short time-out for the collective calls of training: it is what restarts the job",
    "pytorch/pytorch#111646",
    _AGENT,
)
def departure_unheard(job: JobSettings) -> Iterator[Broken]:
    """An elastic job's rendezvous knows soon that a node is gone; its workers wait much longer for the time-out."""
    knows_s, waits = job.keep_alive_s.value * job.keep_alives.value, job.collective_timeout_s
    if (
        job.launcher.is_set
        and job.is_elastic
        and job.rendezvous.value in DYNAMIC
        and waits.value > MUCH_LATER * knows_s
    ):
        says = (
            f"the rendezvous knows after {print_time(knows_s)} that a node is gone, and restarts nobody for it: the "
            f"workers hang in their collective calls for {print_time(waits.value)}"
        )
        yield broken(says, job.max_nodes, job.keep_alive_s, waits)


@rule(
    "risk",
    "launcher rendezvous max_nodes slurm_nodes max_restarts kill_on_bad_exit step_wait_s",
    "use --rdzv-backend c10d with --rdzv-endpoint, or let Slurm end the step (srun --kill-on-bad-exit=1)",
    "pytorch/pytorch#146371",
    "pytorch/pytorch torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py, num_nodes_waiting (2.13)",
)
def static_agents_alone(job: JobSettings) -> Iterator[Broken]:
    """Several nodes meet by the static rendezvous, and no scheduler ends all when one fails."""
    is_ended = job.kill_on_bad_exit.value or job.step_wait_s.value > 0
    many = job.nodes is not None and job.nodes > 1
    if job.launcher.is_set and job.rendezvous.value == "static" and many and not is_ended:
        says = "with the static rendezvous the agents of other nodes are never told that one has failed or restarts"
        yield broken(says, job.rendezvous, job.max_nodes, job.max_restarts)


@rule(
    "contradiction",
    "rendezvous plain_timeout_s join_timeout_s",
    "set join_timeout instead",
    _DYNAMIC,
    "one-covenant/basilica#492",
)
def rendezvous_timeout_unread(job: JobSettings) -> Iterator[Broken]:
    """--rdzv-conf timeout is set for a rendezvous that reads join_timeout."""
    if job.plain_timeout_s.value is not None and job.rendezvous.value in DYNAMIC:
        says = (
            f"the {job.rendezvous.value} rendezvous does not read timeout={job.plain_timeout_s.told.text}: nodes have "
            f"{print_time(job.join_timeout_s.value)} to join"
        )
        yield broken(says, job.plain_timeout_s, job.rendezvous, job.join_timeout_s)


@rule(
    "contradiction",
    "min_nodes max_nodes rendezvous plain_timeout_s join_timeout_s last_call_s",
    "set last_call_timeout to what the slowest node needs after the first ones",
    "one-covenant/basilica#493",
    "pytorch/pytorch torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:143-148 (2.13)",
)
def last_call_too_early(job: JobSettings) -> Iterator[Broken]:
    """Nodes are given long to join, and the rendezvous closes soon after the fewest have come."""
    joins = job.plain_timeout_s if job.rendezvous.value == "etcd" else job.join_timeout_s
    if (
        job.is_elastic
        and joins.is_set
        and joins.value is not None
        and joins.value >= MUCH_LATER * job.last_call_s.value
    ):
        says = (
            f"nodes have {print_time(joins.value)} to join, but once {job.min_nodes.value} have come the rendezvous "
            f"closes after {print_time(job.last_call_s.value)}"
        )
        yield broken(says, joins, job.last_call_s, job.min_nodes)


@rule(
    "contradiction",
    "rendezvous last_call_s monitor_interval_s",
    "make last_call_timeout twice --monitor-interval at least",
    "pytorch/pytorch#72098",
)
def last_call_unseen(job: JobSettings) -> Iterator[Broken]:
    """Agents look less often than the last call lasts."""
    if job.rendezvous.value in {"etcd", *DYNAMIC} and job.last_call_s.value < 2 * job.monitor_interval_s.value:
        says = (
            f"agents look every {print_time(job.monitor_interval_s.value)}, and the last call lasts "
            f"{print_time(job.last_call_s.value)}: running nodes miss it"
        )
        yield broken(says, job.last_call_s, job.monitor_interval_s)


@rule(
    "contradiction",
    "first_heartbeat_s rank_heartbeat_s",
    "make --ft-initial-rank-heartbeat-timeout the longer one",
    _NVRX_API,
)
def first_heartbeat_too_early(job: JobSettings) -> Iterator[Broken]:
    """The first heartbeat, with all initialization before it, has less time than those that follow."""
    first, later = job.first_heartbeat_s, job.rank_heartbeat_s
    if first.value is not None and later.value is not None and first.value < later.value < math.inf:
        says = f"the first heartbeat has {print_time(first.value)}, the later ones have {print_time(later.value)}"
        yield broken(says, first, later)


@rule(
    "risk",
    "launcher first_heartbeat_s rank_heartbeat_s step_section_s out_of_section_s",
    "give --ft-rank-section-timeouts (setup, step, checkpointing) or --ft-rank-heartbeat-timeout",
    _NVRX,
)
def ft_watches_nothing(job: JobSettings) -> Iterator[Broken]:
    """ft_launcher is used with its heartbeats off, and without sections."""
    watchers = (job.rank_heartbeat_s, job.step_section_s, job.out_of_section_s)
    are_off = all(one.value is None or one.value == math.inf for one in watchers)
    if job.launcher.value == "ft_launcher" and job.rank_heartbeat_s.is_set and are_off:
        yield broken(
            "ft_launcher notices no hang: heartbeats are off, and no section has a time-out", job.rank_heartbeat_s
        )


@rule(
    "contradiction",
    "rank_heartbeat_s checkpoint_section_s save_s",
    "make it longer than the longest save",
    _NVRX_API,
    "flagos-ai/FlagScale#1267",
)
def heartbeat_before_save(job: JobSettings) -> Iterator[Broken]:
    """A save takes longer than a rank may be silent: heartbeats are not sent while a checkpoint is saved or loaded."""
    for limit in (job.rank_heartbeat_s, job.checkpoint_section_s):
        if job.save_s.value is not None and limit.value is not None and job.save_s.value >= limit.value:
            says = (
                f"a save takes {print_time(job.save_s.value)}, and a rank that is silent for {print_time(limit.value)} "
                "is killed"
            )
            yield broken(says, limit, job.save_s)


@rule(
    "contradiction",
    "launcher max_nodes min_nodes kill_on_bad_exit",
    "set --kill-on-bad-exit=0 for srun, or give a single number of nodes",
    "https://slurm.schedmd.com/srun.html#OPT_kill-on-bad-exit",
)
def slurm_kills_elastic(job: JobSettings) -> Iterator[Broken]:
    """torchrun may go on with fewer nodes, and srun kills all of them when one agent fails."""
    if job.launcher.is_set and job.is_elastic and job.kill_on_bad_exit.value:
        says = "torchrun could go on with fewer nodes, but srun kills all of them as soon as one agent fails"
        yield broken(says, job.max_nodes, job.kill_on_bad_exit)


@rule(
    "contradiction",
    "standalone endpoint master_address max_nodes",
    "take --standalone out, and give --rdzv-backend c10d with --rdzv-endpoint HOST:PORT",
    _STANDALONE,
    "openvla/openvla#175",
)
def standalone_of_several(job: JobSettings) -> Iterator[Broken]:
    """--standalone is given to a launcher of several nodes: each meets itself alone, whatever address is given."""
    if not job.standalone.value or (job.max_nodes.is_set and job.max_nodes.value == 1):
        return
    several = job.max_nodes if job.max_nodes.value is not None else None
    elsewhere = [one for one in (job.endpoint, job.master_address) if not one.told.text.startswith(_OWN_ADDRESSES)]
    named = next((one for one in (*elsewhere, several) if one is not None and one.is_set), None)
    if named is not None:
        yield broken("with --standalone each node meets at its own localhost, and waits there", job.standalone, named)


@rule(
    "contradiction",
    "rendezvous endpoint master_address standalone max_nodes",
    "give --rdzv-endpoint HOST:PORT in place of --master-addr",
    "pytorch/pytorch torch/distributed/run.py (2.13), --master-addr: “only used for static rendezvous”",
    "lm-sys/FastChat#3221",
    "hpcaitech/ColossalAI#4009",
    "ymcui/Chinese-LLaMA-Alpaca-2#274",
)
def master_address_unread(job: JobSettings) -> Iterator[Broken]:
    """--master-addr is given for the c10d rendezvous, which reads --rdzv-endpoint: each node meets itself alone."""
    is_read = job.rendezvous.value not in DYNAMIC or job.endpoint.is_set or job.standalone.value
    if job.master_address.is_set and not is_read and job.max_nodes.value != 1:
        says = (
            f"the {job.rendezvous.value} rendezvous does not read --master-addr: each node meets at its own localhost"
        )
        yield broken(says, job.master_address, job.rendezvous, job.endpoint)


RULES = (
    elastic_without_restarts, departure_unheard, static_agents_alone, rendezvous_timeout_unread, last_call_too_early,
    last_call_unseen, first_heartbeat_too_early, ft_watches_nothing, heartbeat_before_save, slurm_kills_elastic,
    standalone_of_several, master_address_unread,
)  # fmt: skip
