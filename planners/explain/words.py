"""An explanation in words, for people."""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from ...schemas.plan import Plan
from ...schemas.quantities import print_bytes, print_percent, print_time
from ...schemas.text import counted, joined
from ..choosing import comparison
from ..degrees import degree_comparison
from ..greyhound.mitigate import topology_words
from .account import IterationAccount
from .binding import BindingBound
from .explain import Busiest, CriticalPath, Explanation, Leg, PathSegment, Share
from .troubles import Degradations, DelayedLink, UnevenStage
from .what_if import Change, ChangeEffect, WhatIfReport

WIDTH = 98
INDENT, GAP = "  ", 2
KEEP = "\N{NO-BREAK SPACE}"
ROUNDING = 1e-9
MOST_NAMES, MOST_STRETCHES, MOST_SHARES, MOST_EFFECTS = 3, 12, 6, 8
# Shares of the iteration: what is less than the first is not told, what saves less than the second is little.
SMALLEST, LITTLE = 0.0005, 0.01
# A worker that computes for this share of the iteration can hardly be used better.
BUSY = 0.9

Lines = Iterator[str]
Row = tuple[str, ...]  # cells; the second is text


def words_of_explanation(told: Explanation, plan: Plan | None = None) -> str:
    """An explanation for people, in lines of at most 100 characters.

    Args:
        told: what `explain` found.
        plan: the plan that it is of, if what this says of itself is to be told as well: over which routings its bound
            is, what other placements were worth, and who sits where.
    """
    sections = [_headline(told), _path(told), _bound(told.bound, told), _busiest(told.busiest, told), _what_if(told)]
    if told.troubles is not None:
        sections.insert(1, _troubles(told.troubles, told))
    lines = [line for section in sections for line in (*section, "")][:-1]
    if plan is not None and plan.prediction is not None and plan.prediction.proof_scope is not None:
        bound = f"The plan's own bound, {print_time(plan.prediction.lower_bound_s)},"
        if plan.prediction.proof_scope == "routing":
            lines += ["", f"{bound} is for the routing taken: micro-batches on other workers might take less."]
        else:
            lines += ["", f"{bound} is over all routings: nor would micro-batches on other workers take less."]
    if told.tensor_parallel != (1,):
        gpus = joined(map(str, told.tensor_parallel), "or")
        lines += ["", f"A worker is {gpus} GPUs, which share its layers (tensor parallelism)."]
    degrees = list(degree_comparison(plan)) if plan is not None else []
    if degrees:
        lines += ["", "What each degree is worth", *(f"{INDENT}{line}" for line in degrees)]
    compared = list(comparison(plan)) if plan is not None else []
    if compared:
        lines += ["", "What each placement is worth", *(f"{INDENT}{line}" for line in compared)]
    seats = topology_words(plan) if plan is not None else []
    if seats:
        lines += ["", "Who sits where, and what it is worth", *(f"  {line}" for line in seats)]
    return "\n".join(lines)


def words_of_account(account: IterationAccount) -> str:
    """Where the iteration of the worker goes that decides, a line a part."""
    gpus = f" ({account.tensor_parallel} GPUs)" if account.tensor_parallel > 1 else ""
    rows = [("", one.what, print_time(one.time_s), print_percent(one.share)) for one in account.shares]
    whole_s = sum(one.time_s for one in account.shares)
    lines = [
        f"Where the iteration goes of worker {account.worker}{gpus}, which decides",
        *_columns([*rows, ("", "in all", print_time(whole_s), "")]),
    ]
    if account.again_s:
        again = f"{print_time(account.again_s)} ({print_percent(account.again_s / whole_s)})"
        lines += _wrapped(f"Of the passes {again} are activations that are computed again.")
    if account.remark is not None:
        lines += _wrapped(f"What passes are made of is not told: {account.remark}.")
    return "\n".join(lines)


