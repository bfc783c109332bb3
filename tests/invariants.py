"""What is always true of the tables, whatever happened before: asked after races, load and kill -9.

Each rule is a query for its violations. `check()` fails with every violation that it finds, so that one look tells
which promise broke and on which row.
"""

from __future__ import annotations

from django.db import connection

from workflows import states


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_FINAL, _LEASED = _quoted(states.FINAL), _quoted(states.LEASED)
_UNLEASED = _quoted(tuple(state for state in states.STATES if state not in states.LEASED and state != states.PAUSED))
_LIVE = "(SELECT * FROM run_leases WHERE ended_at IS NULL)"
_HELD = """(SELECT * FROM workflow_runs WHERE status IN ('dispatched', 'claimed', 'running')
    OR (status = 'paused' AND claim_session_id IS NOT NULL))"""
_MOVES = ", ".join(
    f"('{move.verb}', '{source}', '{target}')"
    for move in states.MOVES.values()
    for source in move.sources
    for target in move.targets
)
# An event beside the one before it; nothing before the first.
_CHAIN = """(SELECT *, lag(to_status) OVER timeline AS came_from, lag(at) OVER timeline AS came_at,
    row_number() OVER timeline AS position
    FROM workflow_run_events WINDOW timeline AS (PARTITION BY run_id ORDER BY seq))"""

LEASES = {
    "a run has more than one live lease": f"SELECT run_id, count(*) FROM {_LIVE} l GROUP BY run_id HAVING count(*) > 1",
    "a claimed, running or held paused run has no live lease that matches it": f"""
        SELECT r.id, r.status, r.lease_no FROM workflow_runs r LEFT JOIN {_LIVE} l
            ON l.run_id = r.id AND l.lease_no = r.lease_no
            AND l.session_id = r.claim_session_id AND l.agent_id = r.claimed_by
        WHERE l.run_id IS NULL
            AND (r.status IN ({_LEASED}) OR (r.status = 'paused' AND r.claim_session_id IS NOT NULL))""",
    "a live lease belongs to a run that nobody holds": f"""
        SELECT r.id, r.status, l.lease_no FROM workflow_runs r JOIN {_LIVE} l ON l.run_id = r.id
        WHERE r.status IN ({_UNLEASED}) OR r.claim_session_id IS NULL""",
    "a run's lease_no is not its newest lease's": """
        SELECT r.id, r.lease_no, max(l.lease_no) FROM workflow_runs r LEFT JOIN run_leases l ON l.run_id = r.id
        GROUP BY r.id, r.lease_no HAVING r.lease_no <> COALESCE(max(l.lease_no), 0)""",
    "a claim's lease_no in the timeline did not grow": """
        SELECT run_id, seq FROM (
            SELECT *, (detail->>'lease_no')::int AS given,
                lag((detail->>'lease_no')::int) OVER (PARTITION BY run_id ORDER BY seq) AS before
            FROM workflow_run_events WHERE verb = 'claim') claims
        WHERE given <= before""",
}
RUNS = {
    "finished_at is not set exactly in final states": f"""
        SELECT id, status, finished_at FROM workflow_runs WHERE (status IN ({_FINAL})) <> (finished_at IS NOT NULL)""",
    "a run has more attempts than its timeline has hand-outs": """
        SELECT r.id, r.dispatch_attempts FROM workflow_runs r JOIN workflow_run_events e ON e.run_id = r.id
        GROUP BY r.id HAVING bool_or(e.verb = 'create' AND e.to_status = 'queued')
            AND r.dispatch_attempts > count(*) FILTER (WHERE e.verb = 'dispatch')""",
}
TIMELINE = {
    "a timeline has a gap, or does not begin with 1": f"""
        SELECT run_id, seq, position FROM {_CHAIN} e WHERE seq <> position""",
    "last_seq is not the timeline's last number": """
        SELECT r.id, r.last_seq, max(e.seq) FROM workflow_runs r LEFT JOIN workflow_run_events e ON e.run_id = r.id
        GROUP BY r.id, r.last_seq HAVING r.last_seq <> COALESCE(max(e.seq), 0)""",
    "an entry does not start from where the one before it ended": f"""
        SELECT run_id, seq, came_from, from_status FROM {_CHAIN} e WHERE came_from IS DISTINCT FROM from_status""",
    "the last entry is not how the run stands": """
        SELECT r.id, r.status, e.to_status FROM workflow_runs r
        JOIN workflow_run_events e ON e.run_id = r.id AND e.seq = r.last_seq WHERE e.to_status <> r.status""",
    "an entry is no move of the table": f"""
        SELECT run_id, seq, verb, from_status, to_status FROM workflow_run_events
        WHERE verb <> 'create' AND (verb, from_status, to_status) NOT IN ({_MOVES})""",
}
CLOCK = {
    "a timeline runs backwards": f"SELECT run_id, seq, came_at, at FROM {_CHAIN} e WHERE at < came_at",
    "a lease ended before it began": "SELECT run_id, lease_no FROM run_leases WHERE ended_at < claimed_at",
}
SLOTS = {
    "a type holds more slots than its rule has": f"""
        SELECT rule.workflow_type, count(*), rule.max_concurrent FROM {_HELD} r
        JOIN workflow_agent_routing rule ON rule.workflow_type = r.workflow_type
        GROUP BY rule.workflow_type, rule.max_concurrent HAVING count(*) > rule.max_concurrent""",
    "an agent holds more slots than it has": f"""
        SELECT agent.agent_id, count(*), agent.max_concurrent FROM {_HELD} r
        JOIN agent_profiles agent ON agent.agent_id = r.target_agent_id
        GROUP BY agent.agent_id, agent.max_concurrent HAVING count(*) > agent.max_concurrent""",
}


def violations(*, slots: bool = True, clock: bool = True) -> list[str]:
    """What is broken, a line each. `slots`: off where a test lowered a limit below what is out. `clock`: off where it
    passed a `now` of its own."""
    rules = LEASES | RUNS | TIMELINE | (SLOTS if slots else {}) | (CLOCK if clock else {})
    found = []
    with connection.cursor() as cursor:
        for rule, query in rules.items():
            cursor.execute(query)
            found += [f"{rule}: {', '.join(map(str, row))}" for row in cursor.fetchmany(10)]
    return found


def check(*, slots: bool = True, clock: bool = True) -> None:
    """Fail with every broken promise; see `violations` for the switches."""
    broken = violations(slots=slots, clock=clock)
    assert not broken, "\n".join(["broken:", *broken])
