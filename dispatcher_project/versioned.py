"""Rows that people edit: each save counts their version, which is the API's ETag."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F
from django.db.models.functions import Now as TransactionTime  # noqa: TID251  (a column default: no caller has a clock)


class Versioned(models.Model):
    version = models.PositiveIntegerField(default=1, editable=False)
    created_at = models.DateTimeField(db_default=TransactionTime(), editable=False)
    updated_at = models.DateTimeField(db_default=TransactionTime(), editable=False)

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        edited = not self._state.adding and not kwargs.get("force_insert")
        if edited:
            self.version = F("version") + 1
            self.updated_at = TransactionTime()
            if kwargs.get("update_fields") is not None:
                kwargs["update_fields"] = {*kwargs["update_fields"], "version", "updated_at"}
        super().save(*args, **kwargs)
        if edited:
            self.refresh_from_db(fields=["version", "updated_at"])
