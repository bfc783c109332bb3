"""Where a cluster and its socket lie, who runs it, and the directories for that."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import stat
import subprocess
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT_BYTES = 103  # 104 with the closing zero on macOS, 108 on Linux
ROOT_HOME = Path("/var/lib/workflow-dispatcher")
RUN_AS = ("postgres", "nobody")  # the first that exists, when we are root
NOTE = "postgres-is-elsewhere"


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


def locate(data_dir: Path) -> Place:
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
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
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
    for name in RUN_AS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedPostgresError(
        "PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody to run it. "
        "Start this as a normal user, or set DATABASE_URL."
    )


def prepare_home(place: Place) -> None:
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
    make_private(place.sockets, place.user)


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


def make_private(directory: Path, user: pwd.struct_passwd | None) -> None:
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


def as_server(place: Place) -> dict[str, Any]:
    """For subprocess: the server's user, and an environment in which no PGDATA, LC_ALL or LD_PRELOAD has a say."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        environment["LD_LIBRARY_PATH"] = libraries
    drop = {"user": place.user.pw_uid, "group": place.user.pw_gid, "extra_groups": []} if place.user else {}
    return {"env": environment, "cwd": "/", "umask": 0o077, "stdin": subprocess.DEVNULL, **drop}
