"""Orders travel to torch's CSV and back unchanged, and what a CSV cannot carry is refused by name."""

import io
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.cli import export, import_
from rtk.planners.pipeline import plan_from_orders, plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.titan_files import torchtitan_parts
from rtk.runners.torch_comms import to_torch_comms_csv
from rtk.runners.torch_csv import from_torch_csv, not_carried, splits_backward, to_torch_csv
from rtk.schemas.documents import canonical, parse_document, read_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.orders import Kind, Operation, Schedule, print_order
from rtk.schemas.plan import Link, Pipeline, Plan, Planner, Stage, Template, Worker
from rtk.schemas.profile import Device, Layer, LayerCost, Profile

from ..paired_plans import paired_plans
from ..placed_plans import placed_plans

Orders = Sequence[Sequence[tuple[Kind, int]]]

PROFILE = Profile(tuple(Layer((LayerCost(1.0, 1.0, 1.0),), activation_bytes=2, weight_stash_bytes=1) for _ in range(4)))
ONE_F_ONE_B = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def make_plan(orders: Orders, pipelines: int = 1) -> Plan:
    """A plan with the same orders in every pipeline; whether they are valid is of no account here."""
    stages = tuple(Stage((i, i + 1), 1.0, 1.0, 1.0) for i in range(len(orders)))
    workers = (
        Worker(k, i, print_order((Operation(kind, k, j) for kind, j in order), k))
        for k in range(pipelines)
        for i, order in enumerate(orders)
    )
    return Plan(
        planner=Planner("by hand", "1", {}),
        templates=(Template("t0", stages, (Link(),) * (len(orders) - 1)),),
        pipelines=(Pipeline("t0", 2),) * pipelines,
        optimizer="synchronous",
        workers=tuple(workers),
    )


def with_worker(plan: Plan, name: str, **changes: Any) -> Plan:
    """The plan with one worker changed."""
    return replace(plan, workers=tuple(replace(w, **changes) if w.name == name else w for w in plan.workers))


kinds: st.SearchStrategy[Kind] = st.sampled_from(("F", "I", "W", "B"))
any_orders = st.lists(st.lists(st.tuples(kinds, st.integers(0, 10**9 - 1)), min_size=1), min_size=1, max_size=12)


def read_back(text: str) -> Orders:
    """The orders of a file in which rank i holds stage i."""
    found = from_torch_csv(text, "x.csv")
    assert found.placement is None
    assert not any(found.pairs)
    return [[(one.kind, one.microbatch) for one in order] for order in found.orders]


@given(any_orders, st.integers(1, 3))
def test_round_trip(orders: Orders, pipelines: int) -> None:
    """What is written is read back, whatever the orders; equal pipelines are written once."""
    assert read_back(to_torch_csv(make_plan(orders, pipelines))) == orders


@given(placed_plans(max_dp=1))
def test_round_trip_with_placements(plan: Plan) -> None:
    """The orders of one pipeline come back as they were, and so does which stages each rank holds."""
    found = from_torch_csv(to_torch_csv(replace(plan, optimizer="synchronous")), "x.csv")
    assert found.orders == tuple(worker.operations() for worker in plan.workers)
    assert found.placement == plan.templates[0].placement


@given(placed_plans(max_dp=1), st.data())
def test_pairs_are_read_one_after_the_other(plan: Plan, data: st.DataObject) -> None:
    """Any two operations that stand one after the other may be a pair that torch overlaps; the orders stay the same."""
    text = to_torch_csv(replace(plan, optimizer="synchronous"))
    rows = [line.split(",") for line in text.splitlines()]
    pairs: list[set[int]] = []
    for row in rows:
        pairs.append(set())
        for place in range(len(row) - 2, -1, -1):
            if ")" not in row[place + 1] and data.draw(st.booleans()):
                row[place : place + 2] = [f"({row[place]};{row[place + 1]})OVERLAP_F_B"]
                pairs[-1].add(place)
    found = from_torch_csv("\n".join(map(",".join, rows)), "x.csv")
    assert found == replace(from_torch_csv(text, "x.csv"), pairs=tuple(map(frozenset, pairs)))


