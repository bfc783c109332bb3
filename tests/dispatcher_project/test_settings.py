"""A wrong value stops the start with one sentence that names the variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "postgres://u@127.0.0.1:1/none"


def said(command: str, **variables: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "SECRET_KEY": "x", "DATABASE_URL": NOWHERE, **variables}
    answer = subprocess.run(
        [sys.executable, ROOT / "manage.py", command, "--once"] if command == "run_monitor" else
        [sys.executable, ROOT / "manage.py", command],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return answer.returncode, answer.stderr.splitlines()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DISPATCHER_STALE_CLAIM_MS", "abc"),
        ("DISPATCHER_BATCH_SIZE", "0"),
        ("LOG_LEVEL", "loud"),
        ("BEHIND_TLS_PROXY", "maybe"),
        ("DATABASE_URL", "mysql://h/d"),
        ("DATABASE_URL", "postgres://u@h:port/d"),
        ("SECRET_KEY", ""),
        ("TIME_ZONE", "Mars/Olympus"),
        ("WEB_THREADS", "many"),
        ("WEB_THREADS", "0"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(name, value):
    code, lines = said("check", **{name: value})
    assert code == 1
    assert len(lines) == 1
    assert name in lines[0]


def test_a_database_that_is_not_there_is_said_in_one_line():
    code, lines = said("run_monitor")
    assert code == 1
    assert len(lines) == 1
    assert "database can't be used" in lines[0]
