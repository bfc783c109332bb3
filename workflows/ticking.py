"""What the dispatcher and the monitor have in common: phases in order, their process row, suspension after an outage.

A phase is `phase(this: Pass) -> Outcome`, made of small transactions that pass over locked rows: safe to kill, safe to
run twice, no leader. One that fails is noted and doesn't stop the rest.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog
from django.conf import settings
from django.db import transaction

from dispatcher_project import clock, conf
from dispatcher_project.daemon import Next, database_is_lost
from governance.actors import Actor
from workflows.models import ProcessInstance
from workflows.models.rows import Row
from workflows.outages import Outages

STATEMENT_LIMIT = 100  # rows that one statement moves
STATEMENTS_A_TICK = 20  # of one verb; then the other phases have their turn, and the tick goes again
RECORD_SECONDS = 1.0
SEEN_SECONDS = 30.0
FORGET_SECONDS = 3600.0
CONTENDED_SECONDS = 0.1
CONTENDED_LIMIT_SECONDS = 2.0
MAX_ERROR_LENGTH = 2000

log = structlog.get_logger(__name__)


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Pass:
    """What a phase needs. `now`: for tests. `batch`: runs to dispatch at most. `keys`: what rang (None: a poll)."""

    now: datetime | None = None
    batch: int = 10
    keys: frozenset[str] | None = None
    suspended: bool = False
    stopping: Callable[[], bool] = _never


@dataclass(slots=True)
class Outcome:
    """What phases did. `cut`: there is more, go again. `more`: keys whose dispatch was cut by the batch. `contended`:
    keys that somebody else was at. `seconds`: how long each phase took, the last time."""

    counts: Counter[str] = field(default_factory=Counter)
    cut: bool = False
    more: frozenset[str] = frozenset()
    contended: frozenset[str] = frozenset()
    errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        self.counts.update(other.counts)
        self.cut = self.cut or other.cut
        self.more |= other.more
        self.contended |= other.contended
        self.errors += other.errors
        self.seconds |= other.seconds


class Phase(Protocol):
    def __call__(self, this: Pass) -> Outcome: ...


Phases = Sequence[tuple[str, Phase]]


class Verb(Protocol):
    def __call__(self, *, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]: ...


def drain(verb: Verb, this: Pass, *, actor: Actor) -> tuple[list[tuple[str, str | None]], bool]:
    """Call a set-based verb until it moves less than it may: (type, agent) of each run, and whether there is more."""
    moved: list[tuple[str, str | None]] = []
    for _ in range(STATEMENTS_A_TICK):
        if this.stopping():
            return moved, False
        rows = verb(actor=actor, limit=STATEMENT_LIMIT, now=this.now)
        moved += [(row["workflow_type"], row["claimed_by"] or row["target_agent_id"]) for row in rows]
        if len(rows) < STATEMENT_LIMIT:
            return moved, False
    return moved, True


def run_phases(phases: Phases, this: Pass) -> Outcome:
    """Each phase in turn; one that fails is logged and its text kept. Raises when the database is out of reach."""
    total = Outcome()
    for name, phase in phases:
        if this.stopping():
            break
        began = time.monotonic()
        try:
            total.add(phase(this))
        except Exception as error:
            if database_is_lost(error):
                raise
            log.exception("phase failed", phase=name)
            total.errors.append(f"{name}: {error}")
        total.seconds[name] = round(time.monotonic() - began, 6)
    return total


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of daemon. `on_ring`: the phases that a ring calls for. `summary`: counts as stats show them. `due`:
    seconds until something falls due."""

    kind: str
    phases: Phases
    summary: Callable[[Mapping[str, int]], dict[str, Any]]
    on_ring: Phases = ()
    due: Callable[[], float | None] = lambda: None


def once(job: Job, *, batch: int) -> Outcome:
    """One pass, recorded. Never suspended. What somebody else was at is tried again for at most two seconds."""
    process = ProcessInstance.register(job.kind)
    outcome = run_phases(job.phases, Pass(batch=batch))
    deadline = time.monotonic() + CONTENDED_LIMIT_SECONDS
    while outcome.contended and time.monotonic() < deadline:
        time.sleep(CONTENDED_SECONDS)
        room, keys = batch - outcome.counts["dispatched"], outcome.contended
        outcome.contended = frozenset()  # the later attempt knows better
        outcome.add(run_phases(job.on_ring, Pass(batch=room, keys=keys)))
    now = clock.now()
    ProcessInstance.beat(process.pk, last_tick_at=now, stopped_at=now, **_results(job, outcome))
    _forget_earlier_passes(process)
    return outcome


