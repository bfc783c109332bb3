#!/usr/bin/env python3
"""Django's commands. Without DATABASE_URL the embedded PostgreSQL is held for as long as the command runs."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
NEEDED = ("django", "rest_framework", "psycopg", "structlog")
WITHOUT_DATABASE = {
    "help", "version", "--version", "check", "collectstatic", "compilemessages", "diffsettings", "makemessages",
    "spectacular", "startapp", "startproject",
}  # fmt: skip


def main() -> None:
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        use_venv()
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings")
    if os.environ.get("DATABASE_URL") or not needs_database(sys.argv[1:]):
        execute(sys.argv)
    else:
        with_embedded_database(sys.argv)


def execute(argv: list[str]) -> None:
    """The command. What a person has to put right ends it in a sentence, not in a traceback."""
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError

    try:
        execute_from_command_line(argv)
    except ImproperlyConfigured as error:
        sys.exit(f"Wrong settings: {error}")
    except OperationalError as error:
        sys.exit(f"The database can't be used: {' '.join(str(error).split())}")


def use_venv() -> NoReturn:
    """Start again with the environment that the bootstrap made."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != python.parent.parent.resolve():
        os.execv(python, [str(python), *sys.argv])  # noqa: S606
    sys.exit("What this needs isn't installed here. `python3 -m dispatcher_project up` installs it into .venv.")


def needs_database(arguments: list[str]) -> bool:
    return bool(arguments) and arguments[0] not in WITHOUT_DATABASE and not {"-h", "--help"} & set(arguments)


def with_embedded_database(argv: list[str]) -> None:
    from dispatcher_project import embedded_postgres

    embedded_postgres.forget_libpq_environment()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # until the command sets its own
    try:
        holder = embedded_postgres.ensure_running(Path(os.environ.get("DISPATCHER_DATA_DIR") or ROOT / ".data"))
    except embedded_postgres.EmbeddedPostgresError as error:
        sys.exit(str(error))
    try:
        execute(argv)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        holder.release()


if __name__ == "__main__":
    main()
