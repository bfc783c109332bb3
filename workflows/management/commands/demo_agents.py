"""`manage.py demo_agents`: simulated agents at work, for looking at the product. `up --demo` starts it."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from workflows.client.config import DEFAULT_API, api_base
from workflows.client.errors import UsageError
from workflows.demo import Fleet, Server, Tokens, launcher_here, work_here


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


class Command(BaseCommand):
    help = "Simulated agents: they launch work, claim it, report progress, complete it and sometimes fail."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--api", metavar="URL", help=f"the server (default DASHBOARD_API_BASE, else {DEFAULT_API})")
        parser.add_argument("--pace", type=float, default=2.0, metavar="S", help="seconds from beat to beat (2)")
        parser.add_argument("--runs", type=positive, metavar="N", help="end after so many runs have ended")

    def handle(self, *, api: str | None, pace: float, runs: int | None, **options: Any) -> None:
        work, launcher = work_here(), launcher_here()
        if not work or launcher is None:
            raise CommandError("The demo plays the agents of the fixtures,\nand none of them has a route here.")
        try:
            base = api_base(api)
        except UsageError as error:
            raise CommandError(str(error)) from None
        tokens = Tokens()
        server = Server(base, tokens, self.stdout.write)
        try:
            with stopping() as stop:
                self.stdout.write(f"Simulated agents at {base}: {len(work)} types of work.")
                Fleet(work, launcher, server, self.stdout.write).play(stop=stop, pace_seconds=max(pace, 0.0), runs=runs)
        finally:
            server.close()
            with contextlib.suppress(DatabaseError):  # it is stopping, too; the tokens expire by themselves
                tokens.revoke_all()


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
