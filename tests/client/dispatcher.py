"""What the scripted server answers an agent that works on runs: one lease per run, and whatever a test wants broken."""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from tests.client.runs import run
from tests.client.server import DROP, Answer, Received, problem

BEGAN, ENDS = "2026-03-01T09:30:00.000000Z", "2026-03-01T09:30:{:09.6f}Z"
ENDED_BY = {"complete": "completed", "fail": "failed", "cancel": "cancelled"}


class Dispatcher:
    """Hands out `runs`, one by one. `drop[verb]`: so many replies are lost after the call was carried out."""

    def __init__(self, *payloads: dict[str, Any], interval: float = 0.1, lease_seconds: float = 3.0) -> None:
        self.runs = [
            run("dispatched", id=f"r{n}", workflow_type="doc", input_payload=payload)
            for n, payload in enumerate(payloads, 1)
        ]
        self.interval = interval
        self.lease_seconds = lease_seconds
        self.drop: dict[str, int] = {}
        self.refuse: dict[str, Answer] = {}
        self.directive = "continue"
        self.away = False
        self.knows_claim_next = True
        self.endings: dict[str, tuple[str, bytes]] = {}
        self.history: list[str] = []  # what took effect: `claim r1`
        self.calls: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    def __call__(self, request: Received) -> Answer:
        if self.away:
            return DROP
        path = urlsplit(request.path).path.removeprefix("/api/")
        _, name, *verb = path.split("/")
        called = verb[0] if verb else name
        body = json.loads(request.body) if request.body else {}
        with self._lock:
            self.calls.append((called, body))
            answer = self.refuse.get(called) or self._carry_out(name, called, body, request.body)
            if self.drop.get(called, 0):
                self.drop[called] -= 1
                return DROP
        if called == "claim-next" and answer.status == 204:
            time.sleep(min(body.get("wait", 0), 0.1))
        return answer

    def bodies(self, verb: str) -> list[Any]:
        return [body for called, body in self.calls if called == verb]

    def lose(self, run_id: str = "r1") -> None:
        """Recovery took the run back."""
        self._find(run_id).update(lease_no=None, claim_session_id=None, status="queued")

    def _find(self, run_id: str) -> dict[str, Any]:
        return next(found for found in self.runs if found["id"] == run_id)

    def _carry_out(self, name: str, verb: str, body: Any, raw: bytes) -> Answer:
        if verb == "pending":
            return Answer(200, {"runs": [found for found in self.runs if found["status"] == "dispatched"]})
        if verb == "claim-next":
            return self._claim_next(body) if self.knows_claim_next else problem(405, "method_not_allowed", "No POST")
        if name not in {found["id"] for found in self.runs}:  # of a session
            held = [found for found in self.runs if found.get("claim_session_id") == name]
            return Answer(200, {"updated_runs": len(held), "runs": held})
        found = self._find(name)
        if verb == "claim":
            return Answer(200, self._claim(found, body))
        if verb == "usage":
            return Answer(200, {"lease": "held"})
        if self.endings.get(name) == (verb, raw):
            return Answer(200, found)
        if body.get("session_id") != found.get("claim_session_id") or body.get("lease_no") != found["lease_no"]:
            return problem(409, "lease_lost", "This lease is lost", run=found, directive="stop")
        return self._held(found, verb, raw)

    def _claim_next(self, body: Any) -> Answer:
        for found in self.runs:
            unheard = found["status"] == "claimed" and found["claim_session_id"] == body["session_id"]
            if unheard or found["status"] == "dispatched":
                return Answer(200, found if unheard else self._claim(found, body))
        return Answer(204)

    def _claim(self, found: dict[str, Any], body: Any) -> dict[str, Any]:
        found.update(status="claimed", claim_session_id=body["session_id"], lease_no=1)
        self.history.append(f"claim {found['id']}")
        return found

    def _held(self, found: dict[str, Any], verb: str, raw: bytes) -> Answer:
        if verb in ("start", "heartbeat"):
            found["status"] = "running"
            more = {
                "directive": self.directive,
                "heartbeat_interval_seconds": self.interval,
                "last_heartbeat_at": BEGAN,
                "lease_expires_at": ENDS.format(self.lease_seconds),
            }
            return Answer(200, {**found, **more} if verb == "heartbeat" else found)
        retried = verb == "fail" and json.loads(raw)["retryable"]
        found.update(status="queued" if verb == "release" or retried else ENDED_BY[verb], claim_session_id=None)
        self.endings[found["id"]] = verb, raw
        self.history.append(f"{verb} {found['id']}")
        return Answer(200, found)
