"""The life of one cluster's server: made, started, shared, stopped."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dispatcher_project.embedded_postgres.binaries import find
from dispatcher_project.embedded_postgres.place import (
    PORT,
    SOCKET,
    EmbeddedPostgresError,
    Place,
    as_server,
    locate,
    make_private,
    prepare_home,
)
from dispatcher_project.embedded_postgres.wire import (
    CANNOT_CONNECT_NOW,
    NAME,
    NO_SUCH_DATABASE,
    NO_SUCH_ROLE,
    ask,
    listener,
)

LOCK_SECONDS = 180.0
START_SECONDS = 120.0  # crash recovery of a big database takes a while
RETRY_SECONDS = 15.0  # what a server killed with -9 leaves behind dies within this
STOP_SECONDS = 30.0
LOG_LIMIT_BYTES = 10_000_000
# Said by a start that came too early after kill -9: old backends and their shared memory are still going away.
TRANSIENT = ("pre-existing shared memory block", "is another postmaster", "is another postgres", "already in use")

_children: dict[int, subprocess.Popen[bytes]] = {}  # servers that this process started, to be reaped


class Holder:
    """Our share in a running server, until `release`."""

    def __init__(self, place: Place, hold: int) -> None:
        self._place, self._hold, self._owner = place, hold, os.getpid()
        self._server = listener(place)

    def release(self) -> None:
        """Give up our share; the last one out stops the server. A second call, or a forked child's, does nothing."""
        if self._hold < 0 or os.getpid() != self._owner:
            return
        hold, self._hold = self._hold, -1
        try:
            with _reported(self._place), contextlib.suppress(FileNotFoundError):
                with _start_lock(self._place.data_dir):
                    if _try_lock(hold, fcntl.LOCK_EX):
                        _stop(listener(self._place))
                return
            # The data directory was removed under us: nobody finds this server any more.
            if self._server and _is_server(self._server, self._place):
                _stop(self._server)
        finally:
            os.close(hold)


def connection(data_dir: Path) -> dict[str, str]:
    """libpq's parameters for the server of `data_dir`: host (the socket's directory), port, dbname, user.

    Starts nothing. The port is given so that a PGPORT in the environment has no say.
    """
    return {"host": str(locate(data_dir).sockets), "port": str(PORT), "dbname": NAME, "user": NAME}


def is_running(data_dir: Path) -> bool:
    """Does a server listen for `data_dir`, ready for connections or getting there?"""
    return ask(locate(data_dir)) is not None


def forget_libpq_environment() -> None:
    """Take PGHOSTADDR, PGSERVICE, PGOPTIONS and the like out of this process: libpq would listen to them."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def ensure_running(data_dir: Path, *, options: Mapping[str, str] = {}) -> Holder:
    """Adopt the server of `data_dir` or make and start one; returns when it accepts connections to our database.

    `options` are further PostgreSQL settings for a server that is started here. Raises EmbeddedPostgresError.
    """
    place = locate(data_dir)
    with _reported(place):
        place.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _start_lock(place.data_dir):
            place = locate(data_dir)  # again: before the lock somebody may have been choosing root's home
            if _settled(place) is None:
                prepare_home(place)
                _start(place, options)
            _create_database(place)
            return Holder(place, _take_hold(place))


def _make_cluster(place: Place, binaries: Path, options: Mapping[str, str]) -> None:
    """initdb beside, then rename: what an interrupted one leaves is never taken for a cluster."""
    for leftover in place.home.glob("postgres.new.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    new = place.home / f"postgres.new.{os.getpid()}"
    make_private(new, place.user)
    command: list[str | Path] = [binaries / "initdb", "-D", new]
    command += ["--username=postgres", "--auth=trust", "--encoding=UTF8"]
    command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale", "--no-instructions"]
    if options.get("fsync") == "off":
        command.append("--no-sync")
    start, log = _open_log(place)
    with log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False, **as_server(place)).returncode
    if code:
        raise EmbeddedPostgresError(_failure(place, start, "initdb"))
    new.rename(place.cluster)


def _check_version(place: Place, ours: int) -> None:
    try:
        theirs = int((place.cluster / "PG_VERSION").read_text())
    except (FileNotFoundError, ValueError):
        raise EmbeddedPostgresError(
            f"{place.cluster} isn't a whole PostgreSQL cluster (it has no PG_VERSION). Move it away to begin anew."
        ) from None
    if theirs < ours:
        raise EmbeddedPostgresError(
            f"The data in {place.cluster} was written by PostgreSQL {theirs}; this installation brings {ours}, which "
            f"can't read it. Dump it with the version that wrote it (pg_dumpall) and load it into a new data "
            f"directory, or set DATABASE_URL to a PostgreSQL {theirs} server; or move the directory away to begin anew."
        )
    if theirs > ours:
        raise EmbeddedPostgresError(
            f"The data in {place.cluster} was written by PostgreSQL {theirs}; this installation brings only {ours}. "
            "Use the newer version of this program that wrote it, or another data directory."
        )


def _start(place: Place, options: Mapping[str, str]) -> None:
    binaries, version = find(place)
    if not place.cluster.exists():
        _make_cluster(place, binaries, options)
    _check_version(place, version)
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        _clear_pid_files(place)
        start, log = _open_log(place)
        with log:
            # A session of its own: Ctrl-C at the terminal is for us, not for the database.
            server = subprocess.Popen(
                _server_command(place, binaries, options),
                stdout=log, stderr=log, start_new_session=True, **as_server(place),
            )  # fmt: skip
        _children[server.pid] = server
        if _wait_for(place, server):
            return
        failure = _failure(place, start, "PostgreSQL")
        if not any(sign in failure.lower() for sign in TRANSIENT) or time.monotonic() > deadline:
            raise EmbeddedPostgresError(failure)
        time.sleep(0.2)


def _server_command(place: Place, binaries: Path, options: Mapping[str, str]) -> list[str | Path]:
    quoted = str(place.sockets).replace('"', '""')
    settings = {
        **options,
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{quoted}"',
        "unix_socket_permissions": "0700",
        "logging_collector": "off",
        "log_destination": "stderr",
    }
    return [binaries / "postgres", "-D", place.cluster, *(f"--{name}={value}" for name, value in settings.items())]


def _wait_for(place: Place, server: subprocess.Popen[bytes]) -> bool:
    """True when the server accepts, False when it ended."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if ask(place) not in (None, CANNOT_CONNECT_NOW):
            return True
        if server.poll() is not None:
            return False
        time.sleep(0.05)
    raise EmbeddedPostgresError(f"PostgreSQL has been starting for {START_SECONDS:.0f} s. Its log: {place.log}")


