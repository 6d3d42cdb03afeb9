"""What speaks for an episode, in sentences, and which rank it comes from where several have told of themselves."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ....schemas.detection import Episode, Scope
from .ranks import Sample

SLOW = 1.1  # over usual (section 4.2)
# A rank is to blame where it is the slowest in so large a share of an episode's samples, by so much over the others.
OFTEN, APART = 0.8, 1.1


@dataclass(frozen=True)
class Witness:
    """Where an episode comes from, and what speaks for it."""

    scope: Scope
    evidence: tuple[str, ...]


def witness(episode: Episode, samples: Sequence[Sample], usual_s: float | None, unit: str) -> Witness:
    """Look at the samples of an episode.

    Args:
        episode: that they are of.
        samples: from its onset to its end; of a very long one, the last of them.
        usual_s: what an iteration takes when nothing is slow.
        unit: of times, such as `s` or `s a token`.
    """
    sentences = [_share_of_slow(samples, usual_s, unit), *_iterations(episode, samples)]
    rank, sentence = _slowest_rank(samples)
    scope = Scope() if rank is None else Scope("worker", (rank,))
    return Witness(scope, tuple(one for one in (*sentences, sentence) if one))


def _share_of_slow(samples: Sequence[Sample], usual_s: float | None, unit: str) -> str:
    if usual_s is None or not samples:
        return ""
    slow = sum(sample.time_s > SLOW * usual_s for sample in samples)
    return f"{slow} of {len(samples)} samples above {SLOW:.2f} x the usual {usual_s:.4g} {unit}"


def _iterations(episode: Episode, samples: Sequence[Sample]) -> list[str]:
    """Which iterations the samples are of, where that is something else."""
    if not samples or samples[0].iteration in (None, episode.onset):
        return []
    to = "on" if episode.relief is None else f"to {samples[-1].iteration}"
    return [f"from iteration {samples[0].iteration} {to}"]


def _slowest_rank(samples: Sequence[Sample]) -> tuple[str | None, str]:
    told = [sample for sample in samples if sample.slowest is not None]
    if not told:
        return None, ""
    ((rank, count),) = Counter(sample.slowest for sample in told).most_common(1)
    excess = median(sample.excess for sample in told if sample.slowest == rank)
    is_apart = count >= OFTEN * len(told) and excess >= APART
    if not is_apart:
        return None, "no rank is slower than the others"
    return rank, f"rank {rank} is the slowest in {count} of {len(told)} samples, {excess:.2f} x the others' median"
