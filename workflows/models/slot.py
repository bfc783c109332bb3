"""One lock row per workflow type and per agent with a limit. Its lock is all there is to it."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models


class DispatchSlot(models.Model):
    key = models.CharField(primary_key=True, max_length=110)

    class Meta:
        db_table = "dispatch_slots"

    def __str__(self) -> str:
        return self.key

    @staticmethod
    def of_type(workflow_type: str) -> str:
        return f"type:{workflow_type}"

    @staticmethod
    def of_agent(agent_id: str) -> str:
        return f"agent:{agent_id}"

    @classmethod
    def acquire(cls, key: str) -> bool:
        """Lock the row until the transaction ends. False: somebody else has it."""
        if cls._lock(key):
            return True
        DispatchSlot.objects.bulk_create([DispatchSlot(key=key)], ignore_conflicts=True)
        return cls._lock(key)

    @classmethod
    def _lock(cls, key: str) -> bool:
        held: Sequence[str] = list(
            cls.objects.filter(pk=key).select_for_update(skip_locked=True).values_list("key", flat=True)
        )
        return bool(held)
