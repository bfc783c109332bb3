"""Real commands of manage.py as processes, at work on the test database."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

from django.db import connection, connections

ROOT = Path(__file__).resolve().parent.parent.parent


def database_url() -> str:
    """The test database as an address; a socket's directory goes in as a parameter."""
    known = connection.settings_dict
    query = {"port": known["PORT"] or known["OPTIONS"].get("port", "5432")}
    host = known["HOST"] or known["OPTIONS"].get("host", "")
    if host.startswith("/"):
        query["host"] = host
        host = ""
    login = quote(known["USER"]) + (f":{quote(known['PASSWORD'])}" if known["PASSWORD"] else "")
    return f"postgres://{login}@{host}/{known['NAME']}?{urlencode(query)}"


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": database_url(), "DATABASE_DIRECT_URL": "", "SECRET_KEY": "test", **extra}


def start(*arguments: str, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment(**extra),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def running(*arguments: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """The command, until the block ends."""
    process = start(*arguments, **extra)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until(condition: Callable[[], object], seconds: float = 15.0) -> float:
    """Until it holds; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never came to pass"
        time.sleep(0.01)
    return time.monotonic() - began


def backends() -> list[tuple[int, str]]:
    """Process ids and last statements of everybody else in the test database."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            """SELECT pid, query FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
        )
        return list(cursor.fetchall())


def listeners() -> list[int]:
    return [pid for pid, query in backends() if query.startswith("LISTEN")]
