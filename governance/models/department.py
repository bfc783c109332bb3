"""A part of the organization that agents belong to."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now as TransactionTime  # noqa: TID251  (a column default: no caller has a clock)

IDENTIFIER = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9._:@-]*\Z",
    "Letters, digits and . _ : @ - only, beginning with a letter or digit.",
)


class Department(models.Model):
    department_id = models.CharField("ID", primary_key=True, max_length=100, validators=[IDENTIFIER])
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=TransactionTime(), editable=False)

    class Meta:
        db_table = "departments"
        ordering = ["department_id"]

    def __str__(self) -> str:
        return self.name
