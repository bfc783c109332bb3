"""The one writer of `workflow_runs.status`: a move of `states.MOVES` as one SQL statement.

    picked   the rows, locked, with the state they leave and the time read *after* the lock was had
    moved    the guarded UPDATE: status, stamps, the timeline's next number
    lease    the lease begun or ended with it
    event    the timeline's row
    ->       the moved runs as rows (`rows.py`)

A move that has to see a lease which another transaction may be committing right now locks the run in a statement of
its own first (`lock`): a statement's snapshot is older than the lock it waited for, and would miss that lease.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from django.db import connection

from dispatcher_project.pubsub import ring
from workflows import states
from workflows.models.rows import SELECT_FROM_MOVED, SELECT_FROM_MOVED_BARE, Row, read

# Hand-outs that a run may have in all. Needs the rule joined, and the setting as a parameter.
MAX_ATTEMPTS = "COALESCE(r.max_attempts, rule.max_attempts, %(max_attempts)s)"

# What a run no longer has when it stands in the queue.
UNLEASED = {
    "target_agent_id": "NULL",
    "claimed_at": "NULL",
    "claimed_by": "NULL",
    "claim_session_id": "NULL",
    "started_at": "NULL",
    "last_heartbeat_at": "NULL",
    "deadline_at": "NULL",
    "gateway_session_active": "false",
    "progress_percent": "NULL",
    "progress_message": "NULL",
}

# What a repeat of an ending call is answered with: all that later holders change. The output of a complete is the run's
# last word (completed is never left); other verbs keep the output as it was, which is an empty one.
OUTCOME = (
    "status", "current_step", "queued_at", "not_before", "target_agent_id", "dispatched_at", "claimed_at", "claimed_by",
    "claim_session_id", "lease_no", "started_at", "last_heartbeat_at", "deadline_at", "finished_at", "last_error",
    "last_error_at", "dispatch_attempts", "gateway_session_id", "gateway_session_active", "progress_percent",
    "progress_message", "charge_agent_id", "charge_department_id", "charge_project", "last_seq", "updated_at",
)  # fmt: skip

BEGIN_LEASE = """
    INSERT INTO run_leases (run_id, lease_no, agent_id, session_id, timeout_minutes, claimed_at)
    SELECT id, lease_no, claimed_by, claim_session_id, timeout_minutes, moved_at FROM moved"""

END_LEASE = """
    UPDATE run_leases lease SET ended_at = moved.moved_at, end_verb = '{verb}', end_reason = {reason},
        end_digest = {digest}, end_outcome = {outcome}
    FROM moved WHERE lease.run_id = moved.id AND lease.ended_at IS NULL"""

STATEMENT = """
WITH picked AS MATERIALIZED (
    SELECT locked.*, COALESCE(%(now)s::timestamptz, clock_timestamp()) AS at FROM (
        SELECT r.id, r.status AS from_status{picked_columns}
        FROM workflow_runs r LEFT JOIN workflow_agent_routing rule ON rule.workflow_type = r.workflow_type
        WHERE r.status IN ({sources}) AND {pick}
        FOR NO KEY UPDATE OF r{skip_locked}
    ) locked
), moved AS (
    UPDATE workflow_runs r SET {sets}
    FROM picked p WHERE r.id = p.id
    RETURNING r.*, p.from_status, p.at AS moved_at{returned_columns}
){lease}, event AS (
    INSERT INTO workflow_run_events (run_id, seq, verb, from_status, to_status, actor, reason, detail, at)
    SELECT id, last_seq, '{verb}', from_status, status, %(actor)s, {reason}, {detail}, moved_at FROM moved{event_when}
)
"""


def statement(
    verb: str,
    *,
    pick: str,
    sets: Mapping[str, str],
    to: str | None = None,
    sources: tuple[str, ...] | None = None,
    picked: Mapping[str, str] | None = None,
    begins_lease: bool = False,
    ends_lease: bool = False,
    repeatable: bool = False,
    skip_locked: bool = False,
    reason: str = "%(reason)s::text",
    detail: str = "NULL::jsonb",
    also_touches: tuple[str, ...] = (),
    answers_payloads: bool = True,
) -> str:
    """The SQL of a move; built once, at import.

    `pick`: condition on r (run) and rule. `picked`: further columns read under the lock, for `sets` as p.<name>.
    `to`: an SQL expression where the table allows several targets. `sources`: fewer than the table's. `also_touches`:
    states in which the same call sets the same columns, but is no move: status stays and the timeline is silent.
    `answers_payloads`: off for moves of many runs, whose payloads nobody asked for. Parameters: now, actor, and what
    the parts name.
    """
    move = states.MOVES[verb]
    sources = sources or move.sources
    if not set(sources) <= set(move.sources):
        raise ValueError(f"{verb} does not start from {set(sources) - set(move.sources)}")
    if to is None:
        (target,) = move.targets
        to = f"'{target}'"
    picked = picked or {}
    counted, event_when = "1", ""
    if also_touches:
        moves = f"from_status IN ({_quoted(sources)})"
        to = f"CASE WHEN p.{moves} THEN {to} ELSE r.status END"
        counted, event_when = f"CASE WHEN p.{moves} THEN 1 ELSE 0 END", f" WHERE {moves}"
    columns = {"status": to, "last_seq": f"r.last_seq + {counted}", "updated_at": "p.at", **sets}
    lease = ""
    if begins_lease:
        lease = f", lease AS ({BEGIN_LEASE}\n)"
    elif ends_lease:
        outcome = ", ".join(f"'{name}', moved.{name}" for name in OUTCOME)
        if verb != "complete":
            outcome += ", 'output_summary', moved.output_summary::text"
        lease = ", lease AS (%s\n)" % END_LEASE.format(  # noqa: UP031  (the text is full of braces and %(names)s)
            verb=verb,
            reason=reason,
            digest="%(digest)s" if repeatable else "NULL",
            outcome=f"jsonb_build_object({outcome})" if repeatable else "NULL",
        )
    return STATEMENT.format(
        verb=verb,
        pick=pick,
        sources=_quoted((*sources, *also_touches)),
        sets=", ".join(f"{name} = {value}" for name, value in columns.items()),
        picked_columns="".join(f", {value} AS {name}" for name, value in picked.items()),
        returned_columns="".join(f", p.{name}" for name in picked),
        skip_locked=" SKIP LOCKED" if skip_locked else "",
        reason=reason,
        detail=detail,
        lease=lease,
        event_when=event_when,
    ) + (SELECT_FROM_MOVED if answers_payloads else SELECT_FROM_MOVED_BARE)


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def move(sql: str, parameters: Mapping[str, Any], *, moves: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Execute a move; the runs that it moved, as they are now. Its own transaction where none is open.

    Rings for them after commit, for those who wait for a run. `moves`: whether a row moved, for a statement that also
    touches rows where they are.
    """
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found = read(cursor)
    moved = [row for row in found if moves(row)]
    if moved:
        dispatched = {row["target_agent_id"] for row in moved if row["status"] == states.DISPATCHED}
        ring(*(f"run:{row['id']}" for row in moved), *(f"pending:{agent_id}" for agent_id in dispatched))
    return found


def lock(run_id: uuid.UUID) -> str | None:
    """Lock the run until the transaction ends: its status, or None where there is no such run."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT status FROM workflow_runs WHERE id = %s FOR NO KEY UPDATE", [run_id])
        row = cursor.fetchone()
        return row[0] if row else None
