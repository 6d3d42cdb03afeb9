"""All rules, in the order in which findings of one severity are told."""

from . import checkpoints, launching, process_groups, reading, replicas, slurm
from .rule import Rule

RULES: tuple[Rule, ...] = (
    *reading.RULES,
    *replicas.RULES,
    *process_groups.RULES,
    *launching.RULES,
    *slurm.RULES,
    *checkpoints.RULES,
)
