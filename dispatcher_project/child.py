"""A command of manage.py as the supervisor's child: started, signalled, started again later each time it dies.

The supervisor has one thread, which makes `preexec_fn` safe. It asks Linux to send the child SIGTERM if the supervisor
dies, even by kill -9. (A pipe whose end the children hold would need a watching thread in each of them, and one that
hangs wouldn't watch.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BACKOFF_FIRST_SECONDS, BACKOFF_LIMIT_SECONDS, BACKOFF_RESET_SECONDS = 1.0, 30.0, 60.0
PR_SET_PDEATHSIG = 1


class Child:
    """One command of manage.py: running, or waiting to be started again."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], root: Path) -> None:
        self.name, self.arguments, self.environment, self.root = name, arguments, environment, root
        self.process: subprocess.Popen[bytes] | None = None
        self.partial = b""  # the line that isn't finished yet
        self.started = self.due = 0.0
        self.backoff = BACKOFF_FIRST_SECONDS

    def start(self) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, str(self.root / "manage.py"), *self.arguments],
            env=self.environment,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # a terminal's Ctrl-C reaches us only, and then the child once, from us
            preexec_fn=die_with(os.getpid()),
        )

    def signal(self, number: int) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def kill_group(self) -> None:
        """Whatever the child left behind as well."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def schedule(self, now: float) -> float:
        """After its end: when to start again. Returns the seconds until then."""
        if now - self.started >= BACKOFF_RESET_SECONDS:
            self.backoff = BACKOFF_FIRST_SECONDS
        wait, self.backoff = self.backoff, min(self.backoff * 2, BACKOFF_LIMIT_SECONDS)
        self.due = now + wait
        return wait


def die_with(parent: int) -> Callable[[], None]:
    """For preexec_fn: the kernel sends SIGTERM when `parent` dies. Elsewhere than on Linux the child isn't told."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask_kernel


def ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
