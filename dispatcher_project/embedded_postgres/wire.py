"""The few words of PostgreSQL's protocol that tell whether a server is there, and what it thinks of us."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

from dispatcher_project.embedded_postgres.place import SOCKET, Place

NAME = "dispatcher"  # of the role and of the database
CANNOT_CONNECT_NOW, NO_SUCH_ROLE, NO_SUCH_DATABASE = "57P03", "28000", "3D000"


def ask(place: Place, *, user: str = NAME, database: str = NAME, statement: str = "") -> str | None:
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


def listener(place: Place) -> int | None:
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
