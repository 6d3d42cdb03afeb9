"""A job's numbers: folded from its events, served and written for Prometheus, sent to OpenTelemetry."""

import gzip
import json
import re
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtk
from rtk.runners.job_metrics import METRICS, PREFIX, JobMetrics
from rtk.runners.log_writers import OPTION, log_writers
from rtk.runners.prometheus_log import PrometheusLog
from rtk.schemas.errors import InvalidInputError

DOCS = Path(rtk.__file__).resolve().parent / "docs"
STORY: list[dict[str, Any]] = [
    {"event": "start", "iteration": 0, "iterations": 9, "live_workers": 4, "model": "gpt-tiny"},
    {"event": "epoch", "epoch": 1, "workers": {"0/0": "0/0", "1/0": "1/0"}, "failed": ["1/1"], "live_workers": 3},
    {"event": "iteration", "iteration": 0, "loss": 5.5, "iteration_time_s": 0.5, "live_workers": 3, "skipped": False},
    {"event": "failure", "worker": "1/0", "place": "1/0", "reason": "killed"},
    {"event": "slow_worker", "worker": "0/0", "factor": 1.5},
    {"event": "recovered", "seconds": 1.25, "lost_s": 0.75},
    {"event": "iteration", "iteration": 1, "loss": None, "iteration_time_s": 1.5, "live_workers": 2, "skipped": True},
    {"event": "checkpoint", "iteration": 2, "path": "c", "seconds": 0.1},
    {"event": "checkpoint", "iteration": 3, "path": None, "seconds": 0.1, "error": "no space"},
]


def told(*events: dict[str, Any]) -> JobMetrics:
    metrics = JobMetrics()
    for one in events:
        metrics.note(one)
    return metrics


def test_events_become_numbers() -> None:
    """Gauges say the last value, counters add up, places say who works, and what is not known any more is left out."""
    now = dict(told(*STORY).values())
    assert "loss" not in now  # of the last iteration nobody knows it
    assert now["iteration"] == {(): 1.0}
    assert now["iterations_total"] == {(): 2.0} and now["iteration_seconds_total"] == {(): 2.0}
    assert now["skipped_total"] == {(): 1.0}
    assert now["place_up"] == {("0/0",): 1.0, ("1/0",): 0.0, ("1/1",): 0.0}
    assert now["worker_slowdown"] == {("0/0",): 1.5}
    assert now["lost_seconds_total"] == {(): 0.75}
    assert now["checkpoints_total"] == {(): 1.0} and now["checkpoint_failures_total"] == {(): 1.0}
    assert now["events_total"][("checkpoint",)] == 2.0
    over = told(*STORY, {"event": "relief", "worker": "0/0"}, {"event": "end", "exit_code": 5})
    assert (
        over.value("worker_slowdown") == {} and over.value("up") == {(): 0.0} and over.value("exit_code") == {(): 5.0}
    )


@pytest.mark.parametrize("event", ["failure", "leave", "raised"])
def test_a_worker_that_is_gone_is_slow_no_more(event: str) -> None:
    """Nor are its links; those of others are. When the job restarts, all is forgotten."""
    slow = [
        {"event": "slow_worker", "worker": "0/0", "factor": 1.5},
        {"event": "slow_worker", "worker": "1/0", "factor": 2.0},
        {"event": "slow_link", "link": "1/0-1/1", "delay_s": 0.1},
        {"event": "slow_link", "link": "0/0-0/1", "delay_s": 0.1},
    ]
    gone = told(*slow, {"event": event, "worker": "1/0", "place": "1/0"})
    assert gone.value("worker_slowdown") == {("0/0",): 1.5}
    assert gone.value("link_delay_seconds") == {("0/0-0/1",): 0.1}
    again = told(*slow, {"event": "restart"})
    assert again.value("worker_slowdown") == again.value("link_delay_seconds") == {}


@given(st.lists(st.sampled_from(STORY), max_size=30))
def test_counters_never_fall(story: list[dict[str, Any]]) -> None:
    """Whatever happens in whatever order, no counter gets less, and each event is counted once."""
    metrics, before = JobMetrics(), {name: 0.0 for name, one in METRICS.items() if one.kind == "counter"}
    for one in story:
        metrics.note(one)
        after = {name: sum(metrics.value(name).values()) for name in before}
        assert all(after[name] >= before[name] for name in before)
        before = after
    assert before["events_total"] == len(story)


