"""Who holds up a job that stands still, settled by what all its workers say together.

A training thread that hangs, in a data loader, on a GPU, or in a sum of an epoch that is over, leaves its process
alive: it beats, and its notice board answers. Those who need something of it wait, those who need something of these
wait as well, and whoever gives up waiting first is itself missed by others, who accuse it. So nobody is judged by the
first accusation, and nobody by an accusation alone: when nothing is committed any more, or somebody has lost touch, the
coordinator asks all, and a thread beside the training thread answers for it (`Whereabouts`). In the relation of who
waits for whom the one to blame is the end of each chain: it waits for nobody, and yet does not do what the plan says.

* `computing`, and nowhere else for most of the limit: it hangs, and is given up, alone. The limit is some iterations
  of the plan, so no operation of it takes so long.
* In an epoch that is over: whoever only waited in it lets go within `LET_GO_S`, or hangs. Whoever does not say where it
  is, or is not where the others are, in two epochs that others entered, hangs too.
* Nobody hangs and all wait: a message was lost. New groups are formed; a link that is dead shows when they are. If that
  changes nothing, two who wait for each other, or one that waits for another that has done all it had to, have a broken
  link; after `FUTILE_EPOCHS` without an iteration the job ends.
* Building a stage, and reading or writing a checkpoint, may take minutes (`LONG_S`), and an epoch with somebody who
  does is not formed before.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...schemas.conditions import Pair, pair_of
from ...schemas.quantities import print_time
from .protocol import Inquiry, Job, Whereabouts

# A job that commits nothing for so many of its iterations, though never for less than the floor, stands still.
STILL_ITERATIONS, FLOOR_S = 5, 10.0
# A training thread that was in one place for this part of the limit has done nothing.
MOST_OF_IT = 0.8
# Waits for other workers are woken when their epoch is over, which takes milliseconds.
LET_GO_S = 5.0
# What may take long: building a stage, copying one, reading and writing checkpoints.
LONG_S = 600.0
# A job whose last holder of some layers hangs waits for it for so many limits, but no longer than for such a thing.
LIMITS_OF_THE_LAST = 10
ABSENCES = 2  # epochs that others entered
# Epochs of the same workers without a commit or anything new about links: after two those are blamed whose words do not
# fit together, after three those who keep silent, or complain, alone; after four nobody knows what else to do.
UNEXPLAINED, SPLIT, FUTILE_EPOCHS = 2, 3, 4

# What a worker that hangs is told to end with, and ends itself with: as if it had been killed by SIGKILL, so that what
# starts killed workers again starts it again.
HUNG = 137
FAILED = 5  # the exit code of a job that cannot go on
INTERRUPTED = 130  # that of a job that was asked to stop, as of a program that Ctrl-C ends

State = Literal["hangs", "absent", "busy", "moves", "rests"]


@dataclass(frozen=True)
class Judgement:
    """What the answers to an inquiry come to.

    Attributes:
        hung: who is to be given up: (worker, why).
        is_busy: somebody has a good reason not to be there yet.
        is_anybody_absent: somebody is not there, or does not say where it is, and it may yet come.
        is_still: nobody does anything, and nobody will.
    """

    hung: tuple[tuple[str, str], ...] = ()
    is_busy: bool = False
    is_anybody_absent: bool = False
    is_still: bool = False


class Standstill:
    """What is known of training threads, and of epochs that came to nothing.

    Args:
        job: whose `stall_limit_s`, or whose plan's iteration time, says what is too long.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._moved_s = 0.0
        self._number = 0
        self._answers: dict[str, Whereabouts] = {}
        self._is_asked = False  # in this epoch, since the last commit
        self._spoke: set[str] = set()  # whose training threads have said something in the running epoch
        self._absences: dict[str, list[int]] = {}  # the epochs that others entered
        self._futile = 0
        self._names: list[str] = []

    # What happens

    def begin_epoch(self, names: Sequence[str], now_s: float) -> None:
        """Everybody is to be there anew; where it is not who was there before, all may be well now."""
        self._futile = self._futile if self._names == [*names] else 0
        self._names, self._moved_s = [*names], now_s
        self._is_asked = False
        self._answers.clear()
        self._spoke.clear()

    def move(self, worker: str, now_s: float) -> None:
        """A worker has become ready."""
        self._moved_s = now_s
        self._spoke.add(worker)

    def commit(self, now_s: float) -> None:
        """An iteration is committed: nothing is held against anybody."""
        self._moved_s, self._futile, self._is_asked = now_s, 0, False
        self._absences.clear()

    def complain(self, worker: str) -> None:
        """A worker has lost touch with somebody: so it is there itself."""
        self._spoke.add(worker)

    def forget(self, worker: str) -> None:
        """The worker is gone; another process of its name is another one."""
        self._absences.pop(worker, None)
        self._answers.pop(worker, None)

    # Asking

    def limit_s(self, usual_s: float | None) -> float:
        """How long nothing may be committed.

        Args:
            usual_s: what an iteration has taken so far; None where none was committed.
        """
        if self._job.stall_limit_s is not None:
            return self._job.stall_limit_s
        prediction = self._job.plan.prediction
        iteration_s = max(prediction.iteration_time_s if prediction else 0.0, usual_s or 0.0)
        return max(FLOOR_S, STILL_ITERATIONS * iteration_s)

    def left_s(self, now_s: float, limit_s: float) -> float:
        """Until the job stands still, if nothing happens; 0 where it does."""
        return max(0.0, self._moved_s + limit_s - now_s)

    def ask(self) -> Inquiry:
        """The next inquiry; answers to earlier ones do not count any more."""
        self._number += 1
        self._is_asked = True
        self._answers.clear()
        return Inquiry(self._number)

    def note(self, worker: str, answer: Whereabouts) -> None:
        """An answer has come."""
        if answer.inquiry == self._number:
            self._answers[worker] = answer

    def is_complete(self, names: Collection[str]) -> bool:
        """Whether all have answered the last inquiry."""
        return self._answers.keys() >= set(names)

    # Settling

    def judge(self, names: Collection[str], epoch: int, limit_s: float, *, is_suspected: bool) -> Judgement:
        """What the answers to the last inquiry come to.

        Nothing where nobody was asked; and where somebody has lost touch and nobody has answered, as in logs of before.

        Args:
            names: the members of the running epoch.
            epoch: its number.
            limit_s: `limit_s`.
            is_suspected: whether somebody has lost touch.
        """
        if not self._answers and (is_suspected or not self._is_asked):
            return Judgement()
        states = {name: self._state(name, epoch, limit_s) for name in names}
        hung = [(name, self._words(name, epoch)) for name, state in states.items() if state == "hangs"]
        if "busy" not in states.values():
            hung += [(name, self._words(name, epoch)) for name in self._often_absent(states, epoch)]
        return Judgement(
            hung=tuple(hung),
            is_busy="busy" in states.values(),
            is_anybody_absent="absent" in states.values(),
            is_still=not {"moves", "busy"} & {*states.values()},
        )

    def has_hung_long(self, worker: str, limit_s: float) -> bool:
        """Whether it has been in one place for longer than even the last holder of some layers is waited for."""
        most_s = max(limit_s, min(LONG_S, LIMITS_OF_THE_LAST * limit_s))
        return worker not in self._answers or self._answers[worker].idle_s >= most_s

    def count_futile(self) -> int:
        """An epoch ends without a commit, and nobody is to blame; gives how many have, one after the other."""
        self._futile += 1
        return self._futile

    def outsiders(self, names: Collection[str]) -> tuple[str, ...]:
        """Of those who have said something in this epoch and those who have not, the fewer; nobody where all have."""
        silent = tuple(name for name in names if name not in self._spoke)
        spoke = tuple(name for name in names if name in self._spoke)
        if not silent or not spoke:
            return ()
        return silent if len(silent) <= len(spoke) else spoke

    def lost_between(self) -> Iterator[Pair]:
        """Who waits for whom in vain: for one who waits for it as well, or has nothing left to do."""
        for name, own in self._answers.items():
            if own.doing == "waiting" and len(own.peers) == 1:
                other = self._answers.get(own.peers[0])
                if other is not None and (other.doing == "listening" or other.peers == (name,)):
                    yield pair_of(name, own.peers[0])

    def waits(self) -> dict[str, str]:
        """By worker, where it is, for people."""
        return {name: _in_words(self._answers[name]) for name in sorted(self._answers)}

    def _state(self, name: str, epoch: int, limit_s: float) -> State:
        if name in self._answers:
            return _state(self._answers[name], epoch, limit_s)
        return "rests" if name in self._spoke else "absent"

    def _often_absent(self, states: Mapping[str, State], epoch: int) -> Iterable[str]:
        for name, state in states.items():
            if state == "absent":
                epochs = self._absences.setdefault(name, [])
                if epoch not in epochs:
                    epochs.append(epoch)
                if len(epochs) >= ABSENCES:
                    yield name

    def _words(self, name: str, epoch: int) -> str:
        if name not in self._answers:
            return f"its process lives, but did not enter epoch {epoch}, nor the one before"
        return f"its process lives, but its training thread hangs: {_in_words(self._answers[name])}"


