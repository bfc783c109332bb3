"""What people see of a run, a list, the figures. Takes the API's objects, gives lines; missing keys are passed over."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from workflows.client.output import Line, line
from workflows.client.text import ago, clean, clock_time, duration, moment, outline, wrap
from workflows.states import is_final

Run = dict[str, Any]

LABEL_COLUMNS = 13
STYLES = {
    "queued": "cyan",
    "dispatched": "blue",
    "claimed": "yellow",
    "running": "yellow",
    "paused": "magenta",
    "waiting_for_approval": "magenta",
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "dim",
}


def words(status: object) -> str:
    """`waiting for approval`"""
    return clean(status).replace("_", " ")


def pending(runs: list[Run], *, now: datetime | None, columns: int, agent: str | None) -> list[Line]:
    """Two lines and more per run; the first carries what `claim` needs."""
    if not runs:
        return [line(f"Nothing to do: no run is waiting for {clean(agent) if agent else 'you'}.")]
    lines = []
    for run in runs:
        lines += [_heading(run), *_dim(_comma(_waiting(run, now)), columns), line()]
    return [*lines, line("Take one: dispatcher-agent claim <run-id> --session <yours>")]


def claimed(run: Run, *, session: str, columns: int) -> list[Line]:
    """Everything needed to do the work, the whole input included."""
    lines = [line("Claimed ", *_heading(run)), *_facts(run, columns, skip=("status",))]
    lines += _payload("Input", run.get("input_payload"), columns)
    options = f"--session {clean(session)}" + (f" --lease-no {run['lease_no']}" if "lease_no" in run else "")
    hint = f"Next: heartbeat while you work, then complete, fail or release, each with {options}"
    return [*lines, *_plain(wrap(hint, columns, rest="  "))]


def moved(run: Run, *, columns: int) -> list[Line]:
    """One sentence on where the run is now, and what matters about it."""
    return [line("Run ", *_heading(run), " is ", _state(run)), *_facts(run, columns, skip=("status", "deadline_at"))]


def heartbeat(run: Run) -> list[Line]:
    directive = run.get("directive")
    lines = [line(*_heading(run), " is ", _state(run))]
    if directive == "pause":
        lines.append(line(("Paused by an operator: do no work now, but go on with heartbeats.", "bold magenta")))
    elif directive == "stop":
        lines.append(line(("Stop working on this run.", "bold red")))
    if run.get("lease_expires_at"):
        lines.append(_field("lease", f"{run.get('lease_no', '?')}, until {clock_time(run['lease_expires_at'])}"))
    if run.get("heartbeat_interval_seconds"):
        lines.append(_field("next", f"heartbeat within {run['heartbeat_interval_seconds']} s"))
    return lines


def submitted(run: Run, *, columns: int) -> list[Line]:
    lines = [line("Submitted ", *_heading(run), ", ", _state(run))]
    if run.get("hold_reason"):
        lines += _plain(_wrapped_field("held", _hold(run), columns))
    return lines


def detail(run: Run, *, now: datetime | None, columns: int) -> list[Line]:
    lines = [line(*_heading(run), " is ", _state(run)), *_facts(run, columns, skip=("status",))]
    lines += [
        _field(label, f"{clock_time(run[key])} ({ago(run[key], now)})" if now else clock_time(run[key]))
        for label, key in (("created", "created_at"), ("heartbeat", "last_heartbeat_at"), ("finished", "finished_at"))
        if run.get(key)
    ]
    lines += _payload("Input", run.get("input_payload"), columns)
    lines += _payload("Output", run.get("output_summary"), columns)
    return [*lines, *_timeline(objects(run.get("events")), columns)]


def present_state(run: Run, *, columns: int) -> list[str]:
    """For a refusal: how things stand, as plain lines."""
    text = f"The run is {words(run.get('status', 'in an unknown state'))}"
    holder = _holder(run)
    return wrap(f"{text}{f', held by {holder}' if holder else ''}.", columns, first="  ", rest="  ")


def stats(figures: dict[str, Any], *, now: datetime | None, columns: int) -> list[Line]:
    """One labelled line per topic, of the figures that are there."""
    topics = [
        ("Runs now", _counts(figures, "queued", "pending", "claimed", "running", "paused")),
        ("Ended", _counts(figures, "completed", "failed", "timed_out", "cancelled")),
        ("Stale", _counts(figures, "stale_unclaimed", "stale_claimed")),
        ("Ever", _ever(figures)),
        ("Routes", _counts(figures, "route", "unroutable", names={"route": "rules", "unroutable": "runs without one"})),
        ("Last tick", _last_tick(figures, now)),
        ("Limits", _limits(figures)),
        ("Dispatchers", [f"{len(objects(figures['dispatchers']))} alive"] if "dispatchers" in figures else []),
    ]
    lines = [text for label, parts in topics if parts for text in _wrapped_field(label, _comma(parts), columns)]
    if figures.get("last_tick_error"):
        lines += _wrapped_field("Tick error", figures["last_tick_error"], columns)
    if figures.get("recovery_suspended"):
        lines += _wrapped_field("Note", "recovery is suspended after an outage", columns)
    return _plain(lines)


def _heading(run: Run) -> Line:
    return line((clean(run.get("id", "?")), "bold"), f" {clean(run.get('workflow_type', ''))}".rstrip())


def _state(run: Run) -> tuple[str, str]:
    status = str(run.get("status", "in an unknown state"))
    return words(status), STYLES.get(status, "")


def _holder(run: Run) -> str:
    """`coder in session s1, lease 3`; empty for a run that nobody holds."""
    if not run.get("claim_session_id") or run.get("status") not in ("claimed", "running", "paused"):
        return ""
    by = clean(run.get("claimed_by") or run.get("target_agent_id") or "somebody")
    lease = f", lease {run['lease_no']}" if run.get("lease_no") is not None else ""
    return f"{by} in session {clean(run['claim_session_id'])}{lease}"


def _waiting(run: Run, now: datetime | None) -> list[str]:
    parts = [f"for {clean(run['target_agent_id'])}" if run.get("target_agent_id") else ""]
    parts.append(f"priority {run['priority']}" if run.get("priority") is not None else "")
    parts.append(f"dispatched {ago(run['dispatched_at'], now)}" if run.get("dispatched_at") else "")
    parts.append(f"attempt {_attempts(run, '/')}" if run.get("dispatch_attempts") else "")
    return parts


def _facts(run: Run, columns: int, *, skip: tuple[str, ...] = ()) -> list[Line]:
    """Labelled lines of what is set and worth knowing in the run's present state."""
    facts = [
        ("agent", "", run.get("target_agent_id")),
        ("holder", "", _holder(run)),
        ("deadline", "deadline_at", None if is_final(str(run.get("status"))) else _time(run.get("deadline_at"))),
        ("waiting", "", _hold(run) if run.get("hold_reason") else None),
        ("not before", "", _time(run.get("not_before")) if run.get("status") == "queued" else None),
        ("attempts", "", _attempts(run, " of ") if run.get("dispatch_attempts") else None),
        ("last error", "", run.get("last_error") if run.get("status") != "completed" else None),
    ]
    shown = [(label, value) for label, key, value in facts if value and key not in skip]
    return _plain([text for label, value in shown for text in _wrapped_field(label, value, columns)])


