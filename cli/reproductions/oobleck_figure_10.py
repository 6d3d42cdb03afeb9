"""Oobleck Figure 10 and Appendix C: two traces of spot instances, five models, Oobleck against Varuna and Bamboo.

The figure's averages are dotted lines without numbers; the text has 9.1x, 7.7 min and 10.3 min, and who matches whom.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from ...schemas.replay import Moment
from .oobleck_policies import TOLERANCE, bamboos_job, costs_of, job_of, microbatch_of, record
from .oobleck_stalls import MODELS, Model, Stalling, between_failures, per_node, throughput
from .oobleck_table_2 import stall_of
from .oobleck_table_4 import UNSAVED
from .reproduction import Basis, Claim, Reproduction, Row
from .spot_traces import moments_of

TRACES = {"EC2 P3": ("scale_p3-trace.csv", 7.7), "GCP": ("scale_gcp-trace.csv", 10.3)}  # file, min between preemptions
SMALL, LARGE = MODELS[:3], MODELS[3:]
UNSAVED_BETWEEN = {one.model: one.between for one in UNSAVED}
CHECKPOINT_EVERY = 10  # iterations, section 7.1
# What changes cost Varuna: a restart, warned in time; the stall of Table 2; a restart from the last checkpoint. Where
# it saves only when warned, its throughput is that without the cost of saving, which Table 4 has for two models.
WARNED, STALLED, FALLEN_BACK, SAVING_LESS = "warned", "stalled", "fallen back", "saving only when warned"

# Throughputs by system under one convention: whether nodes that come cost what a failure costs, and Varuna's way.
Convention = tuple[bool, str]
Throughputs = Mapping[Convention, Mapping[str, float]]


def reproduce() -> Reproduction:
    """Oobleck Figure 10 and Appendix C: two traces of spot instances, five models, Oobleck against Varuna and Bamboo.

    The figure's averages are dotted lines without numbers; the text has 9.1x, 7.7 min and 10.3 min, and who matches whom.
    """
    traces = {name: moments_of(file) for name, (file, _) in TRACES.items()}
    found = {(trace, model): _throughputs(model, traces[trace]) for trace, model in product(TRACES, MODELS)}
    rows = [
        *_gaps(traces),
        *_by_policy(traces),
        *(row for key in found for row in _rows(*key, found[key])),
        _largest(found),
    ]
    return Reproduction(
        "oobleck-figure-10",
        "Oobleck Figure 10 and Appendix C: average throughput over spot traces, Oobleck : Varuna and Oobleck : Bamboo",
        ("oobleck", "policies"),
        tuple(rows),
        tuple(_claims(found)),
        METHOD,
        UNSAID,
    )


METHOD = (
    "`by policy`: the traces of the artifact (15 to 30 nodes) under rtk's own policies, as in oobleck-table-2, "
    "nothing fitted. The other rows ask no planner: the same traces under policies whose constants are those of "
    "Tables 2 and 4: throughput A in proportion to the nodes, and a stall at each change. Each range is over what is "
    "not said: whether nodes that come cost what a failure costs, or nothing; and what a change costs Varuna, which "
    "is warned: a restart only (26 s and 35 s per billion parameters, through the 38 s and 262 s of oobleck-table-4), "
    "the stall of Table 2, or, where it cannot save in time, a restart from a checkpoint made every ten iterations. "
    "Appendix C says that for the three small models it saves in time, so the last is for GPT-3 2.7b and 6.7b only. "
    "For BERT-Large and GPT-3 6.7b, of which Table 4 has the throughput without it, it may also save only when it is "
    "warned."
)

UNSAID = (
    "The averages are not printed, so only `matches` (appendix C; taken as 1) and `up to 9.1x on average` (section "
    "1; of which model and against whom is not said) can be compared.",
    "Whether Varuna, once warned of each preemption, still saves every ten iterations. In Table 2 it does, and Oobleck "
    "is ahead by 11 % with BERT-Large however rare failures are (287.10 to 259.57), so that the two cannot match if it "
    "does here. The other reading was added for this reason, once BERT-Large was seen to be at 1.16 without it.",
    "The text says GCP a2-highgpu-1g. The file of that name in the artifact has the time stamps of Bamboo's g4dn "
    "trace on AWS, rescaled to 15 to 30 nodes; 10.3 min between preemptions is that file's, so it is what was "
    "replayed.",
    "The text says 12 hours; the traces last 11.4 h and 10.6 h, and are replayed once.",
    "Varuna `hung` for GPT-3 6.7b, which is no number; a checkpoint of ten iterations (2,550 s) is hardly ever "
    "reached.",
)


def _gaps(traces: Mapping[str, Sequence[Moment]]) -> Iterator[Row]:
    for name, (_, minutes) in TRACES.items():
        times_s = [moment.time_s for moment in traces[name] if moment.lost]
        ours = (times_s[-1] - times_s[0]) / 60 / (len(times_s) - 1)
        yield Row(f"{name}, min between preemptions", minutes, ours, Basis.COMPUTED, 0.02)


def _by_policy(traces: Mapping[str, Sequence[Moment]]) -> Iterator[Row]:
    most = 0.0
    for (trace, moments), model in product(traces.items(), MODELS):
        ours = {system: _played(model, system.lower(), moments) for system in model.printed}
        for system, samples in ours.items():
            if system == "Oobleck" or not samples:
                continue
            what, lead = f"{trace}, {model.name}, Oobleck : {system}, by policy", ours["Oobleck"] / samples
            is_matched = system == "Varuna" and model in SMALL
            note = "rtk's default restart takes 300 s at each change; theirs is not printed" if is_matched else ""
            tolerance = TOLERANCE if is_matched else None
            yield Row(what, 1.0 if is_matched else None, lead, Basis.SIMULATED, tolerance, note=note)
            most = max(most, lead if model is not MODELS[-1] else 0.0)
    what = "up to, on average, by policy, Varuna with GPT-3 6.7b apart"
    yield Row(what, 9.1, most, Basis.SIMULATED, TOLERANCE, note=APART)


APART = "with GPT-3 6.7b, where theirs hung, it would be within 1 % on EC2's trace, which is chance"


def _played(model: Model, system: str, moments: Sequence[Moment]) -> float:
    """Samples per s of one of rtk's policies."""
    job = bamboos_job(model) if system == "bamboo" else job_of(model, system)
    if system == "varuna":
        job = job_of(model, system, costs=costs_of(model))
    done = record(system, job, moments, moments[-1].time_s)
    return done.microbatches * microbatch_of(model, system) / done.lasts_s