def _headline(told: Explanation) -> Lines:
    amount = f"{counted(told.microbatches, 'micro-batch', 'es')} on {counted(told.workers, 'worker')}"
    bubbles = f"{print_percent(told.bubble_ratio)} bubbles"
    yield f"An iteration takes {print_time(told.iteration_time_s)}: the {told.counts} of {amount}, {bubbles}."
    if told.gap > 0:
        above = f"this one takes {print_percent(told.gap)} more"
        yield f"No order of these operations takes less than {print_time(told.lower_bound_s)} (proven); {above}."
    else:
        yield "No order of these operations takes less: it is proven optimal."
    if told.placements:
        yield f"What each worker holds: {joined(told.placements)}."
    for members in told.alike:
        if len(members) > 1:
            yield f"{_listed('Pipeline', members)} are alike: what is said of {members[0]} holds for each."


def _troubles(found: Degradations, told: Explanation) -> Lines:
    yield "What is wrong, and what the plan does about it"
    for stage in found.stages:
        yield from _wrapped(_uneven(stage))
    for link in found.links:
        yield from _wrapped(_delayed(link))
    iteration_s = told.iteration_time_s
    yield from _wrapped(f"What each technique takes on its own, against {print_time(iteration_s)}:")
    yield from _columns(
        [
            ("", one.technique, print_time(one.iteration_time_s), _more(one.iteration_time_s, iteration_s))
            for one in found.alternatives
        ]
    )


def _uneven(stage: UnevenStage) -> str:
    """Who executes less at a stage, and who more."""
    told = [f"{_listed('worker', stage.dead)} {'is' if len(stage.dead) == 1 else 'are'} dead"] if stage.dead else []
    for name, factor, load in stage.slow:
        executes = (
            f"and executes {load} micro-batches instead of {stage.own}" if load != stage.own else "and keeps its own"
        )
        told.append(f"worker {name} takes {factor:g} times as long {executes}")
    told += [_taken_over(stage)] if stage.more else []
    return f"Stage {stage.stage}: {'; '.join(told)}."


def _taken_over(stage: UnevenStage) -> str:
    (first, extra), *others = stage.more
    first_takes = f"{first} takes {counted(extra, 'micro-batch', 'es')} more than its own {stage.own}"
    return ", ".join([first_takes, *(f"{name} {more}" for name, more in others)])


def _delayed(link: DelayedLink) -> str:
    """What a link with a delay carries, and whether its slackness absorbs the delay."""
    where = f"Link {link.link}" + (f" of pipeline {link.pipeline}" if link.pipeline is not None else "")
    takes = f"{where} takes {print_time(link.delay_s)}"
    if not link.crossing:
        away = counted(link.elsewhere, "micro-batch", "es")
        return f"{takes} and carries nothing: {away} of worker {link.pipeline}/{link.link} go on in other pipelines."
    carries = f"{takes} and carries {counted(link.crossing, 'micro-batch', 'es')}"
    if link.tolerated_s is None:
        return f"{carries}; its delay cannot cascade."
    least = "" if link.pipeline is not None else " or more"
    slack = f"its slackness, {link.slackness}{least}, absorbs {print_time(link.tolerated_s)} (Eq. 1)"
    beyond = link.delay_s > link.tolerated_s * (1 + ROUNDING)
    return f"{carries}; {slack}, {'so bubbles cascade' if beyond else 'so it costs itself once, at most'}."


def _more(time_s: float, than_s: float) -> str:
    """By how much a time is longer than another, in percent."""
    share = time_s / than_s - 1 if than_s else 0.0
    return f"{'+' if share >= 0 else '-'}{print_percent(abs(share))}"


def _path(told: Explanation) -> Lines:
    path = told.path
    yield "Critical path: what follows on what without a pause" + (
        f", in the window of {_noun(told)} {path.stage}" if told.counts == "period" else ""
    )
    yield from _columns([*_abridged(path), *_after(path, _noun(told))])
    yield from _wrapped(f"by place:  {_shares(path.by_place)}")
    yield from _wrapped(f"by kind:   {_shares(path.by_kind)}")


def _noun(told: Explanation) -> str:
    """What the workers of one number hold."""
    return "column" if told.placements else "stage"


