"""Loaded by pytest before the settings are: the tests' own database, and tests that need a Debian package.

Each session at work in one checkout gets a data directory of its own, so that two don't share a test database.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project import embedded_postgres

ROOT = Path(__file__).resolve().parent.parent
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
SERVER_OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}
SYSTEM_PROGRAMS = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # where a normal user's PATH doesn't look

_session_lock: int | None = None


def needs(program: str) -> pytest.MarkDecorator:
    """Mark a test that can only run where `program` is installed; CI_REQUIRE_ALL=1 makes its absence a failure."""
    return pytest.mark.needs(program)


def find_program(program: str) -> str | None:
    """Its path, or None."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_PROGRAMS)))


def _own_data_dir() -> Path:
    """The first of .data/test, .data/test-2, ... that no other session uses; ours until this process ends.

    Never the caller's DISPATCHER_DATA_DIR: the server below runs with fsync off.
    """
    global _session_lock
    for n in range(1, 100):
        data_dir = ROOT / ".data" / ("test" if n == 1 else f"test-{n}")
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _session_lock = os.open(data_dir / "session.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(_session_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(_session_lock)
        else:
            return data_dir
    raise pytest.UsageError("A hundred test sessions are at work in this checkout.")


# At import, because pytest-django reads the settings next. An xdist worker inherits what its controller chose.
os.environ.setdefault("SECRET_KEY", "test")
if not os.environ.get("DATABASE_URL"):
    embedded_postgres.forget_libpq_environment()
    if not IS_WORKER:
        os.environ["DISPATCHER_DATA_DIR"] = str(_own_data_dir())


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(program): runs only where this program is installed")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if os.environ.get("DATABASE_URL") or session.config.option.collectonly:
        return
    data_dir = Path(os.environ["DISPATCHER_DATA_DIR"])
    try:
        holder = embedded_postgres.ensure_running(data_dir, options=SERVER_OPTIONS)
    except embedded_postgres.EmbeddedPostgresError as error:
        raise pytest.UsageError(str(error)) from error
    session.config.add_cleanup(holder.release)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    for mark in item.iter_markers("needs"):
        if find_program(mark.args[0]) is None:
            reason = f"not run: needs {mark.args[0]}"
            if os.environ.get("CI_REQUIRE_ALL") == "1":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)
    return (yield)
