"""A part of the organization that agents belong to."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models

from dispatcher_project.versioned import Versioned

IDENTIFIER = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9._:@-]*\Z",
    "Letters, digits and . _ : @ - only, beginning with a letter or digit.",
)


class Department(Versioned):
    department_id = models.CharField("ID", primary_key=True, max_length=100, validators=[IDENTIFIER])
    name = models.CharField(max_length=200)

    class Meta:
        db_table = "departments"
        ordering = ["department_id"]

    def __str__(self) -> str:
        return self.name
