"""Processes of the tests: waited for, looked at."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(true: Callable[[], Any], seconds: float = 15.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it didn't happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def result(child: subprocess.Popen[str], seconds: float = 20) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=seconds)
    return child.returncode, out, err
