"""`dispatcher-agent run`: a worker whose handler is a command."""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
from argparse import Namespace
from pathlib import Path
from time import monotonic
from typing import IO, Any

from workflows.client import config, exits
from workflows.client.client import DispatcherClient
from workflows.client.errors import UsageError
from workflows.client.jobs import (
    CONTINUED,
    HURRY,
    LOST,
    PAUSED,
    SHUTTING_DOWN,
    Failed,
    GiveBack,
    Outcome,
    Retry,
    Stopped,
)
from workflows.client.output import Screen
from workflows.client.process import Guard, Process
from workflows.client.reports import LONGEST_LINE_BYTES, Lines, Reports, Tail, object_in
from workflows.client.text import duration
from workflows.client.worker import Job, Worker

LEFTOVER_SECONDS = 2.0  # what a command left running gets this long after its end
EXIT = "exit"
EXIT_CODES = {
    "completed": exits.DONE,
    "failed": exits.FAILED,
    "refused": exits.FAILED,
    "lost": exits.LOST,
    "retried": exits.TEMPORARY,
    "released": exits.TEMPORARY,
    "unknown": exits.TEMPORARY,
}


def run(args: Namespace, client: DispatcherClient, screen: Screen) -> int:
    """Runs until told otherwise; returns the exit code."""
    if os.name != "posix":
        raise UsageError("run needs process groups, which this system hasn't")
    command = _found(args.command)
    types = [name.strip() for name in args.types.split(",") if name.strip()]
    if not types:
        raise UsageError("--types names no type")
    session = args.session or config.from_environment(config.SESSION_VARIABLE) or _new_session()
    guard = Guard()
    runner = Runner(
        command, client=client, screen=screen, guard=guard, output_file=args.output_file, grace=max(0.0, args.grace)
    )
    worker = Worker(
        client,
        session,
        types,
        runner.handle,
        agent_id=args.agent or config.from_environment(config.AGENT_VARIABLE),
        on_outcome=runner.tell,
        on_note=screen.warn,
        interrupts_handler=False,
    )
    try:
        screen.note(f"Waiting for {', '.join(types)} as session {session}. Ctrl-C ends.")
        worker.run(once=args.once, drain=args.drain)
    finally:
        guard.close()
    return runner.exit_code(once=args.once, drain=args.drain, stopped=worker.stopping)


def _found(command: list[str]) -> list[str]:
    """Known before anything is claimed: a run that is claimed for nothing is an attempt used up."""
    if not command:
        raise UsageError("Which command shall do the runs? Write it last, behind --")
    path = shutil.which(command[0])
    if path is None:
        raise UsageError(f"There is no command {command[0]!r} here, or it may not be executed")
    return [path, *command[1:]]


def _new_session() -> str:
    import platform
    import secrets

    return f"{platform.node() or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"


