"""Real races: threads with connections of their own, started by one gun; waits that are seen rather than slept for."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connection, connections

from dispatcher_project.errors import DomainError

PATIENCE_SECONDS = 20


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs at once; what each returned, or the DomainError that refused it. Any other error is the test's."""
    gun = Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            gun.wait(PATIENCE_SECONDS)
            return _outcome(job)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(PATIENCE_SECONDS) for future in [pool.submit(run, job) for job in jobs]]


class Background:
    """One job in a thread of its own, for a test that holds a lock which the job must wait for."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future: Future[Any] = self._pool.submit(self._run, job)

    @staticmethod
    def _run(job: Callable[[], Any]) -> Any:
        try:
            return _outcome(job)
        finally:
            connections.close_all()

    def wait_until_it_waits(self) -> None:
        """Returns when the job stands before a lock that somebody else holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._future.done():
                raise AssertionError(f"It waited for nothing: {self._future.result()!r}")
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                if cursor.fetchone()[0]:
                    return
            time.sleep(0.005)
        raise AssertionError("It came to no lock.")

    def result(self) -> Any:
        try:
            return self._future.result(PATIENCE_SECONDS)
        finally:
            self._pool.shutdown(wait=False)  # a job that hangs must not hold the lock's owner in its transaction


def _outcome(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except DomainError as refusal:
        return refusal
