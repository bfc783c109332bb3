"""manage.py run_dispatcher"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher_project.daemon import run_forever
from workflows.dispatcher.tick import JOB
from workflows.management.options import batch_size, describe, seconds
from workflows.ticking import Ticker, once


class Command(BaseCommand):
    help = "Hand queued runs to their agents, and recover what agents dropped. Any number may run at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="one pass (one batch), a line of what it did, and out")
        parser.add_argument(
            "--interval",
            type=seconds,
            metavar="SECONDS",
            default=settings.DISPATCHER_POLL_INTERVAL_MS / 1000,
            help="a full pass at the latest after this long (default %(default)g)",
        )
        parser.add_argument(
            "--batch-size",
            type=batch_size,
            metavar="N",
            default=settings.DISPATCHER_BATCH_SIZE,
            help="runs that one pass dispatches at most (default %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["once"]:
            poll_seconds = options["interval"]
            run_forever(Ticker(JOB, batch=options["batch_size"], poll_seconds=poll_seconds), poll_seconds=poll_seconds)
            return
        outcome = once(JOB, batch=options["batch_size"])
        self.stdout.write(describe(outcome.counts, ("dispatched", "timed_out", "recalled", "released", "exhausted")))
        if outcome.errors:
            raise CommandError("; ".join(outcome.errors))