def _abridged(path: CriticalPath) -> Iterator[Row]:
    """The path's stretches; of many the first and the last."""
    shown = path.stretches
    half = MOST_STRETCHES // 2 if len(shown) > MOST_STRETCHES else len(shown)
    first, hidden, last = shown[:half], shown[half:-half], shown[max(half, len(shown) - half) :]
    for stretch in first:
        yield from _stretch(stretch, path.start_s)
    if hidden:
        legs = sum(stretch.times * len(stretch.legs) for stretch in hidden)
        yield "…", f"{legs} more changes of worker …", print_time(hidden[-1].end_s - hidden[0].start_s)
    for stretch in last:
        yield from _stretch(stretch, path.start_s)


def _stretch(stretch: PathSegment, from_s: float) -> Iterator[Row]:
    when = print_time(stretch.start_s - from_s)
    if stretch.times == 1:
        for leg in stretch.legs:
            yield print_time(leg.start_s - from_s), _leg(leg), print_time(leg.end_s - leg.start_s)
        return
    round_s = (stretch.end_s - stretch.start_s) / stretch.times
    yield when, f"{stretch.times} times:", f"{stretch.times} x {print_time(round_s)}"
    for leg in stretch.legs:
        yield "", INDENT + _leg(leg, once=False), print_time(leg.compute_s + leg.delay_s)


def _leg(leg: Leg, once: bool = True) -> str:
    """What happens; a single operation with its micro-batch, where it happens once."""
    waited = f", after {print_time(leg.delay_s)} on {_listed('link', leg.links)}" if leg.links else ""
    if len(leg.workers) > 1:
        return f"{_listed('worker', leg.workers)} pass {leg.first if once else leg.first[0]} on{waited}"
    runs = " ".join(f"{count} {kind}" for kind, count in leg.operations.items())
    return f"worker {leg.workers[0]} runs {leg.first if once and leg.first == leg.last else runs}{waited}"


def _after(path: CriticalPath, noun: str) -> Iterator[Row]:
    if path.allreduce_s:
        yield "", f"all-reduce of {noun} {path.stage}", print_time(path.allreduce_s)
    if path.optimizer_s:
        yield "", "optimizer step", print_time(path.optimizer_s)


def _shares(shares: Sequence[Share]) -> str:
    told = [f"{share.what} {print_percent(share.share)}" for share in shares[:MOST_SHARES]]
    rest = sum(share.share for share in shares[MOST_SHARES:])
    return ", ".join([*told, f"others {print_percent(rest)}"] if rest else told) or "nothing"


def _bound(bound: BindingBound, told: Explanation) -> Lines:
    yield f"The bound that binds: worker {bound.worker}"
    yield from _wrapped(f"{_argument(bound, _noun(told))}: no order takes less than {print_time(bound.value_s)}.")
    if bound.memory_s:
        several = "" if bound.limits else ", though none of them alone"
        yield from _wrapped(f"Memory limits add {print_time(bound.memory_s)} of this{several}.")
    for limit in bound.limits:
        if limit.held_s is None:
            room = f"{counted(limit.room, 'activation')} of its largest virtual stage"
        else:
            held = f"each is held for at least {print_time(limit.held_s)}, from its F to the end of its I or B"
            room = f"{counted(limit.room, 'micro-batch', 'es')}, and {held}"
        without = f"Without this limit the bound would be {print_time(limit.bound_without_s)}"
        yield from _wrapped(f"The memory limit of {limit.where} binds: it has room for {room}. {without}.")
    if told.lower_bound_s > bound.value_s * (1 + ROUNDING):
        better = "A search that looks at all workers together"
        yield from _wrapped(f"{better} proves more than this argument: {print_time(told.lower_bound_s)}.")


