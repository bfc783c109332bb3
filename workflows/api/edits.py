"""Plain edits of configuration rows: full_clean, a version that counts, If-Match. Runs are never edited here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from rest_framework.request import Request

from dispatcher_project.errors import Conflict, Invalid, NotFound, PreconditionFailed
from dispatcher_project.versioned import Versioned

Row = TypeVar("Row", bound=models.Model)
Edited = TypeVar("Edited", bound=Versioned)

_TAG = re.compile(r'(?:W/)?"?([0-9]{1,10})"?')


class AlreadyExists(Conflict):
    """There is one of this name already."""

    code = "already_exists"


def etag(row: Versioned) -> str:
    return f'"{row.version}"'


def expected_versions(request: Request) -> set[int] | None:
    """The versions that `If-Match` names; None: any, existing or not. A tag that is none of ours matches nothing."""
    header = request.META.get("HTTP_IF_MATCH")
    if header is None:
        return None
    found = [_TAG.fullmatch(tag.strip()) for tag in header.split(",")]
    return {-1} if header.strip() == "*" else {int(tag[1]) for tag in found if tag}


def get(model: type[Row], pk: str) -> Row:
    row = model._default_manager.filter(pk=pk).first()
    if row is None:
        raise _missing(model, pk)
    return row


@transaction.atomic
def create(model: type[Row], values: Mapping[str, Any]) -> Row:
    """Errors: AlreadyExists, Invalid."""
    row = model(**values)
    _check(row, validate_unique=False)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise AlreadyExists(f"There is a {model._meta.verbose_name} {row.pk!r} already.") from None
    return get(model, row.pk)


@transaction.atomic
def edit(model: type[Edited], pk: str, values: Mapping[str, Any], *, expected: set[int] | None) -> Edited:
    """Errors: NotFound, PreconditionFailed, Invalid."""
    row = _locked(model, pk)
    _match(row, expected)
    for name, value in values.items():
        setattr(row, name, value)
    _check(row, validate_unique=False)
    row.save()
    return get(model, pk)


def upsert(model: type[Edited], values: Mapping[str, Any], *, expected: set[int] | None) -> Edited:
    """The row of this primary key with these values; others keep theirs, or have their defaults where it is new."""
    pk = values[model._meta.pk.name]
    try:
        return edit(model, pk, values, expected=expected)
    except NotFound:
        if expected is not None:
            raise PreconditionFailed from None
    try:
        return create(model, values)
    except AlreadyExists:  # since we looked
        return edit(model, pk, values, expected=None)


@transaction.atomic
def delete(model: type[Edited], pk: str, *, expected: set[int] | None) -> None:
    row = _locked(model, pk)
    _match(row, expected)
    row.delete()


def _locked(model: type[Edited], pk: str) -> Edited:
    row = model._default_manager.select_for_update(no_key=True).filter(pk=pk).first()
    if row is None:
        raise _missing(model, pk)
    return row


def _match(row: Versioned, expected: set[int] | None) -> None:
    if expected is not None and expected != {-1} and row.version not in expected:
        raise PreconditionFailed(version=row.version)


def _missing(model: type[models.Model], pk: str) -> NotFound:
    return NotFound(f"There is no {model._meta.verbose_name} {pk!r}.")


def _check(row: models.Model, *, validate_unique: bool) -> None:
    try:
        row.full_clean(validate_unique=validate_unique)
    except ValidationError as error:
        fields = {("" if name == "__all__" else name): " ".join(found) for name, found in error.message_dict.items()}
        raise Invalid(fields=fields) from None
