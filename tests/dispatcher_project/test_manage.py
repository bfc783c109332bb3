"""manage.py around the embedded database, with small settings of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.embedded_postgres import is_running, place, server, wire

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
import os
from pathlib import Path
from dispatcher_project.embedded_postgres import connection
here = connection(Path(os.environ["DISPATCHER_DATA_DIR"]))
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": here["dbname"], "USER": here["user"],
                         "HOST": here["host"]}}
INSTALLED_APPS = ["django.contrib.contenttypes", "waiting"]
USE_TZ = True
"""
WAIT = """
import time
from django.core.management.base import BaseCommand
from django.db import connection
class Command(BaseCommand):
    def handle(self, **options):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        print("waiting", flush=True)
        time.sleep(60)
"""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="wd-"))
    base.chmod(0o755)
    commands = base / "waiting" / "management" / "commands"
    commands.mkdir(parents=True)
    (commands / "wait.py").write_text(WAIT)
    (base / "waiting" / "__init__.py").touch()
    (base / "tiny_settings.py").write_text(SETTINGS)
    yield base / "data"
    here = place.locate(base / "data")
    server._stop(wire.listener(here))
    if here.user:  # root's cluster lies elsewhere
        shutil.rmtree(here.home, ignore_errors=True)
    shutil.rmtree(base)


def environment(data_dir: Path) -> dict[str, str]:
    chosen = {
        "DISPATCHER_DATA_DIR": str(data_dir),
        "DJANGO_SETTINGS_MODULE": "tiny_settings",
        "PYTHONPATH": str(data_dir.parent),
        "PGPORT": "1",
        "PGHOSTADDR": "192.0.2.1",
    }
    return {**{name: value for name, value in os.environ.items() if name != "DATABASE_URL"}, **chosen}


def manage(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(data_dir), cwd="/", check=False)


def test_command_has_the_database_while_it_runs(data_dir: Path) -> None:
    answer = manage(data_dir, "migrate")
    assert answer.returncode == 0, answer.stderr
    assert "Applying contenttypes.0001_initial... OK" in answer.stdout
    assert "No migrations to apply" in manage(data_dir, "migrate").stdout
    assert not is_running(data_dir)


@pytest.mark.parametrize("arguments", [["help"], ["migrate", "--help"], ["version"], ["check"], []])
def test_command_that_needs_no_database_starts_none(data_dir: Path, arguments: list[str]) -> None:
    answer = manage(data_dir, *arguments)
    assert answer.returncode == 0, answer.stderr
    assert not data_dir.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_signal_releases_the_database(data_dir: Path, number: int, code: int) -> None:
    command = [sys.executable, str(ROOT / "manage.py"), "wait"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(data_dir), cwd="/"
    )
    assert process.stdout
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (code, b"")
    assert not is_running(data_dir)


def test_two_commands_share_the_server_and_the_last_one_stops_it(data_dir: Path) -> None:
    command = [sys.executable, str(ROOT / "manage.py"), "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(data_dir), cwd="/") as waiting:
        assert waiting.stdout
        waiting.stdout.readline()
        assert manage(data_dir, "migrate").returncode == 0
        assert is_running(data_dir)
        waiting.terminate()
    deadline = time.monotonic() + 10
    while is_running(data_dir):
        assert time.monotonic() < deadline


def test_trouble_with_the_database_is_one_line_and_no_traceback(data_dir: Path) -> None:
    data_dir.touch()
    answer = manage(data_dir, "migrate")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert len(answer.stderr.splitlines()) == 1
    assert str(data_dir) in answer.stderr


def test_python_without_the_packages_goes_on_in_the_venv(tmp_path: Path) -> None:
    shutil.copy(ROOT / "manage.py", tmp_path)
    alone = [sys.executable, "-S", "-E", str(tmp_path / "manage.py"), "version"]
    told = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "python3 -m dispatcher_project up" in told.stderr
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "in the venv: $*"\n')
    python.chmod(0o755)
    went = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert went.stdout == f"in the venv: {tmp_path / 'manage.py'} version\n"