def _throughputs(model: Model, moments: Sequence[Moment]) -> Throughputs:
    ways = [WARNED, STALLED]
    if model not in SMALL:
        ways.append(FALLEN_BACK)
    if model in UNSAVED_BETWEEN:
        ways.append(SAVING_LESS)
    return {
        (joins, way): {
            system: throughput(_policy(model, system, joins, way), moments, moments[-1].time_s)
            for system in model.printed
        }
        for joins, way in product((False, True), ways)
    }


def _policy(model: Model, system: str, joins: bool, way: str) -> Stalling:
    rate = per_node(between_failures(model.printed[system][0], model.stalls_s[system]))
    stall_s = model.stalls_s[system] if system != "Varuna" or way == STALLED else _restart_s(model)
    if system == "Varuna" and way == SAVING_LESS:
        rate = per_node(UNSAVED_BETWEEN[model])
    if system == "Varuna" and way == FALLEN_BACK:
        return Stalling(rate, stall_s, stall_s * joins, model.batch, CHECKPOINT_EVERY)
    return Stalling(rate, stall_s, stall_s * joins)


def _restart_s(model: Model) -> float:
    """Varuna's, by the model's size: the line through the 38 s and 262 s that are fitted in oobleck_table_4.py."""
    return 26.0 + 35.2 * model.billions


def _rows(trace: str, model: Model, found: Throughputs) -> Iterator[Row]:
    name = f"{trace}, {model.name}, Oobleck : "
    varuna = _range(_ratios(found, "Varuna"))
    if model not in SMALL:
        yield Row(
            f"{name}Varuna", None, varuna, Basis.COMPUTED, borrowed=_borrowed(model, "Varuna"), note=_stops(found)
        )
    else:
        yield Row(f"{name}Varuna", 1.0, varuna, Basis.COMPUTED, 0.1, borrowed=_borrowed(model, "Varuna"))
    if "Bamboo" in model.printed:
        yield Row(
            f"{name}Bamboo", None, _range(_ratios(found, "Bamboo")), Basis.COMPUTED, borrowed=_borrowed(model, "Bamboo")
        )


def _borrowed(model: Model, rival: str) -> tuple[str, ...]:
    """What was fitted to Tables 2 and 4: stalls of both, and the restart of Varuna, a line through two models'."""
    restarts = tuple(one.rolled_back[0] for one in UNSAVED) if rival == "Varuna" else ()
    return (stall_of(model, "Oobleck"), stall_of(model, rival), *restarts)


def _stops(found: Throughputs) -> str:
    stops = any(one["Varuna"] == 0 for one in found.values())
    return "or Varuna gets nowhere, where it falls back to a checkpoint at each change" if stops else ""


def _ratios(found: Throughputs, system: str) -> dict[Convention, float]:
    """Of Oobleck to another, where the other one commits anything."""
    return {convention: one["Oobleck"] / one[system] for convention, one in found.items() if one[system]}


def _range(ratios: Mapping[Convention, float]) -> tuple[float, float]:
    return min(ratios.values()), max(ratios.values())


def _largest(found: Mapping[tuple[str, Model], Throughputs]) -> Row:
    """Over traces, models and systems but Varuna with GPT-3 6.7b, under each convention."""
    ratios: dict[Convention, float] = {}
    for (_, model), throughputs in found.items():
        for system in model.printed:
            if system != "Oobleck" and model is not MODELS[-1]:
                for convention, ratio in _ratios(throughputs, system).items():
                    if convention[1] != SAVING_LESS:  # which is known of one of these models only
                        ratios[convention] = max(ratio, ratios.get(convention, 0.0))
    fitted = tuple(dict.fromkeys(name for model in MODELS[:-1] for name in _borrowed(model, "Varuna")))
    return Row(
        "up to, on average, Varuna with GPT-3 6.7b apart", 9.1, _range(ratios), Basis.COMPUTED, 0.1, borrowed=fitted
    )


def _claims(found: Mapping[tuple[str, Model], Throughputs]) -> Iterator[Claim]:
    each = [one for throughputs in found.values() for one in throughputs.values()]
    yield Claim(
        "Oobleck is ahead of Varuna, and Varuna of Bamboo, on both traces, with every model, under all assumptions "
        "of the ranges",
        all(one["Oobleck"] > one["Varuna"] > one.get("Bamboo", -1.0) for one in each),
    )
    yield Claim(
        "Oobleck's lead over Varuna grows with the model: GPT-3 2.7b and 6.7b above GPT-2 and GPT-3 Medium",
        all(
            _grows(found, trace, convention)
            for trace in TRACES
            for convention in product((False, True), (WARNED, STALLED))
        ),
    )
    fallen = [found[trace, MODELS[-1]][joins, FALLEN_BACK] for trace, joins in product(TRACES, (False, True))]
    yield Claim(
        "where Varuna falls back to checkpoints, GPT-3 6.7b comes to less than a tenth of Oobleck's on both traces; "
        "in the paper it hung",
        all(one["Varuna"] < 0.1 * one["Oobleck"] for one in fallen),
    )


def _grows(found: Mapping[tuple[str, Model], Throughputs], trace: str, convention: Convention) -> bool:
    leads = [one["Oobleck"] / one["Varuna"] for one in (found[trace, model][convention] for model in MODELS)]
    return min(leads[3:]) > max(leads[1:3])
