"""Who is calling comes from credentials alone (case B045), and what each may do."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from dispatcher_project import clock
from governance.models import AgentToken
from tests.factories import AgentFactory, make_run
from tests.workflows.api.conftest import Api
from tests.workflows.api.test_conventions import problem
from workflows.models import RunEvent

pytestmark = pytest.mark.django_db
LIST = "workflow-runs"


@pytest.mark.parametrize(
    "header",
    [
        "Bearer nonsense",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Token x",
        "",
        "Bearer a b",
        "Bearer \u00fc",
        "Bearer x,Bearer y",
    ],
)
def test_bad_credentials(header, a1):
    answer = a1.client.get(f"/api/{LIST}", headers={"Authorization": header})
    problem(answer, 401, "token_invalid")
    assert answer["WWW-Authenticate"] == "Bearer"


def test_expired_and_revoked_tokens(a1):
    token, plain = AgentToken.issue("a1", days=1)
    headers = {"Authorization": f"bearer {plain}"}
    assert a1.client.get(f"/api/{LIST}", headers=headers).status_code == 200
    AgentToken.objects.filter(pk=token.pk).update(expires_at=clock.now())
    problem(a1.client.get(f"/api/{LIST}", headers=headers), 401, "token_expired")
    AgentToken.revoke(token.pk)
    problem(a1.client.get(f"/api/{LIST}", headers=headers), 401, "token_invalid")


def staff(*, operates=False, **columns):
    user = User.objects.create_user("sam", password="x", **{"is_staff": True, **columns})
    if operates:
        user.user_permissions.add(Permission.objects.get(codename="operate"))
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


class TestStaff:
    def test_reads_all_and_writes_nothing(self, route):
        run = make_run("running")
        client = staff()
        assert client.get(f"/api/{LIST}/{run.pk}").status_code == 200
        assert [run["id"] for run in client.get(f"/api/{LIST}").json()["runs"]] == [str(run.pk)]
        assert client.get(f"/api/{LIST}/pending").status_code == 200
        client.handler.enforce_csrf_checks = False
        problem(client.post(f"/api/{LIST}/{run.pk}/cancel"), 403, "forbidden")
        problem(client.post(f"/api/{LIST}", {}, content_type="application/json"), 403)
        problem(client.put("/api/workflow-routing", {}, content_type="application/json"), 403)

    def test_operator_needs_the_csrf_token(self, route):
        run = make_run("running")
        client = staff(operates=True)
        problem(client.post(f"/api/{LIST}/{run.pk}/cancel"), 403)
        client.get("/admin/")
        client.cookies["csrftoken"] = "a" * 32
        answer = client.post(
            f"/api/{LIST}/{run.pk}/cancel", content_type="application/json", headers={"X-CSRFToken": "a" * 32}
        )
        assert answer.status_code == 200, answer.content
        assert RunEvent.objects.get(run=run, verb="cancel").actor == "staff:sam"

    @pytest.mark.parametrize("columns", [{"is_staff": False}, {"is_active": False}])
    def test_others_are_nobody(self, columns, route):
        problem(staff(**columns).get(f"/api/{LIST}"), 401, "not_authenticated")

    def test_a_staff_name_is_no_agent(self, route):
        run = make_run("claimed", agent="sam")
        client = staff()
        client.handler.enforce_csrf_checks = False
        problem(
            client.post(f"/api/{LIST}/{run.pk}/release", {"session_id": "s1"}, content_type="application/json"), 403
        )


class TestAnonymousLoopback:
    @pytest.fixture(autouse=True)
    def on(self, settings, route):
        settings.API_ANONYMOUS_LOOPBACK = True

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
    def test_from_this_machine(self, address, client):
        made = client.post(
            f"/api/{LIST}", {"workflow_type": "doc"}, content_type="application/json", REMOTE_ADDR=address
        )
        assert made.status_code == 201
        assert RunEvent.objects.get(run_id=made.json()["id"]).actor == "agent:dashboard-operator"

    @pytest.mark.parametrize("address", ["10.0.0.1", "::2", "::ffff:10.0.0.1", "", "localhost", "127.0.0.1, 10.0.0.1"])
    def test_from_elsewhere(self, address, client):
        problem(client.get(f"/api/{LIST}", REMOTE_ADDR=address), 401, "not_authenticated")

    @pytest.mark.parametrize(
        "name",
        [
            "Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Proto",
            "X-Real-IP",
            "Via",
            "X-Forwarded-Port",
        ],
    )
    def test_not_through_a_proxy(self, name, client):
        problem(client.get(f"/api/{LIST}", headers={name: "127.0.0.1"}), 401, "not_authenticated")

    @pytest.mark.parametrize(
        "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
    )
    def test_not_from_a_foreign_page(self, headers, client):
        run = make_run("running")
        problem(client.post(f"/api/{LIST}/{run.pk}/cancel", headers=headers), 401, "not_authenticated")

    def test_own_page_may(self, client):
        assert client.get(f"/api/{LIST}", headers={"Origin": "http://testserver"}).status_code == 200

    def test_a_bad_token_is_not_forgiven(self, client):
        problem(client.get(f"/api/{LIST}", headers={"Authorization": "Bearer x"}), 401, "token_invalid")

    def test_off(self, settings, client):
        settings.API_ANONYMOUS_LOOPBACK = False
        problem(client.get(f"/api/{LIST}"), 401, "not_authenticated")


class TestB045ActorIdentity:
    BODIES = [
        {"actor": "ops"},
        {"claimed_by": "operator"},
        {"role": "operator", "agent_id": "ops"},
        {"initiator": "ops"},
    ]
    HEADERS = [
        {"X-Actor": "admin"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"X-Agent-Id": "ops"},
        {"X-Forwarded-User": "ops"},
        {"Remote-User": "ops"},
    ]

    @pytest.mark.parametrize("body", [{}, *BODIES], ids=str)
    @pytest.mark.parametrize("headers", [{}, *HEADERS], ids=str)
    @pytest.mark.parametrize("agent_id", ["a1", "ops-x", "a-director", "dashboard-operator", "system"])
    def test_nobody_becomes_an_operator_by_saying_so(self, body, headers, agent_id, route):
        run = make_run("running", agent="a2")
        answer = Api(agent_id).post(f"workflow-runs/{run.pk}/cancel", body, **headers)
        problem(answer, 403, "forbidden")
        run.refresh_from_db()
        assert (run.status, run.last_seq) == ("running", 1)

    def test_the_timeline_names_the_tokens_agent(self, ops):
        run = make_run("running")
        ops.post(f"workflow-runs/{run.pk}/cancel", {"actor": "mallory", "reason": "enough"}, X_Actor="admin")
        event = RunEvent.objects.get(run=run, verb="cancel")
        assert (event.actor, event.reason) == ("agent:ops", "enough")


class TestVisibility:
    def test_foreign_runs(self, a1, a2, main, ops):
        run = make_run("running", agent="a1")
        for api in (a1, main, ops):
            assert api.get(f"{LIST}/{run.pk}").status_code == 200
            assert api.get(f"{LIST}/{run.pk}/explain").status_code == 200
            assert len(api.get(LIST).json()["runs"]) == 1
        problem(a2.get(f"{LIST}/{run.pk}"), 404, "run_not_found")
        problem(a2.get(f"{LIST}/{run.pk}/explain"), 404, "run_not_found")
        assert a2.get(LIST).json()["runs"] == []

    def test_the_list_shows_what_the_detail_shows(self, routes):
        """Every way to be related to a run, asked both ways."""
        AgentFactory(agent_id="a1")
        for state in ("queued", "dispatched", "running", "completed"):
            for n in (1, 2):
                make_run(state, agent=f"a{n}", workflow_type=f"t{n}")
                make_run(state, agent=f"a{n}", workflow_type="t2", owner_agent_id=f"a{n}")
            make_run(state, agent="a2", workflow_type="t2", key_space="agent:a1")
        api = Api("a1")
        everything = Api("ops").get(f"{LIST}?limit=100").json()["runs"]
        readable = {run["id"] for run in everything if api.get(f"{LIST}/{run['id']}").status_code == 200}
        assert {run["id"] for run in api.get(f"{LIST}?limit=100").json()["runs"]} == readable
        assert 0 < len(readable) < len(everything)

    def test_a_refusal_shows_strangers_no_more_than_the_state(self, a2):
        run = make_run("running", agent="a1", input_payload={"secret": 1})
        for verb in ("claim", "heartbeat", "complete"):
            body = problem(a2.run(run, verb, {"session_id": "s1"}), 409)
            assert set(body["run"]) == {"id", "status"}

    def test_a_refusal_shows_the_run_to_its_own(self, a1):
        run = make_run("running", input_payload={"n": 1})
        body = problem(a1.run(run, "heartbeat", {"session_id": "other"}), 409, "lease_lost")
        assert body["run"]["input_payload"] == {"n": 1}
        assert body["run"]["claimSessionId"] == "s1"
        assert body["directive"] == "stop"
        assert "key_space" not in body["run"]
