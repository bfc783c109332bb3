"""The command of a run as a process group: started, suspended, ended whole.

It doesn't outlive us, even after kill -9: a guard, a tiny shell that notices the end of its standard input, ends the
group. (PR_SET_PDEATHSIG would reach the command only and not what it has started, on Linux only, and has to be set
between fork and exec, where Python mustn't run beside the threads that we have.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import IO

DRAIN_SECONDS = 1.0  # for output that is still in the pipe after the command's end
CHUNK_BYTES = 65536

# Reads group numbers, 0 for none. After our end: the last group gets TERM, then KILL.
GUARD = """
g=0
while read -r n; do g=$n; done
[ "$g" = 0 ] && exit
kill -s TERM -- "-$g"; kill -s CONT -- "-$g"
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; kill -s 0 -- "-$g" || exit; done
kill -s KILL -- "-$g"
"""


class Guard:
    """Ends the group it was told of last, when this process is gone."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C isn't for it
        )

    def watch(self, group: int) -> None:
        """0: nobody."""
        with contextlib.suppress(OSError):
            assert self._shell.stdin is not None  # noqa: S101  a pipe was asked for
            os.write(self._shell.stdin.fileno(), f"{group}\n".encode())

    def close(self) -> None:
        self.watch(0)
        with contextlib.suppress(OSError):
            self._shell.communicate()


class Process:
    """One command. `on_exit` is called from a thread when it has ended; `out` and `err` with what it writes, each from
    a thread of its own, with b"" at the end."""

    def __init__(
        self,
        command: list[str],
        *,
        environment: Mapping[str, str],
        given: bytes,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        on_exit: Callable[[], None],
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        guard.watch(self._process.pid)
        self._suspended = False
        self._readers = [_Reader(self._process.stdout, out), _Reader(self._process.stderr, err)]
        _thread(self._feed, given)
        _thread(self._wait, on_exit)

    @property
    def code(self) -> int | None:
        """The exit code, or minus the signal's number."""
        return self._process.returncode

    def suspend(self) -> None:
        self._suspended = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._suspended = False
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Asks the whole group to end."""
        self._signal(signal.SIGTERM)
        self.resume()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def end_rest(self, *, by: float) -> None:
        """After the command's own end: what it left running is asked to end, and killed at the monotonic time `by`."""
        self._signal(signal.SIGTERM)
        while self._has_group() and monotonic() < by:
            sleep(0.02)
        self._signal(signal.SIGKILL)
        self._guard.watch(0)
        ended = monotonic()
        while any(reader.may_get_more(ended) for reader in self._readers):
            sleep(0.005)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _has_group(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _feed(self, given: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # a command may not read it
            assert self._process.stdin is not None  # noqa: S101  a pipe was asked for
            with self._process.stdin as pipe:
                pipe.write(given)

    def _wait(self, on_exit: Callable[[], None]) -> None:
        self._process.wait()
        on_exit()


class _Reader:
    """Reads a pipe to its end, which a process outside the group may hold open for ever."""

    def __init__(self, pipe: IO[bytes] | None, sink: Callable[[bytes], None]) -> None:
        self._waits_since: float | None = monotonic()
        self._thread = _thread(self._read, pipe, sink)

    def may_get_more(self, ended: float) -> bool:
        """`ended`: when the command had."""
        since = self._waits_since
        waits_in_vain = since is not None and monotonic() - max(since, ended) > DRAIN_SECONDS
        return self._thread.is_alive() and not waits_in_vain

    def _read(self, pipe: IO[bytes], sink: Callable[[bytes], None]) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), CHUNK_BYTES):
                self._waits_since = None
                sink(chunk)
                self._waits_since = monotonic()
        self._waits_since = None
        sink(b"")


def _thread(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread
