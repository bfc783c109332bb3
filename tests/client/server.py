"""A real HTTP server on loopback that answers what a test tells it, and loses what a test wants lost."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request, as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """`body`: text as it is, anything else as JSON. `after` seconds; `missing` bytes are announced and never sent."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    after: float = 0.0
    missing: int = 0
    trickle: float = 0.0
    drop: bool = False

    def encoded(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


NOW = "Sun, 01 Mar 2026 09:30:00 GMT"  # whatever the clock says
DROP = Answer(drop=True)
HTML = "<!doctype html><title>502</title><h1>Bad Gateway</h1>"


def html(status: int) -> Answer:
    return Answer(status, HTML, content_type="text/html; charset=utf-8")


def problem(status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **facts: Any) -> Answer:
    body = {"type": "about:blank", "title": "No", "status": status, "detail": detail, "code": code, "error": detail}
    return Answer(status, {**body, **facts}, headers or {}, content_type="application/problem+json")


class ScriptedServer:
    """Answers from `script`, in order; an entry may be a function of the request. After its end `otherwise` answers.
    Keeps what it received."""

    def __init__(self) -> None:
        self.script: list[Answer | Callable[[Received], Answer]] = []
        self.received: list[Received] = []
        self.otherwise: Callable[[Received], Answer] | None = None
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.002})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def next_answer(self, request: Received) -> Answer:
        self.received.append(request)
        if not self.script:
            if self.otherwise is not None:
                return self.otherwise(request)
            return problem(418, "unscripted", f"No answer was scripted for {request.method} {request.path}")
        entry = self.script.pop(0)
        return entry if isinstance(entry, Answer) else entry(request)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = 5

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._reply(server.next_answer(Received(self.command, self.path, headers, self.rfile.read(length))))

        do_POST = do_GET

        def _reply(self, answer: Answer) -> None:
            time.sleep(answer.after)
            if answer.drop:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            body = b"" if answer.status == 204 else answer.encoded()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(body) + answer.missing))
            self.end_headers()
            self.close_connection = self.close_connection or bool(answer.missing)
            try:
                self._send(body, answer.trickle)
            except OSError:
                self.close_connection = True

        def _send(self, body: bytes, pause: float) -> None:
            if not pause:
                self.wfile.write(body)
                return
            for n in range(len(body)):
                self.wfile.write(body[n : n + 1])
                time.sleep(pause)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the client gave up first
                super().handle()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return NOW

    return Handler


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
