"""Lists: filters, order, pages, limits, trimmed payloads; and what `pending` hands out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher_project import clock
from tests.factories import AgentFactory, RoutingRuleFactory, make_run
from tests.workflows.api.conftest import Api
from tests.workflows.api.test_conventions import problem
from workflows import states

LIST = "workflow-runs"
PENDING = "workflow-runs/pending"


def ids(answer):
    assert answer.status_code == 200, answer.content
    return [run["id"] for run in answer.json()["runs"]]


def made(*runs):
    return [str(run.pk) for run in runs]


LISTS = [LIST, PENDING, "agents", "departments"]


@pytest.mark.parametrize("path", LISTS)
class TestB037Limit:
    @pytest.mark.parametrize(
        "bad", ["abc", "2.5", "", "1e3", "0x1", "%20", "1%200", "NaN", "%D9%A3", "1&limit=2", "null"]
    )
    def test_what_is_no_whole_number(self, path, bad, ops):
        body = problem(ops.get(f"{path}?limit={bad}"), 400, "invalid")
        assert body["errors"][0]["field"] == "limit"

    @pytest.mark.parametrize("given", ["-5", "0", "1"])
    def test_one_at_least(self, path, given, ops):
        for n in range(3):
            AgentFactory(agent_id=f"z{n}")
            make_run("dispatched")
        answer = ops.get(f"{path}?limit={given}").json()
        assert next(len(found) for found in answer.values() if isinstance(found, list)) <= 1

    @pytest.mark.parametrize("given", ["101", "1000000", "99999999999999999999", "9" * 5000, "-" + "9" * 5000])
    def test_a_hundred_at_most(self, path, given, ops):
        assert ops.get(f"{path}?limit={given}").status_code == 200


def test_limit_is_clamped_to_a_hundred(ops):
    for _ in range(101):
        make_run("dispatched")
    assert len(ids(ops.get(f"{LIST}?limit=1000000"))) == 100
    assert len(ids(ops.get(f"{PENDING}?limit=1000000"))) == 100
    assert len(ids(ops.get(PENDING))) == 10
    assert len(ids(ops.get(f"{PENDING}?limit=0"))) == 1


@pytest.mark.parametrize(
    "query",
    [
        "status=bogus",
        "status=queued&status=bogus",
        "status=",
        "workflow_type=",
        "workflow_type=a&workflow_type=b",
        "owner_agent_id=%00",
        "created_after=yesterday",
        "created_after=2026-01-01T00:00:00",
        "created_after=2026-02-30T00:00:00Z",
        "created_after=0001-01-01T00:00:00%2B14:00",
        "created_before=9999-12-31T23:59:59-14:00",
        "created_before=1767225600",
        "created_after=0",
        "search=" + "x" * 201,
        "workflow_type=" + "x" * 101,
        "cursor=",
        "cursor=nonsense",
        "cursor=W10=",
        "cursor=" + "A" * 600,
        "workflow_type=a&workflowType=b",
    ],
)
def test_bad_filters(query, ops):
    problem(ops.get(f"{LIST}?{query}"), 400, "invalid")


def test_filters(ops):
    old = make_run("failed", now=clock.now() - timedelta(days=2), workflow_type="doc")
    new = make_run("queued", workflow_type="other", owner_agent_id="a9", initiator="Ann%_e")
    at = (clock.now() - timedelta(days=1)).isoformat()
    quoted = at.replace("+", "%2B")
    assert ids(ops.get(LIST)) == made(new, old)
    assert ids(ops.get(f"{LIST}?status=failed")) == made(old)
    assert ids(ops.get(f"{LIST}?status=failed&status=queued")) == made(new, old)
    assert ids(ops.get(f"{LIST}?status=running")) == []
    assert ids(ops.get(f"{LIST}?workflow_type=doc")) == made(old)
    assert ids(ops.get(f"{LIST}?workflowType=doc")) == made(old)
    assert ids(ops.get(f"{LIST}?ownerAgentId=a9&owner_agent_id=a9")) == made(new)
    assert ids(ops.get(f"{LIST}?created_after={quoted}")) == made(new)
    assert ids(ops.get(f"{LIST}?created_before={at}")) == made(old)
    assert ids(ops.get(f"{LIST}?search=ann%25_")) == made(new)
    assert ids(ops.get(f"{LIST}?search={old.pk}")) == made(old)
    assert ids(ops.get(f"{LIST}?search=zzz")) == []


@pytest.mark.parametrize(
    "query", ["", "status=dispatched", "workflow_type=doc", "search=doc", "status=dispatched&status=queued"]
)
def test_pages_cover_a_list_once_in_both_directions(query, ops):
    now = clock.now()
    for n in range(7):
        make_run("dispatched", now=now - timedelta(seconds=n // 2))  # pairs with the same times
    whole = ids(ops.get(f"{LIST}?limit=100&{query}"))
    assert len(whole) == 7
    newest_first = query != "status=dispatched"
    dispatched = [run["dispatched_at"] for run in ops.get(f"{LIST}?{query}").json()["runs"]]
    assert dispatched == sorted(dispatched, reverse=newest_first)
    seen, pages, url = [], [], f"/api/{LIST}?limit=3&{query}"
    while url:
        page = ops.client.get(url, headers=ops.headers).json()
        pages.append([run["id"] for run in page["runs"]])
        seen, url, last = seen + pages[-1], page["next"], page
    assert seen == whole
    assert [len(page) for page in pages] == [3, 3, 1]
    back = ops.client.get(last["previous"], headers=ops.headers).json()
    assert [run["id"] for run in back["runs"]] == pages[1]
    first = ops.client.get(back["previous"], headers=ops.headers).json()
    assert ([run["id"] for run in first["runs"]], first["previous"]) == (pages[0], None)
    assert ops.client.get(first["next"], headers=ops.headers).json()["runs"][0]["id"] == pages[1][0]


def test_agents_are_paged_too(ops):
    for n in range(5):
        AgentFactory(agent_id=f"z{n}")
    seen, url = [], "/api/agents?limit=2"
    while url:
        page = ops.client.get(url, headers=ops.headers).json()
        seen += [agent["agent_id"] for agent in page["agents"]]
        url = page["next"]
    assert seen == sorted(seen)
    assert set(seen) >= {"a1", "ops", "z0", "z4"}


def test_lists_trim_large_payloads_and_the_detail_has_them(ops, a1):
    large = {"text": "x" * 5000}
    run = make_run("dispatched", input_payload=large, output_summary=large)
    small = make_run("dispatched", input_payload={"n": 1})
    for answer in (ops.get(LIST), a1.get(PENDING)):
        found = {found["id"]: found for found in answer.json()["runs"]}
        listed = found[str(run.pk)]
        assert (listed["input_payload"], listed["input_payload_truncated"]) == ({}, True)
        assert (listed["output_summary"], listed["outputSummaryTruncated"]) == ({}, True)
        assert found[str(small.pk)]["input_payload"] == {"n": 1}
        assert "input_payload_truncated" not in found[str(small.pk)]
    assert ops.get(f"{LIST}/{run.pk}").json()["input_payload"] == large


def test_lists_carry_hold_reasons_in_a_fixed_number_of_statements(ops, django_assert_max_num_queries):
    make_run("queued", workflow_type="nobody")
    make_run("queued")
    make_run("dispatched")
    make_run("paused")
    make_run("queued", not_before=clock.now() + timedelta(hours=1))
    with django_assert_max_num_queries(9):
        runs = ops.get(LIST).json()["runs"]
    assert sorted(str(run["hold_reason"]) for run in runs) == ["None", "no_route", "not_before", "paused", "type_full"]
    for n in range(20):
        make_run("queued", workflow_type=f"type{n}", owner_agent_id=f"agent{n}")
    with django_assert_max_num_queries(9):
        ops.get(LIST)


class TestPending:
    def test_order(self, ops):
        now = clock.now()
        RoutingRuleFactory(workflow_type="strong", agent_id="a1", priority=5)
        first = make_run("dispatched", workflow_type="strong", now=now)
        urgent = make_run("dispatched", now=now, priority=3)
        earlier = make_run("dispatched", now=now - timedelta(minutes=1))
        later = make_run("dispatched", now=now)
        unruled = make_run("dispatched", workflow_type="unruled", now=now + timedelta(minutes=1))
        weak = RoutingRuleFactory(workflow_type="weak", agent_id="a1", priority=-1)
        last = make_run("dispatched", workflow_type=weak.pk, now=now - timedelta(days=1))
        assert ids(ops.get(PENDING)) == made(first, urgent, earlier, later, unruled, last)
        assert ids(ops.get(f"{PENDING}?limit=2")) == made(first, urgent)

    def test_whose(self, routes):
        one, two = make_run("dispatched", agent="a1"), make_run("dispatched", agent="a2")
        agent, ops, main = Api("a1"), Api("ops"), Api("main")
        assert ids(agent.get(PENDING)) == made(one)
        assert ids(agent.get(f"{PENDING}?agent_id=a1")) == made(one)
        problem(agent.get(f"{PENDING}?agent_id=a2"), 403, "forbidden")
        for api in (ops, main):
            assert set(ids(api.get(PENDING))) == set(made(one, two))
            assert ids(api.get(f"{PENDING}?agentId=a2")) == made(two)
            assert ids(api.get(f"{PENDING}?agent_id=nobody")) == []

    @pytest.mark.parametrize("bad", ["agent_id=%00", "agent_id=", "agent_id=" + "x" * 101, "agent_id=a&agent_id=b"])
    def test_bad_agent(self, bad, ops):
        problem(ops.get(f"{PENDING}?{bad}"), 400, "invalid")

    def test_only_dispatched_runs(self, ops):
        for state in states.STATES:
            make_run(state)
        assert [run["status"] for run in ops.get(f"{PENDING}?limit=100").json()["runs"]] == ["dispatched"]