@given(paired_plans(max_dp=1))
def test_pairs_come_back_as_they_were(plan: Plan) -> None:
    """What runs side by side in a plan of one pipeline is written as torch's pairs, and read as those."""
    found = from_torch_csv(to_torch_csv(replace(plan, optimizer="synchronous")), "x.csv")
    assert found.orders == tuple(worker.operations() for worker in plan.workers)
    assert found.pairs == tuple(worker.pairs() for worker in plan.workers)
    assert found.may_be_kept


@given(st.data(), any_orders)
def test_bubbles_and_spaces_do_not_matter(data: st.DataObject, orders: Orders) -> None:
    """Empty cells, spaces around cells and Windows line ends are skipped."""
    blank = st.text(" \t", max_size=2)
    lines = []
    for line in to_torch_csv(make_plan(orders)).splitlines():
        cells = [f"{data.draw(blank)}{cell}{data.draw(blank)}" for cell in line.split(",")]
        for place in sorted(data.draw(st.lists(st.integers(0, len(cells)), max_size=3)), reverse=True):
            cells.insert(place, data.draw(blank))
        lines.append(",".join(cells))
    end = data.draw(st.sampled_from(("\n", "\r\n")))
    assert read_back(end.join(lines) + data.draw(st.sampled_from(("", end, end + end)))) == orders


@given(st.text("0123FIWB,SEND_()\n ;x٣"))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text breaks the parser: it is orders, or invalid input."""
    try:
        assert all(from_torch_csv(text, "x.csv").orders)
    except InvalidInputError as error:
        assert str(error.where).startswith("x.csv, line ")


def test_the_form() -> None:
    """One line a stage, `<stage><OP><micro-batch>` a cell, no header."""
    orders: Orders = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("I", 0), ("F", 1), ("B", 1), ("W", 0)]]
    assert to_torch_csv(make_plan(orders)) == "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1B1,1W0\n"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("1F1xyz", "'1F1xyz' is not an operation"),
        ("x1F1", "is not an operation"),
        ("1F", "is not an operation"),
        ("F1", "is not an operation"),
        ("1F1.0", "is not an operation"),
        ("1 F1", "is not an operation"),
        ("01F1", "is not an operation"),
        ("-1F1", "is not an operation"),
        ("1F٣", "is not an operation"),
        ('"1F1"', "is not an operation"),
        ("1F1000000000", "is not an operation"),
        ("1SEND_F1", "is of the kind SEND_F, which a plan does not hold"),
        ("1RECV_B1", "is of the kind RECV_B,"),
        ("1UNSHARD", "is of the kind UNSHARD,"),
        ("1RESHARD", "is of the kind RESHARD,"),
        ("1REDUCE_GRAD", "is of the kind REDUCE_GRAD,"),
        ("(1F1;1SEND_B0)OVERLAP_F_B", "is not an operation"),
        ("(1F1;1B0", "is not an operation"),
        ("()OVERLAP_F_B", "is not an operation"),
        ("\0" * 5000, "is not an operation"),
        ("0F1", "is of stage 0, in the row of rank 1, but rank 0 has it"),
        ("3F1", "there is an operation of stage 3, and none of stage 2 on any rank"),
    ],
)
def test_foreign_cells_are_refused_with_their_place(cell: str, words: str) -> None:
    """The parser is stricter than torch's, and says the line and the column, counted from 1."""
    with pytest.raises(InvalidInputError) as caught:
        from_torch_csv(f"0F0,0B0\n1F0,, {cell},1B0\n", "x.csv")
    assert words in caught.value.what
    assert caught.value.where == "x.csv, line 2 column 7" and len(caught.value.what) < 100