class Ticker:
    """The worker that a loop drives: ticks of one job, and the process row that tells of them."""

    def __init__(self, job: Job, *, batch: int, poll_seconds: float) -> None:
        self._job, self._batch, self._poll_seconds = job, batch, poll_seconds
        self._pk: uuid.UUID | None = None
        self._outages = Outages(timedelta(seconds=conf.heartbeat_interval_seconds(settings.DISPATCHER_STALE_CLAIM_MS)))
        self._unrecorded: Outcome | None = None
        self._seconds: dict[str, float] = {}
        self._ticked_at = self._forgot_at = time.monotonic()
        self._recorded_at = float("-inf")

    def tick(self, keys: frozenset[str] | None, stopping: Callable[[], bool]) -> Next:
        """The job's phases, or those of a ring; logged when they did something."""
        if self._pk is None:
            self._pk = self._register()
        if keys is None:
            self._outages.look()
        this = Pass(batch=self._batch, keys=keys, suspended=self._outages.suspended, stopping=stopping)
        outcome = run_phases(self._job.phases if keys is None else self._job.on_ring, this)
        self._ticked_at = time.monotonic()
        self._unrecorded = self._unrecorded or Outcome()
        self._unrecorded.add(outcome)
        self._seconds |= outcome.seconds
        done = {verb: count for verb, count in outcome.counts.items() if count}
        if done:
            log.info("tick", process=self._job.kind, **done)
        return Next(
            full=outcome.cut,
            keys=outcome.more | outcome.contended,
            after=0.0 if outcome.more else CONTENDED_SECONDS,
            due=self._job.due(),
        )

    def rest(self) -> float:
        """Record what wasn't yet, at most once a second, and that we are alive."""
        since = time.monotonic() - self._recorded_at
        due = RECORD_SECONDS if self._unrecorded else SEEN_SECONDS
        if since < due:
            return due - since
        self._record()
        if time.monotonic() - self._forgot_at > FORGET_SECONDS:
            self._forgot_at = time.monotonic()
            ProcessInstance.forget()
        return SEEN_SECONDS

    def database_lost(self) -> None:
        """Nobody could heartbeat: what looks silent now deserves a chance first."""
        self._outages.lost = True

    def stop(self) -> None:
        """The row says that we ended on purpose."""
        if self._pk is not None:
            self._record(stopped_at=clock.now())

    def _register(self) -> uuid.UUID:
        return ProcessInstance.register(self._job.kind, poll_interval_ms=round(self._poll_seconds * 1000)).pk

    def _record(self, **columns: Any) -> None:
        columns["recovery_suspended_until"] = self._outages.until
        if self._unrecorded is not None:
            ago = timedelta(seconds=time.monotonic() - self._ticked_at)
            self._unrecorded.seconds = self._seconds  # a ring runs one phase; the others' last times stand
            columns |= {"last_tick_at": clock.now() - ago, **_results(self._job, self._unrecorded)}
        if self._pk is None or not ProcessInstance.beat(self._pk, **columns):
            self._pk = self._register()
            ProcessInstance.beat(self._pk, **columns)
        self._unrecorded, self._recorded_at = None, time.monotonic()


def _results(job: Job, outcome: Outcome) -> dict[str, Any]:
    error = "; ".join(outcome.errors)[:MAX_ERROR_LENGTH] or None
    summary = {**job.summary(outcome.counts), "phase_seconds": outcome.seconds}
    return {"last_tick_error": error, "last_tick_summary": summary}


def _forget_earlier_passes(process: ProcessInstance) -> None:
    """A pass each minute from cron must not leave a row each minute."""
    earlier = ProcessInstance.objects.filter(
        kind=process.kind, host=socket.gethostname()[:200], poll_interval_ms=None, stopped_at__isnull=False
    ).exclude(pk=process.pk)
    with transaction.atomic():
        locked = earlier.select_for_update(skip_locked=True).order_by().values_list("pk", flat=True)
        ProcessInstance.objects.filter(pk__in=list(locked)).delete()