def _hold(run: Run) -> str:
    reason = words(run["hold_reason"])
    return f"{reason} (no rule and no agent takes this type yet)" if run["hold_reason"] == "no_route" else reason


def _attempts(run: Run, of: str) -> str:
    """`1 of 3`; the run's own limit is null where the rule's holds, which then is in `max_retries`."""
    allowed, retries = run.get("max_attempts"), run.get("max_retries")
    if allowed is None and isinstance(retries, int):
        allowed = retries + 1
    return f"{run['dispatch_attempts']}{f'{of}{allowed}' if allowed else ''}"


def _time(value: object) -> str | None:
    return clock_time(value) if value else None


def _payload(title: str, value: Any, columns: int) -> list[Line]:
    if value in (None, {}, [], ""):
        return []
    return [line((title, "bold")), *_plain(outline(value, columns, indent=2))]


def _timeline(events: list[dict[str, Any]], columns: int) -> list[Line]:
    lines: list[Line] = [line(("Timeline", "bold"))] if events else []
    for event in events:
        to, actor, reason = event.get("to_status"), event.get("actor"), event.get("reason")
        text = f"{clock_time(event.get('at', ''))}  {words(event.get('verb', ''))}"
        text += f" → {words(to)}" if to else ""
        text += f", {clean(actor)}" if actor else ""
        text += f": {clean(reason)}" if reason else ""
        lines += _plain(wrap(text, columns, first="  ", rest=" " * 27))
    return lines


def _counts(figures: dict[str, Any], *keys: str, names: dict[str, str] | None = None) -> list[str]:
    """[`queued 3`] of the `…_count` figures that are there."""
    labels = {"pending": "dispatched", "stale_unclaimed": "unclaimed", "stale_claimed": "claimed", **(names or {})}
    there = [(key, figures[f"{key}_count"]) for key in keys if f"{key}_count" in figures]
    return [f"{labels.get(key, words(key))} {count}" for key, count in there]


def _ever(figures: dict[str, Any]) -> list[str]:
    parts = [f"dispatched {figures['dispatch_count']}"] if "dispatch_count" in figures else []
    if isinstance(figures.get("failure_rate"), int | float):
        parts.append(f"failure rate {100 * figures['failure_rate']:.1f} %")
    if isinstance(figures.get("average_claim_latency_seconds"), int | float):
        parts.append(f"claimed after {duration(figures['average_claim_latency_seconds'])} on average")
    return parts


def _last_tick(figures: dict[str, Any], now: datetime | None) -> list[str]:
    if not figures.get("last_tick_at"):
        return ["never"] if "last_tick_at" in figures else []
    summary = figures.get("last_tick_summary")
    summary = summary if isinstance(summary, dict) else {}
    return [ago(figures["last_tick_at"], now), *_counts(summary, "dispatched", "retried", "released", "timed_out")]


def _limits(figures: dict[str, Any]) -> list[str]:
    names = (("poll", "poll_interval_ms"), ("stale dispatch", "stale_dispatch_ms"), ("stale claim", "stale_claim_ms"))
    parts = [f"{name} {duration(figures[key] / 1000)}" for name, key in names if isinstance(figures.get(key), int)]
    tries = figures.get("max_dispatch_retries")
    return parts if tries is None else [*parts, f"{tries} attempts"]


def _comma(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)


def _field(label: str, value: object) -> Line:
    return line(f"{label:<{LABEL_COLUMNS}}{clean(value)}")


def _wrapped_field(label: str, value: object, columns: int) -> list[str]:
    return wrap(value, columns, first=f"{label:<{LABEL_COLUMNS}}", rest=" " * LABEL_COLUMNS)


def _plain(lines: list[str]) -> list[Line]:
    return [line(text) for text in lines]


def _dim(text: str, columns: int) -> list[Line]:
    return [line((part, "dim")) for part in wrap(text, columns, first="    ", rest="    ")]


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; nothing of anything else."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def server_time(date: str | None) -> datetime | None:
    """The `Date` of an answer: ages are told by the server's clock, ours may be wrong."""
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(date) if date else None
    except (TypeError, ValueError):
        return None
    return at if at and moment(at.isoformat()) else None
