"""A schema registry as small as tests need it: the REST calls of serializers, in memory, with basic authentication."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class SchemaRegistry:
    """Schemas by id, and subjects with their versions."""

    def __init__(self, user: str = "", password: str = "") -> None:
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else None
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: Counter[str] = Counter()
        """How often each path was asked for."""
        self.failing = 0
        """How many of the next answers are a failure of its own."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        quoted = f"{urllib.parse.quote(user, safe='')}:{urllib.parse.quote(password, safe='')}@" if user else ""
        self.bare = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"http://{quoted}127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(self, subject: str, schema: Any, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        """Add a version; the id of the schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, "schemaType": kind, "references": references or []}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, authorization: str | None, body: Any) -> tuple[int, Any]:
        self.asked[path] += 1
        if self.failing > 0:
            self.failing -= 1
            return 503, {"error_code": 50301, "message": "not now"}
        if self._expected is not None and authorization != self._expected:
            return 401, {"error_code": 401, "message": "who are you"}
        parts = [urllib.parse.unquote(one) for one in path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            return (200, self._shown(number)) if number <= len(self.schemas) else (404, {"error_code": 40403})
        subject = parts[1]
        if method == "POST" and parts[2:] == ["versions"]:
            number = self.register(subject, body["schema"], body.get("schemaType", "AVRO"), body.get("references"))
            return 200, self._version(subject, self.subjects[subject].index(number))
        if subject not in self.subjects:
            return 404, {"error_code": 40401}
        if method == "POST":
            wanted = [n for n, one in enumerate(self.subjects[subject]) if self.schemas[one - 1]["schema"] == body["schema"]]
            return (200, self._version(subject, wanted[0])) if wanted else (404, {"error_code": 40403})
        return 200, self._version(subject, -1 if parts[3] == "latest" else int(parts[3]) - 1)

    def _shown(self, number: int) -> dict[str, Any]:
        """As registries do: what is Avro, or has no references, does not say so."""
        entry = self.schemas[number - 1]
        return {key: one for key, one in entry.items() if one and one != "AVRO"}

    def _version(self, subject: str, index: int) -> dict[str, Any]:
        versions = self.subjects[subject]
        number = versions[index]
        return {"subject": subject, "version": versions.index(number) + 1, "id": number, **self._shown(number)}


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path = self.path.partition("?")[0]
            code, told = registry.answer(method, path, self.headers.get("Authorization"), body)
            data = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