@pytest.mark.parametrize(("text", "line"), [("", 1), ("\n\n", 1), ("0F0\n\n2F0\n", 2), ("0F0\n , ,\n", 2)])
def test_a_rank_without_operations_is_refused(text: str, line: int) -> None:
    """An empty file, an empty line, or a line of bubbles."""
    with pytest.raises(InvalidInputError, match=f"rank {line - 1} has no operation") as caught:
        from_torch_csv(text, "x.csv")
    assert caught.value.where == f"x.csv, line {line}"


ORDERS: Orders = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("B", 0), ("F", 1), ("B", 1)]]
PLAN = make_plan(ORDERS, pipelines=2)


@pytest.mark.parametrize(
    ("plan", "words", "where"),
    [
        (replace(PLAN, optimizer="staggered"), "a staggered optimizer", "/optimizer"),
        (with_worker(PLAN, "1/0", order=None, failed=True), "a failed worker (1/0)", "/workers/2/failed"),
        (
            with_worker(PLAN, "0/1", order="F0 B0 F1 B1 F1.0 B1.0"),
            "a re-routed micro-batch (F1.0 on worker 0/1)",
            "/workers/1/order",
        ),
        (with_worker(PLAN, "1/1", order="F0 F1 B0 B1"), "pipelines whose orders differ (1 from 0)", "/pipelines/1"),
        (replace(PLAN, workers=PLAN.workers[:-1]), "pipelines whose orders differ (1 from 0)", "/pipelines/1"),
    ],
)
def test_what_a_csv_cannot_carry_is_refused_by_name(plan: Plan, words: str, where: str) -> None:
    """A CSV holds one order a stage: whatever a plan means beyond that is an error that names it."""
    with pytest.raises(InvalidInputError) as caught:
        to_torch_csv(plan)
    assert caught.value.what == f"a torch CSV cannot carry {words}"
    assert caught.value.where == where


def test_what_is_left_out_is_named() -> None:
    """What only describes the orders is left out; a plan is told what it says beside them, and no more."""
    assert not_carried(make_plan(ORDERS)) == ["the cut into layers", "costs"]
    shape = Shape(2, 2, 2, memory_limit_bytes=[8], link_delay_s={(1, 0): 0.5})
    plan = with_worker(plan_pipeline(PROFILE, shape, "1f1b"), "0/0", slowdown=2.0)
    assert not_carried(plan)[2:] == [
        "link delays",
        "memory limits",
        "slowdowns",
        "the number of pipelines",
        "the prediction",
    ]


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_a_plan_comes_back_as_it_was(schedule: Any) -> None:
    """Exported and imported with the same profile, a plan has the same orders, costs and prediction."""
    plan = plan_pipeline(PROFILE, Shape(4, 3, 5), schedule)
    orders = from_torch_csv(to_torch_csv(plan), "x.csv").orders
    made = plan_from_orders(PROFILE, orders, Shape(4, 3, 5), "import", "x.csv")
    assert made.planner.name == "import"
    assert replace(made, planner=plan.planner) == plan


@pytest.mark.parametrize(
    ("csv", "words"),
    [
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "micro-batch 0.1 at stage 0 has 1 F"),
        ("0F0,0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "micro-batch 0.0 at stage 0 has 2 F, 1 B"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F7,1B7\n", "is foreign"),
        ("0B0\n1B0\n", "has 1 B"),
        (
            "0B0,0F0,0F1,0B1\n1F0,1B0,1F1,1B1\n",
            "comes before F of micro-batch 0.0 on worker 0/0 (operation 1)",
        ),
        ("0F0,0F1,0I0,0I1,0W0\n1F0,1B0,1F1,1B1\n", "has 1 F, 1 I"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "deadlock: "),
    ],
)
def test_bad_orders_are_invalid_input(csv: str, words: str) -> None:
    """The checker judges the orders before anything is computed from them."""
    orders = from_torch_csv(csv, "x.csv").orders
    with pytest.raises(InvalidInputError) as caught:
        plan_from_orders(PROFILE, orders, Shape(2, 2, 2), "import", "x.csv")
    assert words in caught.value.what
    assert caught.value.where == "x.csv"


