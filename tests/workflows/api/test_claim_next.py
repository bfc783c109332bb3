"""claim-next without waiting: whose runs, which types, how many, in what shape."""

from __future__ import annotations

import pytest

from tests.factories import AgentFactory, make_run
from workflows.models import RunLease


def claim_next(api, **body):
    return api.post("workflow-runs/claim-next", {"session_id": "s9", **body})


def ids(answer):
    assert answer.status_code == 200, answer.content
    return [run["id"] for run in answer.json()["runs"]]


def test_one_run_is_the_answer_itself(a1):
    run = make_run("dispatched")
    answer = claim_next(a1)
    assert (answer.status_code, answer.json()["id"], answer.json()["lease_no"]) == (200, str(run.pk), 1)
    assert answer.json()["claimSessionId"] == "s9"


def test_a_limit_makes_a_list(a1):
    runs = [make_run("dispatched") for _ in range(3)]
    assert ids(claim_next(a1, limit=2)) == [str(run.pk) for run in runs[:2]]
    assert ids(claim_next(a1, limit=1, session_id="s8")) == [str(runs[2].pk)]


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-5, 1), (1000, 100), (2**62, 100)])
def test_a_limit_out_of_range_is_clamped(limit, count, a1):
    for _ in range(101):
        make_run("dispatched")
    assert len(ids(claim_next(a1, limit=limit))) == count


@pytest.mark.parametrize("limit", ["5", 1.5, True, [], {}, 2**70])
def test_a_limit_that_is_no_whole_number_is_refused(limit, a1):
    answer = claim_next(a1, limit=limit)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "limit")


def test_nothing_is_204_without_a_body(a1):
    for body in ({}, {"limit": 5}, {"limit": None, "wait": 0}, {"wait": 30}):
        answer = claim_next(a1, **body)
        assert (answer.status_code, answer.content) == (204, b"")


def test_types_in_either_spelling(a1):
    make_run("dispatched", workflow_type="x")
    run = make_run("dispatched", workflow_type="y")
    assert claim_next(a1, workflow_types=["z"]).status_code == 204
    assert claim_next(a1, workflowTypes=["y", "z"]).json()["id"] == str(run.pk)


@pytest.mark.parametrize("types", [[], "doc", [1], [""], ["x" * 101], ["x"] * 101, {}])
def test_types_that_are_none(types, a1):
    answer = claim_next(a1, workflow_types=types)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"].startswith("workflow_types")


def test_a_lost_reply_is_repeated(a1):
    make_run("dispatched")
    make_run("dispatched")
    first = claim_next(a1)
    assert claim_next(a1).json() == first.json()
    assert RunLease.objects.count() == 1


def test_a_session_is_needed(a1):
    run = make_run("dispatched")
    answer = a1.post("workflow-runs/claim-next", {})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "session_id")
    run.refresh_from_db()
    assert run.status == "dispatched"


def test_an_agent_has_its_own_runs_only(a1, a2):
    run = make_run("dispatched")
    assert claim_next(a2).status_code == 204
    refused = claim_next(a2, agent_id="a1")
    assert (refused.status_code, refused["Content-Type"]) == (403, "application/problem+json")
    assert claim_next(a1, agentId="a1").json()["id"] == str(run.pk)


def test_an_orchestrator_has_everybodys(main):
    AgentFactory(agent_id="a2")
    first, second = make_run("dispatched", agent="a1"), make_run("dispatched", agent="a2")
    assert claim_next(main, agent_id="a2").json()["id"] == str(second.pk)
    answer = claim_next(main, session_id="s8")
    assert (answer.json()["id"], answer.json()["claimed_by"]) == (str(first.pk), "a1")