def in_prometheus_text(text: str) -> dict[str, float]:
    """What Prometheus's own parser reads."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        "".join((one.name, *(f"[{value}]" for value in one.labels.values()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def write(*targets: str) -> None:
    logs = log_writers(targets)
    for number, one in enumerate(STORY):
        for log in logs:
            log.write({**one, "unix_time_s": 100.0 + number}, one["event"])
    for log in logs:
        log.close()
        log.close()


def test_prometheus_reads_what_is_served() -> None:
    """A bare port is on loopback only; the page is read by Prometheus's parser, and is gone when the run is over."""
    log = PrometheusLog("0", OPTION)
    for number, one in enumerate(STORY):
        log.write({**one, "unix_time_s": 100.0 + number}, None)
    address = ("127.0.0.1", log.port)
    with urlopen(f"http://127.0.0.1:{log.port}/metrics", timeout=10) as page:
        found = in_prometheus_text(page.read().decode())
    assert found["rtk_failures_total"] == 1.0 and found["rtk_place_up[1/0]"] == 0.0
    assert found[f"rtk_info[gpt-tiny][{rtk.__version__}]"] == 1.0
    log.close()
    log.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, 5)


def test_a_file_for_node_exporter(tmp_path: Path) -> None:
    """It is there from the start, has all at the end, and a later run replaces it; nothing else lies in the folder."""
    path = tmp_path / "rtk.prom"
    log = PrometheusLog(str(path), OPTION)
    assert in_prometheus_text(path.read_text())["rtk_failures_total"] == 0.0
    log.close()
    write(f"prometheus:{path}")
    assert in_prometheus_text(path.read_text())["rtk_iterations_total"] == 2.0
    assert [one.name for one in tmp_path.iterdir()] == ["rtk.prom"]


def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    """A port that is taken, a file of another kind, a folder that is not there, an address that is none."""
    (tmp_path / "other.prom").write_text("node_boot_time 1\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for target, words in [
            (f"prometheus:{port}", "cannot serve metrics there: Address already in use"),
            ("prometheus:127.0.0.1:99999", "is no address"),
            (f"prometheus:{tmp_path / 'other.prom'}", "is not of rtk's metrics"),
            (f"prometheus:{tmp_path / 'away' / 'a.prom'}", "nothing can be written into its folder"),
            ("prometheus:metrics.txt", "neither an address nor a file"),
            ("otlp:collector:4318", "no address of a collector"),
        ]:
            with pytest.raises(InvalidInputError, match=re.escape(words)):
                log_writers([target])
    assert (tmp_path / "other.prom").read_text() == "node_boot_time 1\n"


def test_of_several_logs_none_stays_open_where_one_is_refused() -> None:
    """The port of the first is free again when the second is no log."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="names no log"):
            log_writers([f"prometheus:{port}", "wandb:x"])


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector's address, and what it gets: paths and bodies."""
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def test_a_collector_gets_metrics_and_events(collector: tuple[str, list[tuple[str, bytes]]]) -> None:
    """OpenTelemetry's own messages hold the same numbers as Prometheus's page, and every event as a log record."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    url, got = collector
    write(f"otlp:{url}")
    (last,) = [ExportMetricsServiceRequest.FromString(body) for path, body in got if path == "/v1/metrics"][-1:]
    numbers = {}
    for metric in last.resource_metrics[0].scope_metrics[0].metrics:
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            numbers[metric.name, tuple(one.value.string_value for one in point.attributes)] = point.as_double
    expected = {
        (PREFIX + name, labels): value for name, values in told(*STORY).values() for labels, value in values.items()
    }
    assert numbers == expected
    records = [
        record
        for path, body in got
        if path == "/v1/logs"
        for record in ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs[0].log_records
    ]
    assert [one.event_name for one in records] == [f"rtk.{one['event']}" for one in STORY]
    failure = records[3]
    assert failure.severity_number == 17 and failure.body.string_value == "failure"  # 17: error
    assert {one.key: one.value.string_value for one in failure.attributes}["worker"] == "1/0"


def test_a_collector_that_is_away_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once, and the end waits for it for some seconds only."""
    from rtk.runners import otlp_log

    remarks: list[str] = []
    monkeypatch.setattr(otlp_log, "remark", remarks.append)
    monkeypatch.setattr(otlp_log, "PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write(f"otlp:http://127.0.0.1:{port}")
    (said,) = remarks
    assert said.endswith("the training goes on")


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Every panel of the Grafana dashboard names metrics and labels that a job has."""
    dashboard = json.loads((DOCS / "dashboards" / "grafana.json").read_text())
    asked = [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]
    asked += [one["expr"] for one in dashboard["annotations"]["list"]]
    names = {name.removeprefix(PREFIX) for expression in asked for name in re.findall(r"rtk_\w+", expression)}
    assert names <= METRICS.keys()
    legends = {
        label
        for panel in dashboard["panels"]
        for one in panel["targets"]
        for label in re.findall(r"\{\{(\w+)\}\}", one["legendFormat"])
    }
    assert legends <= {label for name in names for label in METRICS[name].labels}


def test_the_page_names_every_metric() -> None:
    """docs/dashboards.md has a row for each, with what it is."""
    text = (DOCS / "dashboards.md").read_text()
    rows = dict(re.findall(r"^\| `(rtk_\w+)`[^|]*\| (.*?) \|$", text, flags=re.MULTILINE))
    assert rows == {PREFIX + name: metric.help for name, metric in METRICS.items()}
