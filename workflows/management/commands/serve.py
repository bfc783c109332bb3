"""`manage.py serve`: the web process, uvicorn on one port."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from uvicorn.supervisors import Multiprocess

from dispatcher_project.supervisor import DEFAULT_PORT, is_loopback

GRACE_SECONDS = 3  # for requests in flight; streams and long polls would stay for ever
LATE_SECONDS = 1.0  # for a thread that is still busy after that
KEEP_ALIVE_SECONDS = 60
BACKLOG = 2048


class Command(BaseCommand):
    help = "Serve the API, the admin and the health checks until SIGTERM or Ctrl-C."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
        parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on (default %(default)s)")
        parser.add_argument(
            "--workers", type=int, default=1, help="processes that share the port (default %(default)s)"
        )
        parser.add_argument("--access-log", action="store_true", help="a line per request")

    def handle(self, *args: Any, **options: Any) -> None:
        host, port, workers = options["host"], options["port"], options["workers"]
        if settings.API_ANONYMOUS_LOOPBACK and not is_loopback(host):
            raise CommandError(
                f"API_ANONYMOUS_LOOPBACK makes every caller on this machine an operator: it needs a loopback --host, "
                f"and {host} is none."
            )
        if not 0 <= port <= 65535 or not 1 <= workers <= 64:
            raise CommandError("--port must lie between 0 and 65535, --workers between 1 and 64.")
        os.environ["DISPATCHER_PROCESS"] = "web"
        with listener(host, port) as sock:
            # After the server's own handlers are gone it sends itself the signal once more.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: sys.exit(0))
            shown = f"[{host}]" if ":" in host else host
            self.stdout.write(f"Listening on http://{shown}:{sock.getsockname()[1]}")
            self.stdout.flush()
            try:
                serve(sock, workers=workers, access_log=options["access_log"])
            finally:
                leave_soon()


def serve(sock: socket.socket, *, workers: int, access_log: bool) -> None:
    config = uvicorn.Config(
        "dispatcher_project.asgi:application",
        workers=workers,
        access_log=access_log,
        log_config=None,
        server_header=False,
        proxy_headers=settings.BEHIND_TLS_PROXY,
        lifespan="on",
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    if workers == 1:
        server.run(sockets=[sock])
    else:
        Multiprocess(config, sockets=[sock]).run()


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens there. Errors: CommandError, saying what is in the way."""
    sock: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        if sock:
            sock.close()
        raise CommandError(
            f"Can't listen on port {port} of {host}: {error.strerror}. Stop what uses it, or choose another --port."
        ) from None
    sock.set_inheritable(True)
    return sock


def leave_soon() -> None:
    """A thread in the middle of a statement must not keep the process: its transaction is rolled back by the server."""
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    late = threading.Timer(LATE_SECONDS, os._exit, [0])
    late.daemon = True
    late.start()
