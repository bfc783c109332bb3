from __future__ import annotations

import pytest

from tests.factories import OPERATOR, agent_actor
from workflows import lifecycle
from workflows.errors import RunEnded
from workflows.models import RunEvent, RunLease

pytestmark = pytest.mark.django_db
A1 = agent_actor("a1")


def test_a_run_goes_from_the_queue_to_completion(route):
    run = lifecycle.create("doc", actor=OPERATOR, input_payload={"n": 1}).run
    assert run["status"] == "queued"
    lifecycle.dispatch([run["id"]], agent_id="a1", department_id=None, actor=OPERATOR)
    claimed = lifecycle.claim(run["id"], session_id="s1", actor=A1)
    assert (claimed["status"], claimed["lease_no"], claimed["claimed_by"]) == ("claimed", 1, "a1")
    assert lifecycle.heartbeat(run["id"], session_id="s1", actor=A1, percent=40)["status"] == "running"
    done = lifecycle.complete(run["id"], session_id="s1", actor=A1, output_summary={"v": 1})
    assert done["status"] == "completed"
    assert done["output_summary"] == '{"v": 1}'
    verbs = list(RunEvent.objects.filter(run_id=run["id"]).order_by("seq").values_list("seq", "verb"))
    assert verbs == [(1, "create"), (2, "dispatch"), (3, "claim"), (4, "start"), (5, "complete")]
    assert RunLease.objects.get(run_id=run["id"]).end_verb == "complete"
    again = lifecycle.complete(run["id"], session_id="s1", actor=A1, output_summary={"v": 1})
    assert again == done
    with pytest.raises(RunEnded):
        lifecycle.complete(run["id"], session_id="s1", actor=A1, output_summary={"v": 2})
