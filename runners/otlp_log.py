"""A job's numbers and events for OpenTelemetry, sent by OTLP over HTTP to a collector.

Metrics are those of Prometheus under the same names; events are log records, whose body is the sentence for people
and whose attributes are the event's fields. What the environment says of the resource (`OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_SERVICE_NAME`) and of headers holds (https://opentelemetry.io/docs/specs/otel/protocol/exporter/).
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..schemas.errors import InvalidInputError, remark, require_package
from .job_metrics import METRICS, PREFIX, JobMetrics

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

EVERY_MS = 5_000  # metrics are sent so often
PATIENCE_S = 5.0  # for a collector that does not answer, at the end too
SERVICE = "rtk"


class OtlpLog:
    """Events go to a collector as metrics and log records, from threads of OpenTelemetry's.

    Args:
        endpoint: `http://HOST:PORT` of the collector, to which `/v1/metrics` and `/v1/logs` are added.
        option: names the option in errors.

    Raises:
        InvalidInputError: the packages are not installed, or it is no address.
    """

    def __init__(self, endpoint: str, option: str) -> None:
        require_package("opentelemetry", option)
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(
                f"{endpoint!r} is no address of a collector", where=option, fix="write otlp:http://HOST:4318"
            )
        self._endpoint, self._is_open = endpoint.rstrip("/"), True
        self._metrics = JobMetrics()
        _say_failures_once(self._endpoint)
        self._meters, self._logs = self._providers()
        self._logger = self._logs.get_logger(SERVICE)

    def write(self, said: Mapping[str, Any], words: str | None) -> None:
        """Hand an event to the threads that send."""
        from opentelemetry._logs import LogRecord, SeverityNumber

        if not self._is_open:
            return
        self._metrics.note(said)
        is_bad = said["event"] == "failure" or bool(said.get("exit_code") or said.get("error"))
        fields = {name: value for name, value in said.items() if value is not None and name != "unix_time_s"}
        self._logger.emit(
            LogRecord(
                timestamp=int(said["unix_time_s"] * 1e9),
                severity_number=SeverityNumber.ERROR if is_bad else SeverityNumber.INFO,
                body=words or said["event"],
                attributes=fields,
                event_name=f"rtk.{said['event']}",
            )
        )

    def close(self) -> None:
        """Send what is left, but wait for a collector not longer than some seconds; again does nothing."""
        if self._is_open:
            self._is_open = False
            self._meters.shutdown(timeout_millis=PATIENCE_S * 1e3)
            self._logs.shutdown()

    def _providers(self) -> tuple[Any, Any]:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        named = Resource({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
        to_metrics = OTLPMetricExporter(f"{self._endpoint}/v1/metrics", timeout=PATIENCE_S)
        meters = MeterProvider([PeriodicExportingMetricReader(to_metrics, EVERY_MS)], resource=named)
        meter = meters.get_meter(SERVICE)
        for name, metric in METRICS.items():
            make = {"gauge": meter.create_observable_gauge, "counter": meter.create_observable_counter}[metric.kind]
            make(PREFIX + name, [self._observer(name)], description=metric.help)
        logs = LoggerProvider(named)
        to_logs = OTLPLogExporter(f"{self._endpoint}/v1/logs", timeout=PATIENCE_S)
        logs.add_log_record_processor(BatchLogRecordProcessor(to_logs))
        return meters, logs

    def _observer(self, name: str) -> "Callable[[CallbackOptions], list[Observation]]":
        from opentelemetry.metrics import Observation

        def observe(_: "CallbackOptions") -> "list[Observation]":
            labels = METRICS[name].labels
            return [
                Observation(value, dict(zip(labels, given, strict=True)))
                for given, value in self._metrics.value(name).items()
            ]

        return observe


def _say_failures_once(endpoint: str) -> None:
    """What OpenTelemetry logs is one remark, for a collector that is away is no reason to fill a terminal."""

    class Once(logging.Handler):
        has_told = False

        def emit(self, record: logging.LogRecord) -> None:
            if not self.has_told:
                self.has_told = True
                remark(f"{endpoint}: {record.getMessage()}; the training goes on")

    told = logging.getLogger("opentelemetry")
    told.handlers, told.propagate = [Once(logging.WARNING)], False
