"""One row per process of ours: web server, dispatcher, monitor. Tells stats and readiness who was heard from."""

from __future__ import annotations

import os
import socket
import uuid
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import Q

from dispatcher_project import clock
from workflows.models.run import new_id


class ProcessKind(models.TextChoices):
    WEB = "web", "Web"
    DISPATCHER = "dispatcher", "Dispatcher"
    MONITOR = "monitor", "Monitor"


class ProcessInstance(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    kind = models.CharField(max_length=20, choices=ProcessKind.choices)
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True)
    poll_interval_ms = models.IntegerField(null=True)
    last_tick_at = models.DateTimeField(null=True)
    last_tick_error = models.TextField(null=True)
    last_tick_summary = models.JSONField(null=True)
    recovery_suspended_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "process_instances"
        verbose_name = "process"
        verbose_name_plural = "processes"
        ordering = ["kind", "-started_at"]
        constraints = [models.CheckConstraint(condition=Q(kind__in=ProcessKind.values), name="process_kind_known")]
        indexes = [models.Index(fields=["kind", "-last_seen_at"], name="process_last_heard")]

    def __str__(self) -> str:
        return f"{self.kind} {self.host}:{self.pid}"

    @classmethod
    def register(cls, kind: str, *, poll_interval_ms: int | None = None) -> ProcessInstance:
        now = clock.now()
        return cls.objects.create(
            kind=kind,
            host=socket.gethostname()[:200],
            pid=os.getpid(),
            started_at=now,
            last_seen_at=now,
            poll_interval_ms=poll_interval_ms,
        )

    @classmethod
    def beat(cls, pk: uuid.UUID, **columns: Any) -> bool:
        """Seen now, with what else the process has to say. False: the row is gone (pruned); register again."""
        return bool(cls.objects.filter(pk=pk).update(last_seen_at=clock.now(), **columns))

    @classmethod
    def forget(cls, *, days: int = 7) -> int:
        """Remove the rows of processes that were not heard from for `days`; the newest of each kind stays."""
        newest = cls.objects.order_by("kind", "-last_seen_at").distinct("kind").values_list("pk", flat=True)
        old = cls.objects.filter(last_seen_at__lt=clock.now() - timedelta(days=days)).exclude(pk__in=list(newest))
        return old.delete()[0]
