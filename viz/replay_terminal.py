"""A replay in text: a line a policy, as long as its time, coloured by what that went to."""

from typing import TYPE_CHECKING

from ..schemas.replay_report import PolicyReport, ReplayReport
from .looks import INK
from .replay_scene import PURPOSES, Purpose, contestants, shares_of
from .replay_words import print_share, report_facts, title_of

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST_BAR = 10
# Without colours a character tells what it is.
_CHARACTERS = dict(zip(PURPOSES, "█▒×dpcrk·", strict=True))  # noqa: RUF001


def terminal_replay(report: ReplayReport, width: int) -> "Text":
    """Draw where each policy's time went in lines of text.

    Args:
        report: what is drawn; the best policy comes first.
        width: columns of the terminal.
    """
    from rich.text import Text

    lines = [Text(title_of(report), "bold"), *(Text(fact) for fact in report_facts(report))]
    shown = contestants(report)
    names = max((len(one.policy) for one in shown), default=0)
    bar = max(NARROWEST_BAR, width - names - len(" 100.0 % ") - 1)
    lines += [_line(one, names, bar) for one in shown]
    lines += [Text(f"{one.policy} cannot train: {one.refusal}") for one in report.policies if one.refusal is not None]
    seen = {purpose for one in shown for purpose, share in shares_of(one) if share > 0}
    key = ", ".join(f"{_CHARACTERS[purpose]} {purpose.words}" for purpose in PURPOSES if purpose in seen)
    lines += [Text(f"goodput; {key}", "dim")] if seen else []
    return Text("\n").join(lines)


def _line(policy: PolicyReport, names: int, bar: int) -> "Text":
    from rich.text import Text

    line = Text(f"{policy.policy:{names}} {print_share(policy.goodput):>7} ")
    for purpose, columns in _columns(policy, bar):
        line.append(_CHARACTERS[purpose] * columns, f"{INK if not purpose.is_dark else 'white'} on {purpose.colour}")
    return line


def _columns(policy: PolicyReport, bar: int) -> list[tuple[Purpose, int]]:
    """How many columns each purpose gets; rounded at their ends, so that they add up."""
    found, done, column = [], 0.0, 0
    for purpose, share in shares_of(policy):
        done += share
        found.append((purpose, round(bar * min(done, 1.0)) - column))
        column += found[-1][1]
    return found