def _argument(bound: BindingBound, noun: str) -> str:
    """Why a worker cannot be done sooner."""
    start = "" if bound.window is None else f" after the first start of {noun} {bound.window}"
    tail = f", and {print_time(bound.tail_s)} must follow" if bound.tail_s else ""
    if bound.argument == "area":
        before = f", from {print_time(bound.head_s)}{start} on" if bound.head_s else start
        held = f"what it must hold of all micro-batches, each from its F to the end of its W or B{before},"
        return f"Its memory limit has no room for {held} in less than {print_time(bound.work_s)}{tail}"
    if bound.argument == "turns":
        before = f", from {print_time(bound.head_s)}{start} on," if bound.head_s else start
        room = "has room for few micro-batches at once on all its virtual stages"
        return f"Its memory limit {room}; those that follow each other{before} take {print_time(bound.work_s)}{tail}"
    if bound.argument == "ramps":
        limit = "Its memory limit does not admit all its forwards at once"
        first = f"its first I or B is no sooner than {print_time(bound.head_s)}{start}"
        work = f"{print_time(bound.work_s)} of its {print_time(bound.worker_s)} of work"
        return f"{limit}; {first}, and {work} fit neither before it nor behind its last F{tail}"
    if bound.argument == "turns":
        before = f" cannot begin before {print_time(bound.head_s)}{start}" if bound.head_s else f" must be done{start}"
        few = "Its memory limit has room for few micro-batches at once"
        return f"{few}; those that take turns there need {print_time(bound.work_s)}, which{before}{tail}"
    whole = bound.work_s >= bound.worker_s * (1 - ROUNDING)
    part = "All" if whole else f"{print_time(bound.work_s)} of"
    work = f"{part} its {print_time(bound.worker_s)} of work"
    head = f"cannot begin before {print_time(bound.head_s)}{start}" if bound.head_s else f"must be done{start}"
    return f"{work} {head}{tail}"


def _busiest(busiest: Busiest, told: Explanation) -> Lines:
    yield f"The busiest worker: {busiest.worker}"
    parts = {
        "it computes": busiest.compute_s,
        "before its first operation": busiest.before_s,
        "waiting for what others compute": busiest.waiting_s,
        "waiting for messages on their way": busiest.travelling_s,
        "after its last operation": busiest.after_s,
        "all-reduce": busiest.allreduce_s,
        "optimizer step": busiest.optimizer_s,
    }
    iteration_s = told.iteration_time_s or 1.0
    yield from _columns(
        [
            ("", what, print_time(time_s), print_percent(time_s / iteration_s))
            for what, time_s in parts.items()
            if time_s > SMALLEST * iteration_s
        ]
    )


def _what_if(told: Explanation) -> Lines:
    found, iteration_s = told.what_if, told.iteration_time_s
    yield "What would help most"
    if not found.tried:
        yield from _wrapped(
            "Nothing was tried: of pipelines of unlike templates with placements no orders are searched."
        )
        return
    least_s, little_s = SMALLEST * iteration_s, LITTLE * iteration_s
    shown = [effect for effect in found.effects if effect.saved_s > least_s][:MOST_EFFECTS]
    unknown = [x for x in found.effects if _is_least(x) and x.bound_saved_s > x.saved_s + little_s]
    if found.saved_s > least_s:
        saved = f"-{print_time(found.saved_s)}, -{print_percent(found.saved_s / iteration_s)}"
        yield from _wrapped(f"Other orders alone: {print_time(found.iteration_time_s)} ({saved}); plan it again.")
        yield from _with_own_orders(found, iteration_s)
    if shown:
        base = "with new orders" if found.saved_s > least_s else "as it is now"
        yield from _wrapped(f"Each of these alone, against {print_time(found.iteration_time_s)} {base}:")
        yield from _columns([_effect(effect, found) for effect in shown])
        yield from _footnotes(shown, found)
    if unknown:
        yield from _wrapped("These could save more; no orders were searched for them, but their bound is lower by:")
        yield from _columns([_lowered(effect, told) for effect in unknown[:MOST_NAMES]])
    elif not shown or shown[0].saved_s < little_s:
        yield from _wrapped(_little(told, bool(shown)))


def _lowered(effect: ChangeEffect, told: Explanation) -> Row:
    share = print_percent(effect.bound_saved_s / told.iteration_time_s)
    return "", _change(effect.change), f"-{print_time(effect.bound_saved_s)}", f"-{share}"


def _with_own_orders(found: WhatIfReport, iteration_s: float) -> Lines:
    """What helps most as long as the orders stay."""
    ranked = sorted(found.effects, key=lambda effect: -effect.same_orders_saved_s)
    best = [effect for effect in ranked[:MOST_NAMES] if effect.same_orders_saved_s > LITTLE * iteration_s]
    if best:
        yield from _wrapped(f"With the orders as they are, each of these alone, against {print_time(iteration_s)}:")
        yield from _columns(
            [("", _change(x.change), *_saving(x.same_orders_s, x.same_orders_saved_s, iteration_s), "") for x in best]
        )


