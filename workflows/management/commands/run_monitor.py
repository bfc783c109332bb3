"""manage.py run_monitor"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher_project.daemon import run_forever
from workflows.management.options import describe, seconds
from workflows.monitor.tick import JOB
from workflows.ticking import Ticker, once


class Command(BaseCommand):
    help = "End runs that are past their time. Any number may run at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass, a line of what it did, and out")
        parser.add_argument(
            "--interval",
            type=seconds,
            metavar="SECONDS",
            default=settings.MONITOR_POLL_INTERVAL_MS / 1000,
            help="how often to look (default %(default)g)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["once"]:
            poll_seconds = options["interval"]
            run_forever(Ticker(JOB, batch=0, poll_seconds=poll_seconds), poll_seconds=poll_seconds, listen=False)
            return
        outcome = once(JOB, batch=0)
        self.stdout.write(describe(outcome.counts, ("timed_out",)))
        if outcome.errors:
            raise CommandError("; ".join(outcome.errors))
