"""Tests that need a Debian package: said when they were not run, a failure where all must be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
from tests.plugin import needs
@needs("sh")
def test_has_it(): pass
@needs("no-such-program")
def test_has_it_not(): pass
"""


def run(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_needs.py").write_text(TESTS)
    chosen = {"DATABASE_URL": "postgres://nowhere/x", "CI_REQUIRE_ALL": "", **environment}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider", str(tmp_path)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**inherited, **chosen}, check=False
    )  # fmt: skip


def test_missing_program_is_said(tmp_path: Path) -> None:
    answer = run(tmp_path)
    assert "not run: needs no-such-program\n" in answer.stdout
    assert "1 passed, 1 skipped" in answer.stdout
    assert answer.returncode == 0


def test_missing_program_fails_where_all_tests_must_run(tmp_path: Path) -> None:
    answer = run(tmp_path, CI_REQUIRE_ALL="1")
    assert "not run: needs no-such-program\n" in answer.stdout
    assert answer.returncode == 1