def _effect(effect: ChangeEffect, found: WhatIfReport) -> Row:
    saving = _saving(effect.iteration_time_s, effect.saved_s, found.iteration_time_s)
    return "", _change(effect.change), *saving, "*" if _is_certain(effect, found) else "+" if _is_least(effect) else ""


def _saving(time_s: float, saved_s: float, of_s: float) -> tuple[str, str, str]:
    return print_time(time_s), f"-{print_time(saved_s)}", f"-{print_percent(saved_s / of_s)}"


def _is_certain(effect: ChangeEffect, found: WhatIfReport) -> bool:
    """Whether no orders take so little without the change."""
    return effect.iteration_time_s < found.lower_bound_s * (1 - ROUNDING)


def _is_least(effect: ChangeEffect) -> bool:
    """Whether a search could find more."""
    return not effect.searched and effect.iteration_time_s > effect.lower_bound_s * (1 + ROUNDING)


def _change(change: Change) -> str:
    match change.kind:
        case "memory":
            size = f" ({print_bytes(change.extra_bytes)})" if change.extra_bytes else ""
            return f"memory for one more activation at {change.where}{size}"
        case "link":
            return f"half the delay of {change.where}"
        case "compute":
            return f"operations of {change.where} 10 % faster"
        case "slowdown":
            return f"no slow-down of {change.where}"
        case "allreduce":
            return "half the time for every all-reduce"
        case "optimizer":
            return "half the time for every optimizer step"


def _footnotes(shown: Sequence[ChangeEffect], found: WhatIfReport) -> Lines:
    if any(_is_certain(effect, found) for effect in shown):
        yield from _wrapped("* certain: without the change no order takes so little")
    if any(_is_least(effect) and not _is_certain(effect, found) for effect in shown):
        yield from _wrapped("+ at least: known orders were timed, none were searched for this change")


def _little(told: Explanation, some: bool) -> str:
    """Why nothing helps much."""
    start = "None of them saves 1 %" if some else "No change that was tried helps"
    iteration_s, busiest = told.iteration_time_s or 1.0, told.busiest
    if told.bubble_ratio <= 1 - BUSY:
        busy = print_percent(1 - told.bubble_ratio)
        return f"{start}: the workers compute {busy} of the time, so only less work, or more workers, would."
    if busiest.compute_s >= BUSY * iteration_s:
        busy = print_percent(busiest.compute_s / iteration_s)
        return f"{start}: worker {busiest.worker} computes {busy} of the time, so only less work for it would."
    return f"{start}; it takes several at once, or another cut of the layers into stages."


def _columns(rows: Sequence[Row]) -> Lines:
    """A table without lines; only the second column is broken where the width does not suffice."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[1] = min(widths[1], WIDTH - sum(widths) + widths[1] - GAP * len(widths))
    for when, what, *numbers in rows:
        first, *others = wrap(what, widths[1], subsequent_indent=2 * INDENT, break_on_hyphens=False) or [""]
        aligned = [f"{number:>{width}}" for number, width in zip(numbers, widths[2:], strict=True)]
        yield (" " * GAP).join([f"{INDENT}{when:>{widths[0]}}", f"{first:<{widths[1]}}", *aligned]).rstrip()
        for line in others:
            yield " " * (len(INDENT) + widths[0] + GAP) + line


def _wrapped(text: str) -> Lines:
    """Lines broken neither before a unit nor inside a name."""
    whole = re.sub(r"(?<=\d) (?=[mµ]?s\b|%)|(?<=[a-z]) (?=\d+/\d)", KEEP, text)
    for line in wrap(whole, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False):
        yield line.replace(KEEP, " ")


def _listed(noun: str, names: Sequence[object]) -> str:
    """`worker 0/1`, `workers 0/1, 0/2`, or `workers 0/1 … 0/7`."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    told = ", ".join(map(str, names)) if len(names) <= MOST_NAMES else f"{names[0]} … {names[-1]}"
    return f"{noun}s {told}"
