"""This web process's row in `process_instances`: heard from while it serves, stopped when it ends.

Recovery reads it: while no web process was alive, no agent could send a heartbeat.
"""

from __future__ import annotations

import logging
import threading
import uuid

from django.conf import settings
from django.db import DatabaseError, connection

from dispatcher_project import clock
from workflows.models import ProcessInstance
from workflows.models.process import ProcessKind

log = logging.getLogger(__name__)

STOP_SECONDS = 1.0


class Presence:
    """A thread that registers and beats; each time it holds a connection only for as long as that takes."""

    def __init__(self) -> None:
        # Three beats fit into the time after which a silent web counts as an outage, a third of the stale limit.
        self.interval_seconds = min(30.0, settings.DISPATCHER_STALE_CLAIM_MS / 9000)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self._pk: uuid.UUID | None = None
        self._silent = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Says goodbye; waits for that a second at most."""
        self._ended.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            ended = self._ended.is_set()
            self._beat(ended)
            if ended:
                return
            self._ended.wait(self.interval_seconds)

    def _beat(self, ended: bool) -> None:
        try:
            columns = {"stopped_at": clock.now()} if ended else {}
            known = self._pk is not None and ProcessInstance.beat(self._pk, **columns)
            if not known and not ended:
                self._pk = ProcessInstance.register(ProcessKind.WEB).pk
            self._silent = False
        except DatabaseError as error:
            if not self._silent:
                log.warning("The database doesn't hear that this web process is alive: %s", str(error).strip())
            self._silent = True
        finally:
            connection.close()
