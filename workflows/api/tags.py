"""ETags of runs: what a run's detail was when it was read.

"<last_seq>-<updated_at>-<what else it shows>": the first two are the run's own, and what `If-Match` compares; the rest
is of its rule and of what holds it, which change without the run, so that a 304 never hides them.
"""

from __future__ import annotations

import re
import zlib

from rest_framework.request import Request
from rest_framework.response import Response

from workflows import admission
from workflows.api import run_object
from workflows.models.rows import RULE_COLUMNS, Row

_OURS = re.compile(r'"([0-9]+-[0-9]+)-[0-9a-f]{8}"')


def of_run(row: Row) -> str:
    around = [admission.hold_reasons([row])[row["id"]], *(row[name] for name in RULE_COLUMNS)]
    return f'"{_version(row)}-{zlib.crc32(repr(around).encode()):08x}"'


def respond(request: Request, row: Row) -> Response:
    """The run's detail with its tag, or 304 where the caller has it."""
    tag = of_run(row)
    if is_known(request, tag):
        return Response(status=304, headers={"ETag": tag})
    return Response(run_object.show_whole(row), headers={"ETag": tag})


def is_known(request: Request, tag: str) -> bool:
    """`If-None-Match` names this very tag; a weak one names none."""
    header = request.META.get("HTTP_IF_NONE_MATCH", "").strip()
    return header == "*" or tag in {found.strip() for found in header.split(",")}


def is_expected(request: Request, row: Row) -> bool:
    """The run is still as `If-Match` has it, or nothing is expected. A tag that is weak or not ours never matches."""
    header = request.META.get("HTTP_IF_MATCH")
    if header is None or header.strip() == "*":
        return True
    found = (_OURS.fullmatch(tag.strip()) for tag in header.split(","))
    return _version(row) in {tag[1] for tag in found if tag}


def _version(row: Row) -> str:
    moment = row["updated_at"]
    return f"{row['last_seq']}-{int(moment.timestamp()) * 1_000_000 + moment.microsecond}"
