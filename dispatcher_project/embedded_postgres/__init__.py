"""The embedded PostgreSQL: found, made, started, shared and stopped. Standard library only, no Django.

One data directory is one cluster is one server. Everyone who uses it holds a shared lock; the last one stops it. A user
that is killed leaves the server running, and the next start adopts it. Whether a server is there is decided by its
socket and by nothing else: pid files lie after a crash.

PostgreSQL refuses to run as root. Root's cluster therefore lies under /var/lib and belongs to an unprivileged user; a
note in the data directory says where. We never touch the mode or the owner of a directory that we didn't make.
"""

from __future__ import annotations

from dispatcher_project.embedded_postgres.place import EmbeddedPostgresError
from dispatcher_project.embedded_postgres.server import (
    Holder,
    connection,
    ensure_running,
    forget_libpq_environment,
    is_running,
)

__all__ = [
    "EmbeddedPostgresError",
    "Holder",
    "connection",
    "ensure_running",
    "forget_libpq_environment",
    "is_running",
]