def _settled(place: Place) -> str | None:
    """What `_ask` says once a server that is starting or stopping is through with it."""
    deadline = time.monotonic() + START_SECONDS
    while (answer := ask(place)) == CANNOT_CONNECT_NOW:
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(f"PostgreSQL is there but takes no connections. Its log: {place.log}")
        time.sleep(0.05)
    return answer


def _clear_pid_files(place: Place) -> None:
    """Remove stale ones: PostgreSQL gives up when the pid in one is a zombie's or another program's of the same user.

    There are two, the cluster's and the socket's.
    """
    for file in (place.cluster / "postmaster.pid", place.sockets / f"{SOCKET}.lock"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid = int(file.read_text().partition("\n")[0])
            if _is_server(pid, place):
                _stop(pid)  # alive and without its socket: somebody cleaned up /tmp
        file.unlink(missing_ok=True)


def _is_server(pid: int, place: Place) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if Path("/proc/self").exists():
            return False
        ps = ["ps", "-o", "command=", "-p", str(pid)]
        command = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
    return "postgres" in command and f" -D {place.cluster} " in command  # a zombie's is empty


def _stop(pid: int | None) -> None:
    """Fast shutdown (clients are dropped, all is written), immediate when that takes too long."""
    for number, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 5.0)):
        deadline = time.monotonic() + seconds
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while pid and time.monotonic() < deadline:
            if not _alive(pid):
                return
            time.sleep(0.02)


def _alive(pid: int) -> bool:
    if child := _children.get(pid):
        if child.poll() is None:
            return True
        del _children[pid]
        return False
    try:
        os.kill(pid, 0)
        # Somebody else's child that ended stays visible until it is waited for.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def _create_database(place: Place) -> None:
    """Role and database, if they are missing: at the first start, or because somebody dropped them."""
    if (answer := _settled(place)) in (NO_SUCH_ROLE, NO_SUCH_DATABASE):
        ask(place, user="postgres", database="postgres", statement=f"CREATE ROLE {NAME} LOGIN CREATEDB")
        ask(place, user="postgres", database="postgres", statement=f"CREATE DATABASE {NAME} OWNER {NAME}")
        answer = ask(place)
    if answer:
        raise EmbeddedPostgresError(f"PostgreSQL refuses our connection (SQLSTATE {answer}). Its log: {place.log}")


# --- locks, log, errors ----------------------------------------------------------------------------------------------


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _start_lock(data_dir: Path) -> Iterator[None]:
    """One at a time may look, start, take or give up a share."""
    file = _open_lock(data_dir / "postgres.start.lock")
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"Another process has been starting the database in {data_dir} for {LOCK_SECONDS:.0f} s."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(file)


def _take_hold(place: Place) -> int:
    hold = _open_lock(place.data_dir / "postgres.users.lock")
    fcntl.flock(hold, fcntl.LOCK_SH)  # nobody holds it exclusively outside the start lock
    return hold


def _open_log(place: Place) -> tuple[int, Any]:
    """The log to append to, and where what comes now begins."""
    with contextlib.suppress(FileNotFoundError):
        if place.log.stat().st_size > LOG_LIMIT_BYTES:
            place.log.replace(place.log.with_suffix(".log.1"))
    log = os.fdopen(os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "ab")
    return log.tell(), log


def _failure(place: Place, start: int, what: str) -> str:
    with place.log.open("rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace").strip()
    if "No space left on device" in text:
        return f"The disk is full: {what} could not write under {place.home}. Free some space and start again."
    return f"{what} could not start. Its log, {place.log}, says:\n" + "\n".join(text.splitlines()[-15:])


@contextlib.contextmanager
def _reported(place: Place) -> Iterator[None]:
    """Errors of the operating system as sentences."""
    try:
        yield
    except OSError as error:
        where = error.filename or place.home
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"The disk is full: could not write {where}. Free some space and start again."
        elif error.errno in (errno.EACCES, errno.EPERM):
            message = f"No permission for {where}. {place.data_dir} must belong to the user that starts this."
        else:
            message = f"The embedded PostgreSQL could not be started: {error.strerror or error} ({where})."
        raise EmbeddedPostgresError(message) from error
