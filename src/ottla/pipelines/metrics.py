"""A running pipeline for Prometheus: `/metrics` on a port of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ottla.monitoring.text import CONTENT_TYPE, COUNTER, GAUGE, family
from ottla.pipelines.state import State


def exposition(state: State) -> str:
    """All figures of a pipeline, one sample for each query."""

    def samples(value: Callable[[int], float | None]) -> list[tuple[dict[str, object], float]]:
        found = ((one.name, value(number)) for number, one in enumerate(state.queries))
        return [({"pipeline": state.name, "query": name}, figure) for name, figure in found if figure is not None]

    queries = state.queries
    return "".join(
        (
            family(
                "ottla_pipeline_running", GAUGE, "Whether the query runs.", samples(lambda n: queries[n].state == "running")
            ),
            family("ottla_pipeline_rows_total", COUNTER, "Rows read since the start.", samples(lambda n: queries[n].rows)),
            family(
                "ottla_pipeline_rows_per_second", GAUGE, "Rows a second in the last batch.", samples(lambda n: queries[n].rate)
            ),
            family("ottla_pipeline_batch", GAUGE, "Number of the last batch.", samples(lambda n: queries[n].batch)),
            family("ottla_pipeline_batch_ms", GAUGE, "How long the last batch took.", samples(lambda n: queries[n].batch_ms)),
            family("ottla_pipeline_lag_records", GAUGE, "Records not read yet.", samples(lambda n: queries[n].lag)),
        )
    )


class MetricsServer:
    """Serves the figures until it is closed."""

    def __init__(self, state: State, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.split("?")[0] == "/metrics"
                body = exposition(state).encode() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads who asked."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