class Runner:
    """Does runs with one command, and remembers how they went."""

    def __init__(
        self,
        command: list[str],
        *,
        client: DispatcherClient,
        screen: Screen,
        guard: Guard,
        output_file: str | None,
        grace: float,
    ) -> None:
        self._command = command
        self._client = client
        self._screen = screen
        self._guard = guard
        self._output_file = output_file
        self._grace = grace
        self._kinds: list[str] = []
        self._began = monotonic()
        self._code: int | None = None

    def handle(self, job: Job) -> dict[str, Any]:
        """Does one run; its output."""
        self._began, self._code = monotonic(), None
        self._forget_output_file()
        attempt = Attempt(
            self._command, job, environment=self._environment(job), guard=self._guard, screen=self._screen
        )
        attempt.follow(grace=self._grace)
        self._code = attempt.process.code
        if job.stopped:
            raise Stopped
        if job.shutting_down and self._code != 0:
            raise GiveBack("The worker was told to end")
        if self._code == 0:
            return self._output(attempt)
        error = _error(self._code, attempt.tail.text)
        raise Retry(error) if self._code == exits.TEMPORARY else Failed(error)

    def tell(self, job: Job, outcome: Outcome) -> None:
        """One line for each run: JSON for programs, words on standard error for people."""
        self._kinds.append(outcome.kind)
        seconds = monotonic() - self._began
        if self._screen.as_json:
            self._screen.document(
                {
                    "run_id": outcome.run_id,
                    "workflow_type": outcome.run.get("workflow_type"),
                    "lease_no": outcome.lease_no,
                    "outcome": outcome.kind,
                    "status": outcome.run.get("status"),
                    "exit_code": self._code,
                    "seconds": round(seconds, 3),
                    "detail": outcome.detail,
                }
            )
            return
        name = f"{outcome.run_id} {outcome.run.get('workflow_type', '')}"
        text = f"dispatcher-agent: {name} {SAID[outcome.kind]} after {duration(seconds)}"
        self._screen.warn(f"{text}: {outcome.detail.splitlines()[0]}" if outcome.detail else text)

    def exit_code(self, *, once: bool, drain: bool, stopped: bool) -> int:
        if once and self._kinds:
            return EXIT_CODES[self._kinds[-1]]
        if drain and any(kind != "completed" for kind in self._kinds):
            return exits.FAILED
        return exits.TEMPORARY if once and stopped else exits.DONE

    def _environment(self, job: Job) -> dict[str, str]:
        """Ours, so that a token in there is passed on and one from a file isn't; and what the run is."""
        return {
            **os.environ,
            config.API_VARIABLE: self._client.api,
            config.SESSION_VARIABLE: job.session_id,
            "DISPATCHER_API": self._client.api,
            "DISPATCHER_RUN_ID": job.run_id,
            "DISPATCHER_WORKFLOW_TYPE": str(job.run.get("workflow_type", "")),
            "DISPATCHER_LEASE_NO": "" if job.lease_no is None else str(job.lease_no),
        }

    def _forget_output_file(self) -> None:
        """An old file must not pass for this run's output."""
        if self._output_file is not None:
            try:
                Path(self._output_file).unlink(missing_ok=True)
            except OSError as error:
                raise Retry(f"Can't remove the old {self._output_file}: {config.reason_of(error)}") from None

    def _output(self, attempt: Attempt) -> dict[str, Any]:
        if self._output_file is None:
            return attempt.reports.last_object or {}
        try:
            with Path(self._output_file).open("rb") as file:
                text = file.read(LONGEST_LINE_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Failed(f"Can't read {self._output_file}: {config.reason_of(error)}") from None
        if len(text) > LONGEST_LINE_BYTES:
            raise Failed(f"{self._output_file} is larger than {LONGEST_LINE_BYTES // 1024**2} MiB")
        if not text.strip():
            return {}
        found = object_in(text)
        return {"result": text.decode("utf-8", "replace").rstrip("\r\n")} if found is None else found


SAID = {
    "completed": "completed",
    "failed": "failed",
    "retried": "failed and is queued again",
    "released": "was given back",
    "lost": "was lost",
    "refused": "got no ending, which the server refused,",
    "unknown": "got no clear ending",
}


def _error(code: int | None, tail: str) -> str:
    import signal

    how = f"Exit code {code}"
    if code is not None and code < 0:
        try:
            how = f"Killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"Killed by signal {-code}"
    return f"{how}: {tail}" if tail else how


class Attempt:
    """One execution of the command for one run, from its start to the end of its whole process group."""

    def __init__(
        self, command: list[str], job: Job, *, environment: dict[str, str], guard: Guard, screen: Screen
    ) -> None:
        self._job = job
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.tail = Tail()
        self._out = Passage(sys.stderr if screen.as_json else sys.stdout)
        self._err = Passage(sys.stderr)
        self.reports = Reports(passed_on=self._out.add, progress=job.progress, usage=job.usage, note=screen.warn)
        self._lines = {"out": Lines(), "err": Lines()}
        job.watch(self._news.put)
        try:
            self.process = Process(
                command,
                environment=environment,
                given=json.dumps(job.payload).encode() + b"\n",
                out=self._said,
                err=self._complained,
                on_exit=lambda: self._news.put(EXIT),
                guard=guard,
            )
        except (OSError, ValueError) as error:
            raise Retry(f"The command can't be started: {config.reason_of(error)}") from None
        if job.stopped:
            self._news.put(LOST)
        if job.paused:
            self._news.put(PAUSED)
        if job.shutting_down:
            self._news.put(SHUTTING_DOWN)

    def follow(self, *, grace: float) -> None:
        """Does what it is told to the command, until that has ended."""
        killed_at: float | None = None
        while True:
            try:
                news = self._news.get(timeout=None if killed_at is None else max(0.0, killed_at - monotonic()))
            except queue.Empty:
                self.process.kill()
                killed_at = monotonic() + grace
                continue
            if news == EXIT:
                break
            if news == PAUSED and killed_at is None:
                self.process.suspend()
            elif news == CONTINUED and killed_at is None:
                self.process.resume()
            elif news in (LOST, SHUTTING_DOWN):
                self.process.terminate()
                killed_at = killed_at or monotonic() + grace
            elif news == HURRY:
                self.process.kill()
        self.process.end_rest(by=killed_at or monotonic() + LEFTOVER_SECONDS)

    def _said(self, chunk: bytes) -> None:
        for line, whole in self._lines["out"].feed(chunk) if chunk else self._lines["out"].end():
            self.reports.line(line, whole)
        self._out.flush()

    def _complained(self, chunk: bytes) -> None:
        for line, whole in self._lines["err"].feed(chunk) if chunk else self._lines["err"].end():
            self.tail.line(line, whole)
        self._err.add(chunk)
        self._err.flush()


class Passage:
    """Bytes on their way to one of our own streams. One that is closed or full takes no more, and the run goes on."""

    _lock = threading.Lock()

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = getattr(stream, "buffer", None)
        self._waiting: list[bytes] = []

    def add(self, data: bytes) -> None:
        self._waiting.append(data)

    def flush(self) -> None:
        data, self._waiting = b"".join(self._waiting), []
        if not data or self._stream is None:
            return
        try:
            with self._lock:
                self._stream.write(data)
                self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
