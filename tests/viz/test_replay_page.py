"""The page of a replay, and the page that compares several, as whoever pays for the cluster reads them."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from rtk.schemas.replay import GpuHours, ReplayReport, Stretch
from rtk.viz.replay import cost_words, print_amount, print_memory, print_span, verdict
from rtk.viz.replay_page import comparison_html, labels_of, replay_html

from .replays import policy, replayed, report, reports


def words_of(html: str) -> str:
    """What is read, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html).replace("&nbsp;", " "))


class Tags(HTMLParser):
    """Remembers which elements there are, and with which attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@given(reports)
@settings(max_examples=8, deadline=None)
def test_any_report_has_a_page(drawn: ReplayReport) -> None:
    """Whatever a file says, the page is well nested, needs no network and no script, and is always the same."""
    once = replay_html(drawn)
    for html in (once, comparison_html([drawn, drawn])):
        tags = Tags(html)
        assert not tags.open
        assert not tags.names & {"script", "link", "img", "iframe"}
        assert not tags.attributes & {"src", "href", "onclick", "onload"}
    assert replay_html(drawn) == once


def test_names_and_reasons_are_escaped() -> None:
    """What a file says is text, never markup."""
    evil = replace(
        replayed({"<b>a</b>": 10.0}, {"x": "<script>1</script>"}), mapping="<i>m</i>", job={"model": "<u>g</u>"}
    )
    for html in (replay_html(evil), comparison_html([evil, evil], ["<s>1</s>", "<s>2</s>"])):
        assert not Tags(html).names & {"script", "b", "u", "s"}
        assert "<i>m</i>" not in html
        assert "cannot train: &lt;script&gt;1&lt;/script&gt;" in html or "cannot train" in html


def test_eleven_policies_of_two_thousand_stretches_are_light() -> None:
    """Such a page is less than 300 kB."""
    stretches = tuple(Stretch(0.5 * n, 400 - n % 7, 390 - n % 11, (n * 7919 % 1000) / 1000) for n in range(2000))
    names = ("rtk", "checkpoint-restart", *(f"policy-{number}" for number in range(9)))
    heavy = report(*(replace(policy(name, 0.5), stretches=stretches) for name in names))
    assert len(replay_html(heavy).encode()) < 300_000


def test_the_verdict_says_who_wins_and_by_how_much() -> None:
    """The best, the next, checkpoints, and the GPU-hours and the money between them."""
    drawn = report(
        policy("spares", 0.6), policy("checkpoint-restart", 0.5), policy("rtk", 0.8), policy("fault-free", 1.0)
    )
    said = words_of(verdict(drawn))
    assert said.startswith("rtk is the best of 3 policies: it trains 80.0 % of what the whole cluster would")
    assert "The next best, spares, trains 60.0 %, 25.0 % less training." in said
    assert "checkpoint-restart trains 50.0 %, 37.5 % less training." in said
    assert "saves 300 GPU-hours, worth 600 at 2 a GPU-hour" in said
    assert "a cluster that costs 2,000 either way" in said


def test_the_verdict_of_less() -> None:
    """A draw is one; a single policy has no rivals; without prices there is no money; nothing trains, or fails."""
    draw = report(policy("rtk", 0.8), policy("oobleck", 0.80001))
    assert "The next best, rtk, is level with it." in words_of(verdict(draw))
    assert "rtk is the only policy that was replayed" in words_of(verdict(report(policy("rtk", 0.8))))
    free = report(policy("rtk", 0.8, cost=0.0), policy("checkpoint-restart", 0.5, cost=0.0))
    assert "worth" not in verdict(free) and "costs 0" not in verdict(free)
    assert verdict(report(replace(policy("a", 0.0), refusal="no"))).startswith("None of the policies can train")
    assert "nothing to choose from" in verdict(report(policy("fault-free", 1.0)))
    assert "trains 0.0 %." in words_of(verdict(report(policy("a", 0.5), policy("b", 0.0))))
    better = report(replace(policy("a", 1.1), gpu_hours=GpuHours(10.0, 11.0, 0.0, -1.0)))
    assert "10.0 GPU-hours train what would take a cluster that never fails 11.0." in verdict(better)


def test_where_nothing_is_trained_nobody_wins() -> None:
    """A trace shorter than an iteration has no best policy: none is praised, nor marked."""
    nothing = report(policy("a", 0.0), policy("b", 0.0), policy("fault-free", 0.0))
    assert verdict(nothing).startswith("Nothing that any policy trains under this trace counts")
    assert 'class="best"' not in replay_html(nothing)
    said = words_of(comparison_html([nothing, nothing], ["x", "y"]))
    assert "x: nothing that is trained counts in the end." in said
    assert "trains the most" not in said


def test_the_table_has_a_row_for_everybody() -> None:
    """The best is marked, the fault-free cluster is a reference, a refusal is told; answers are the most frequent."""
    many = {"a": 1, "b": 5, "c": 3, "d": 3}
    drawn = report(
        replace(policy("x", 0.5), answers=many), policy("y", 0.7), policy("fault-free", 1.0),
        replace(policy("z", 0.0), refusal="needs 61 GiB"),
    )  # fmt: skip
    html = replay_html(drawn)
    rows = {words_of(row).split(" ")[0]: row for row in re.findall(r"<tr.*?</tr>", html)}
    best = re.findall(r'<tr class="best"><th>.*?</i>(\w+)', html)
    assert best == ["y"]
    assert "b 5 times, c 3 times, d 3 times and 1 more" in html and "restart 3 times" in html
    assert "restart once" in replay_html(report(replace(policy("x", 0.5), answers={"restart": 1})))
    assert "cannot train: needs 61 GiB" in html and 'class="reference"' in html
    assert rows


def test_what_was_assumed_is_told() -> None:
    """Costs with their units, what was left to rtk, the mapping, and the trace."""
    html = replay_html(replayed({"a": 10.0}))
    assert "Node n holds the n-th worker." in html
    assert "restart 5 min" in html and "snapshot 10 GB/s" in html and "GPU-hour price 2.0" in html
    assert "worked out from the model and the trace: checkpoint every, checkpoint pause, copy" in html
    assert "Job: gpt, 4 pipelines, 2 stages, 4 micro-batches a pipeline, 8 nodes" in html
    assert "Trace: spot.csv, 12 h, 36 changes, 8 at the most" in html
    small = report(policy("a", 1.0), job={"dp": 1, "microbatches": 1}, trace={"moments": 1, "nodes_lost": 1})
    assert "Job: a model, 1 pipeline, 1 micro-batch a pipeline" in replay_html(small)
    assert "Trace: a trace, 1 change, 1 node lost" in replay_html(small)
    assert cost_words({"strange": "text", "restart_s": "soon"}) == "restart soon, strange text"


def test_a_comparison_marks_the_best_of_each_column() -> None:
    """A table of policies by reports: what trains most and what is cheapest is said first, and marked."""
    small = report(policy("rtk", 0.9, count=900), policy("spares", 0.6, count=900), trace={"nodes_max": 10})
    large = report(policy("rtk", 0.8, cost=4000.0), policy("spares", 0.7), job={"model": "gpt", "nodes": 10})
    html = comparison_html([small, large])
    said = words_of(html)
    assert labels_of([small, large]) == ["8 nodes and 2 spares", "10 nodes"]
    assert "rtk (8 nodes and 2 spares) trains the most, and is the cheapest, too: a micro-batch cost 2.47." in said
    assert "10 nodes: rtk is best, with a goodput of 80.0 %." in said
    table = html[html.index("<table>") : html.index("</table>")]
    assert re.findall(r'<td class="best">(.*?)</td>', table) == [
        "90.0 %",
        "100.0 %",
        "2.47",
        "80.0 %",
        "98.8 %",
        "2.86",
    ]


def test_other_models_are_not_compared_by_what_they_train() -> None:
    """Micro-batches of two models are not alike: only goodputs stand side by side."""
    other = report(policy("rtk", 0.7), replace(policy("huge", 0.0), refusal="no"), job={"model": "llama"})
    html = comparison_html([report(policy("rtk", 0.9)), other], ["a", "b"])
    assert "trained, of the most" not in html and "trains the most" not in html
    assert html.count("<h2>") == 2 and "cannot train</td>" in html


def test_reports_have_labels_of_their_own() -> None:
    """Nodes, else traces, else numbers tell reports apart."""
    one, two = report(policy("a", 1.0)), report(policy("a", 1.0), trace={"name": "x/other.csv"})
    assert labels_of([one, two]) == ["8 nodes, spot.csv", "8 nodes, other.csv"]
    assert labels_of([one, one]) == ["8 nodes (1)", "8 nodes (2)"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "200 ms"), (120.0, "2 min"), (5400.0, "90 min"), (3600.0, "1 h"), (40_920.0, "11.4 h"), (86_400.0, "1 day"),
     (345 * 86_400.0, "345 days")],
)  # fmt: skip
def test_spans_are_said_as_people_do(seconds: float, words: str) -> None:
    """In the largest unit of which there are some."""
    assert print_span(seconds) == words


def test_amounts_have_no_more_digits_than_they_need() -> None:
    """Three digits at the least, and commas; amounts under each other have the greatest one's decimals."""
    assert [print_amount(value) for value in (1234.5, -8.29, 0.0, 0.0487)] == ["1,234", "-8.29", "0", "0.0487"]
    assert [print_amount(value, 15.3) for value in (15.3, 0.5, -0.018, 0.0)] == ["15.3", "0.5", "0.0", "0.0"]
    assert [print_memory(size) for size in (74 * 2.0**30, 6.0)] == ["74.0 GiB", "6 B"]