def test_orders_that_do_not_fit_in_memory_are_invalid_input() -> None:
    """The device of the profile bounds the micro-batches under way."""
    with pytest.raises(InvalidInputError, match="holds up to 8 B, its limit is 5 B"):
        profile, orders = replace(PROFILE, device=Device(memory_bytes=5)), from_torch_csv(ONE_F_ONE_B, "x.csv").orders
        plan_from_orders(profile, orders, Shape(2, 1, 2), "import", "x.csv")


@pytest.fixture
def files(tmp_path: Path) -> SimpleNamespace:
    paths = {name: str(tmp_path / name) for name in ("profile", "plan", "csv", "out")}
    write_document(paths["profile"], PROFILE)
    write_document(paths["plan"], plan_pipeline(PROFILE, Shape(2, 1, 2), "1f1b"))
    Path(paths["csv"]).write_text(ONE_F_ONE_B)
    return SimpleNamespace(**paths)


def run(capsys: pytest.CaptureFixture[str], module: ModuleType, *arguments: str) -> tuple[str, str]:
    """Standard output and error of a command."""
    app = typer.Typer()
    app.command()(module.command)
    app(list(arguments), standalone_mode=False)
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.wheel("export")
def test_export_writes_a_file_and_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace
) -> None:
    """The CSV goes to -o; a warning on standard error names what it does not hold; --json says what was written."""
    said = run(capsys, export, files.plan, "--to", "torch-csv", "-o", files.out)
    assert said == ("", "warning: left out, for a CSV holds orders only: the cut into layers, costs, the prediction\n")
    assert Path(files.out).read_text() == ONE_F_ONE_B
    out, _ = run(capsys, export, files.plan, "--to", "torch-csv", "-o", files.out, "--json")
    lost = ["the cut into layers", "costs", "the prediction"]
    assert json.loads(out) == {"written": files.out, "format": "torch-csv", "ranks": 2, "lost": lost}


