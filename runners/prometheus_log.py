"""A job's numbers for Prometheus: served over HTTP, or in a file for node_exporter's textfile collector.

The file is for clusters whose jobs nobody may connect to, such as Slurm's: node_exporter reads every `*.prom` of a
folder (https://github.com/prometheus/node_exporter#textfile-collector).
"""

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import InvalidInputError, remark, require_package
from .job_metrics import METRICS, PREFIX, JobMetrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

REWRITE_S = 1.0  # iterations alone write the file no more often
ENDING = ".prom"  # what node_exporter reads

_ADDRESS = re.compile(r"(.*:)?\d+")


class PrometheusLog:
    """Events become metrics, `rtk_…`, at an address or in a file.

    Args:
        target: `PORT` (on loopback), `HOST:PORT`, or a file's name that ends in `.prom`.
        option: names the option in errors.

    Raises:
        InvalidInputError: prometheus-client is not installed, or the address or the file is not to be had.
    """

    def __init__(self, target: str, option: str) -> None:
        require_package("prometheus_client", option)
        from prometheus_client import CollectorRegistry

        from .addresses import parse_listening

        self._metrics, self._registry = JobMetrics(), CollectorRegistry()
        self._registry.register(self)
        self._server: tuple[Any, threading.Thread] | None = None
        self._path: Path | None = None
        self._written_s = float("-inf")
        where = f"{option} prometheus:{target}"
        if _ADDRESS.fullmatch(target):
            self._server = self._serve(*parse_listening(target, where=where), where)
        else:
            self._path = _checked(Path(target), where)
            self._rewrite()

    @property
    def port(self) -> int | None:
        """At which it is served; None for a file."""
        return None if self._server is None else int(self._server[0].server_port)

    def collect(self) -> "Iterator[Metric]":
        """All metrics as they are now; called by prometheus-client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, values in self._metrics.values():
            metric = METRICS[name]
            family = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}[metric.kind]
            told = family(PREFIX + name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                told.add_metric(labels, value)
            yield told

    def write(self, said: Mapping[str, Any], words: str | None) -> None:
        """Take one event; a file is written anew, at iterations once a second."""
        self._metrics.note(said)
        if self._path is not None and (said["event"] != "iteration" or time.monotonic() > self._written_s + REWRITE_S):
            self._rewrite()

    def close(self) -> None:
        """Write what is left, or stop serving; again does nothing."""
        if self._path is not None:
            self._rewrite()
            self._path = None
        server, self._server = self._server, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
            server[1].join()

    def _serve(self, host: str, port: int, where: str) -> tuple[Any, threading.Thread]:
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, addr=host, registry=self._registry)
            return server, thread
        except OSError as error:
            raise InvalidInputError(
                f"cannot serve metrics there: {error.strerror}",
                where=where,
                fix="name another port, or an address of this machine",
            ) from None

    def _rewrite(self) -> None:
        from prometheus_client import write_to_textfile

        if self._path is None:
            return
        try:
            write_to_textfile(str(self._path), self._registry)
        except OSError as error:
            remark(f"{self._path}: {error.strerror}; no more metrics are written, the training goes on")
            self._path = None
        self._written_s = time.monotonic()


def _checked(path: Path, where: str) -> Path:
    """The file's name, if it may be written."""
    if path.suffix != ENDING:
        raise InvalidInputError(
            f"{str(path)!r} is neither an address nor a file that Prometheus's node_exporter reads",
            where=where,
            fix=f"write prometheus:PORT, prometheus:HOST:PORT, or prometheus:FILE{ENDING}",
        )
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InvalidInputError("nothing can be written into its folder", where=where, fix="make the folder first")
    try:
        begin = path.read_bytes()[:64] if path.exists() else b""
    except OSError as error:
        raise InvalidInputError(f"cannot read what is there: {error.strerror}", where=where) from None
    if begin and not begin.startswith(f"# HELP {PREFIX}".encode()):
        raise InvalidInputError(
            "the file is there and is not of rtk's metrics", where=where, fix="name another file, or remove it"
        )
    return path