def _state(one: Whereabouts, epoch: int, limit_s: float) -> State:
    """What an answer says of a member of the running epoch."""
    is_late = one.epoch < epoch
    if one.idle_s >= _most_s(one, is_late, limit_s):
        return "hangs"
    if one.doing == "preparing" or (is_late and one.doing == "computing"):
        return "busy"
    if is_late and one.doing == "listening" and one.idle_s < LET_GO_S:
        return "busy"  # it is told to regroup, or of the epoch, at this moment
    if is_late:
        return "absent"
    is_at_rest = one.doing in ("listening", "waiting") and one.idle_s >= MOST_OF_IT * limit_s
    return "rests" if is_at_rest else "moves"


def _most_s(one: Whereabouts, is_late: bool, limit_s: float) -> float:
    """How long a training thread may be where it is."""
    match one.doing:
        case "computing":
            return MOST_OF_IT * limit_s
        case "waiting" | "joining" if is_late:
            return LET_GO_S
        case "joining" | "preparing":
            return LONG_S
    return float("inf")


def _in_words(one: Whereabouts) -> str:
    peers = f" for {', '.join(one.peers)}" if one.peers else ""
    return f"{one.doing}{peers}, {one.what}, for {print_time(one.idle_s)}, in epoch {one.epoch}"