@given(
    st.lists(st.tuples(*(st.sampled_from((0.0, 0.5, 1.0, 3.0)),) * 3), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from(get_args(Schedule)),
)
def test_messages_are_in_one_order_at_both_ends(
    costs: list[tuple[float, float, float]], microbatches: int, schedule: Schedule
) -> None:
    """Ranks whose every SEND waits for its RECV, as NCCL's may, get to the end: to a step of all of them."""
    profile = Profile(tuple(Layer((LayerCost(*one),)) for one in costs))
    rendezvous(plan_pipeline(profile, Shape(len(costs), 1, microbatches), schedule))


@settings(max_examples=60)
@given(placed_plans(max_dp=1))
def test_messages_between_ranks_of_several_stages_too(plan: Plan) -> None:
    """So it is where ranks hold several stages: between two of one rank nothing is sent."""
    rendezvous(replace(plan, optimizer="synchronous"))


def rendezvous(plan: Plan) -> None:
    """Run a plan's compute_comms file, each SEND waiting for its RECV."""
    rows = [line.split(",") for line in to_torch_comms_csv(plan).splitlines()]
    computing = [",".join(cell for cell in row if re.fullmatch(r"\d+[FIWB]\d+", cell)) for row in rows]
    assert "\n".join(computing) + "\n" == to_torch_csv(plan)
    template = plan.template_of(0)
    for held, row in zip(template.columns, rows, strict=True):
        assert row[: len(held)] == [f"{stage}UNSHARD" for stage in held]
        assert row[-2 * len(held) :] == [f"{stage}{end}" for stage in held for end in ("RESHARD", "REDUCE_GRAD")]
    rank_of = template.column_of
    at, received = [0] * len(rows), set[str]()

    def partner(cell: str) -> tuple[int, str] | None:
        found = re.fullmatch(r"(\d+)(SEND|RECV)_([FB])(\d+)", cell)
        if found is None:
            return None
        stage, what, way, number = int(found[1]), found[2], found[3], found[4]
        other = stage + 1 if (what == "SEND") == (way == "F") else stage - 1
        assert rank_of[stage] != rank_of[other]
        return rank_of[other], f"{other}{'RECV' if what == 'SEND' else 'SEND'}_{way}{number}"

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            cell = row[at[rank]]
            meeting = partner(cell)
            if meeting is None:
                computes = re.fullmatch(r"(\d+)([FIB])(\d+)", cell)
                stage, way = (int(computes[1]), computes[2]) if computes is not None else (0, "F")
                before = stage - 1 if way == "F" else stage + 1
                if computes is not None and 0 <= before < len(rank_of) and rank_of[before] != rank:
                    assert f"{stage}RECV_{'F' if way == 'F' else 'B'}{computes[3]}" in received
                at[rank] += 1
            elif rows[meeting[0]][at[meeting[0]] : at[meeting[0]] + 1] == [meeting[1]]:
                received |= {cell, meeting[1]}
                at[rank] += 1
                at[meeting[0]] += 1
            else:
                continue
            moved = True
    assert at == [len(row) for row in rows]


def test_export_with_messages(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """torch-comms is torch's compute_comms form: a receive where the message is sent, by the plan's times."""
    out, _ = run(capsys, export, files.plan, "--to", "torch-comms")
    assert out == (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n"
        "1UNSHARD,1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1RESHARD,1REDUCE_GRAD\n"
    )


def test_split_backward_comes_with_a_warning(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """Under fully_shard torch has computed wrong gradients for I and W, silently; B has nothing to warn of."""
    assert "fully_shard" not in run(capsys, export, files.plan, "--to", "torch-csv")[1]
    split = plan_pipeline(PROFILE, Shape(2, 1, 2), "zero-bubble")
    assert splits_backward(split)
    write_document(files.plan, split)
    for form in ("torch-csv", "torch-comms"):
        said = run(capsys, export, files.plan, "--to", form)[1]
        assert "wrong gradients for them under fully_shard" in said


def test_export_for_torchtitan(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """A folder of the orders, without and with messages, and of settings, the cut among them; again the same bytes."""
    write_document(files.plan, plan_pipeline(PROFILE, Shape(2, 3, 2), "1f1b"))
    for _ in range(2):
        _, said = run(capsys, export, files.plan, "--to", "torchtitan", "-o", files.out)
        assert said == "warning: left out, for its settings hold orders, cut and degrees only: costs, the prediction\n"
        folder = Path(files.out)
        csv = folder / "schedule.csv"
        assert sorted(file.name for file in folder.iterdir()) == [
            "parallelism.json", "parallelism.toml", "pipelining.py", "schedule-comms.csv", "schedule.csv",
        ]  # fmt: skip
        compile((folder / "pipelining.py").read_text(), "pipelining.py", "exec")
        assert (folder / "schedule-comms.csv").read_text() == to_torch_comms_csv(read_document(files.plan, Plan))
        lines = tomllib.loads((folder / "parallelism.toml").read_text())
        assert lines["training"] == {"local_batch_size": 2}
        parts = lines["parallelism"].pop("module_fqns_per_model_part")
        assert parts == [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
        assert csv.read_text() == ONE_F_ONE_B
        assert (
            json.loads((Path(files.out) / "parallelism.json").read_text())
            == {
                "pipeline_parallel_degree": 2,
                "data_parallel_replicate_degree": 3,
                "data_parallel_shard_degree": 1,
                "pipeline_parallel_schedule": "1F1B",
                "pipeline_parallel_schedule_csv": str(csv),
                "pipeline_parallel_microbatch_size": 1,
                "module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]],
            }
            == {**lines["parallelism"], "module_fqns_per_model_part": torchtitan_parts(read_document(files.plan, Plan))}
        )
    for wrong in (("-o", "-"), ("-o", files.csv), ("-o", f"{files.out}/not/there")):
        with pytest.raises(InvalidInputError):
            run(capsys, export, files.plan, "--to", "torchtitan", *wrong)


def test_a_model_without_blocks_is_no_decoder() -> None:
    """Torchtitan's parts are an embedding, blocks and a head."""
    plan = plan_pipeline(replace(PROFILE, layers=PROFILE.layers[:2]), Shape(2, 1, 2), "1f1b")
    with pytest.raises(InvalidInputError, match="no block"):
        torchtitan_parts(plan)


def test_export_to_standard_output(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """Without -o the CSV is printed, and with --json as a field of the one document."""
    out, _ = run(capsys, export, files.plan, "--to", "torch-csv")
    assert out == ONE_F_ONE_B
    out, _ = run(capsys, export, files.plan, "--to", "torch-csv", "--json")
    lost = ["the cut into layers", "costs", "the prediction"]
    assert json.loads(out) == {"csv": ONE_F_ONE_B, "format": "torch-csv", "ranks": 2, "lost": lost}


@pytest.mark.wheel("import")
def test_import_makes_a_plan(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """The plan takes its costs and its cut from the profile, and says what it was made from."""
    run(capsys, import_, files.csv, "--from", "torch-csv", "--profile", files.profile, "--dp", "2", "-o", files.out)
    made = read_document(files.out, Plan)
    expected = plan_pipeline(PROFILE, Shape(2, 2, 2), "1f1b")
    assert replace(made, planner=expected.planner, inputs=expected.inputs) == expected
    assert set(made.inputs) == {"profile", "schedule"}
    arguments = (files.csv, "--from", "torch-csv", "--profile", files.profile, "--dp", "2", "-o", files.out, "--json")
    assert parse_document(run(capsys, import_, *arguments)[0].encode(), Plan, "out") == made


def test_pipes_on_both_ends(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` reads standard input, once."""

    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    give(ONE_F_ONE_B.encode())
    out, _ = run(capsys, import_, "-", "--from", "torch-csv", "--profile", files.profile)
    give(out.encode())
    assert run(capsys, export, "-", "--to", "torch-csv")[0] == ONE_F_ONE_B
    give(canonical(PROFILE))
    assert run(capsys, import_, files.csv, "--from", "torch-csv", "--profile", "-")[0] == out
    with pytest.raises(InvalidInputError, match="only once"):
        run(capsys, import_, "-", "--from", "torch-csv", "--profile", "-")


@pytest.mark.parametrize(
    ("csv", "words"),
    [
        (b"0F0xyz\n", "is not an operation"),
        (b"\xff", "not UTF-8"),
        (b"0F0,0B0\n" * 5, "is of stage 0, in the row of rank 1"),
        (b"".join(b"%dF0,%dB0\n" % (i, i) for i in range(5)), "5 stages need as many layers, the profile has 4"),
        (b"0F0\n", "it needs one F, and one B"),
    ],
)
def test_a_bad_csv_writes_nothing(
    capsys: pytest.CaptureFixture[str], files: SimpleNamespace, csv: bytes, words: str
) -> None:
    """One clear error that names the file, and no plan."""
    Path(files.csv).write_bytes(csv)
    with pytest.raises(InvalidInputError) as caught:
        run(capsys, import_, files.csv, "--from", "torch-csv", "--profile", files.profile, "-o", files.out)
    assert words in caught.value.what
    assert str(caught.value.where).startswith(files.csv)
    assert not Path(files.out).exists()


def test_a_broken_plan_is_not_exported(capsys: pytest.CaptureFixture[str], files: SimpleNamespace) -> None:
    """Only valid plans are."""
    write_document(files.plan, make_plan([[("B", 0)]]))
    with pytest.raises(InvalidInputError):
        run(capsys, export, files.plan, "--to", "torch-csv", "-o", files.out)
    assert not Path(files.out).exists()
