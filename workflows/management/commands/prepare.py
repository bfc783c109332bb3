"""`manage.py prepare`: brings the database up to date and, at the first start, fills it. `up` calls it each time."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from workflows import first_start
from workflows.first_start import FirstStart


class Command(BaseCommand):
    help = "Migrate; at the first start load the fixtures and make an operator's login and tokens. Repeating is safe."
    requires_system_checks = ()  # `migrate` runs them, with those of the database

    def handle(self, **options: Any) -> None:
        with first_start.alone():
            self.migrate()
            try:
                made = first_start.run()
            except OSError as error:
                raise CommandError(
                    f"The data directory can't be used:\n{error.filename}: {error.strerror}.\n"
                    "Nothing was made; start again when it can be written."
                ) from error
        if made and made.lines:
            self.show(made)
        elif made is None and first_start.tokens_file().exists():
            self.stdout.write(f"Login and tokens were made at the first start:\n  {shown(first_start.tokens_file())}")
        self.mention_missing_login()

    def migrate(self) -> None:
        executor = MigrationExecutor(connection)
        pending = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        if pending:
            self.stdout.write(f"Bringing the database up to date: {pending} migrations.")
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)

    def show(self, made: FirstStart) -> None:
        self.stdout.write("First start. Made for you, and shown this once:\n\n")
        for line in made.lines:
            self.stdout.write(line)
        self.stdout.write(f"\nKept in a file that only you can read. In another terminal:\n  . {shown(made.file)}\n\n")

    def mention_missing_login(self) -> None:
        if not get_user_model().objects.filter(is_staff=True, is_active=True).exists():
            self.stdout.write("Nobody can sign in: `manage.py createsuperuser` makes a login.")


def shown(path: Path) -> str:
    """The path as a shell takes it, from here where that is shorter."""
    relative = os.path.relpath(path)
    return shlex.quote(min(str(path), relative if "/" in relative else f"./{relative}", key=len))
