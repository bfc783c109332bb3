"""Long polls at a real server: who is woken, by what, and what it costs that they wait."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from django.db import connection

from governance.actors import DISPATCHER
from governance.models import AgentToken
from tests import invariants
from tests.factories import OPERATOR, AgentFactory, RoutingRuleFactory, agent_actor, make_run
from tests.workflows.processes import running, wait_until
from workflows import lifecycle
from workflows.models import RunLease, WorkflowRun

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 2.0  # seconds; lost rings are made up for after three at the earliest
WEB_THREADS = 8
ROLES = {"a1": "specialist", "a2": "specialist", "main": "orchestrator", "ops": "operator"}


class Server:
    def __init__(self, process: Any) -> None:
        self.process = process
        line = process.stdout.readline()
        assert line.startswith("Listening on http://127.0.0.1:"), line + process.stderr.read()
        self.url = line.split()[-1]
        self.address = ("127.0.0.1", int(self.url.rpartition(":")[2]))
        self.tokens = {agent_id: AgentToken.issue(agent_id)[1] for agent_id in ROLES}

    def call(self, path: str, body: Any = None, *, agent: str = "a1", **headers: str) -> httpx.Response:
        headers["Authorization"] = f"Bearer {self.tokens[agent]}"
        method = "GET" if body is None else "POST"
        url = f"{self.url}/api/workflow-runs{path}"
        return httpx.request(method, url, json=body, headers=headers, timeout=70)

    def raw(self, path: str, body: Any = None, *, agent: str = "a1") -> socket.socket:
        """A call on a connection of its own, its answer not read yet."""
        text = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{'GET' if body is None else 'POST'} /api/workflow-runs{path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {self.tokens[agent]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        sock = socket.create_connection(self.address, timeout=20)
        sock.sendall(head.encode() + text)
        return sock

    def threads(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("Threads:")).split()[1])

    def settle(self) -> None:
        """Until those who called wait. A call that comes after them has been answered, and so have they been asked."""
        wait_until(lambda: waits())
        time.sleep(0.3)


def waits() -> bool:
    """The server listens for those who wait."""
    return bool(server_backends("LISTEN workflow_dispatcher_runs"))


def server_backends(query: str = "") -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND application_name LIKE 'workflow-dispatcher serve%%' AND query LIKE %s""",
            [f"{query}%"],
        )
        return [pid for (pid,) in cursor.fetchall()]


@pytest.fixture(autouse=True)
def promises_hold(transactional_db):
    for agent_id, role in ROLES.items():
        AgentFactory(agent_id=agent_id, role=role)
    for n in (1, 2):
        RoutingRuleFactory(workflow_type=f"t{n}", agent_id=f"a{n}", max_concurrent=1000)
    yield
    invariants.check()


@pytest.fixture
def server(promises_hold) -> Iterator[Server]:
    with running("serve", "--port", "0", WEB_THREADS=str(WEB_THREADS)) as process:
        yield Server(process)


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def dispatched(agent: str = "a1", count: int = 1) -> list[WorkflowRun]:
    """Runs that go to `agent` now, by the dispatcher's own verb."""
    runs = [make_run(workflow_type=f"t{agent[1:]}") for _ in range(count)]
    lifecycle.dispatch([run.pk for run in runs], agent_id=agent, department_id=None, actor=DISPATCHER)
    return runs


def answered(call: Future[httpx.Response], seconds: float = SOON) -> tuple[int, Any]:
    answer = call.result(seconds)
    return answer.status_code, answer.json() if answer.content else None


class TestWakingUp:
    def test_pending_answers_as_soon_as_there_is_one(self, server, background):
        call = background.submit(server.call, "/pending?wait=30")
        server.settle()
        assert not call.done()
        (run,) = dispatched()
        status, body = answered(call)
        assert (status, [found["id"] for found in body["runs"]]) == (200, [str(run.pk)])

    def test_nobody_else_is_woken(self, server, background):
        other = background.submit(server.call, "/pending?wait=2", agent="a2")
        everybodys = background.submit(server.call, "/pending?wait=30", agent="main")
        named = background.submit(server.call, "/pending?agent_id=a1&wait=30", agent="ops")
        server.settle()
        (run,) = dispatched()
        for call in (everybodys, named):
            assert [found["id"] for found in answered(call)[1]["runs"]] == [str(run.pk)]
        assert answered(other, 10) == (200, {"runs": []})

    def test_claim_next_claims_what_comes(self, server, background):
        call = background.submit(server.call, "/claim-next", {"session_id": "s1", "wait": 30})
        server.settle()
        (run,) = dispatched()
        status, body = answered(call)
        assert (status, body["id"], body["status"], body["claim_session_id"]) == (200, str(run.pk), "claimed", "s1")

    def test_claim_next_of_other_types_sleeps_on(self, server, background):
        body = {"session_id": "s1", "workflowTypes": ["other"], "wait": 2, "limit": 3}
        call = background.submit(server.call, "/claim-next", body)
        server.settle()
        (run,) = dispatched()
        assert answered(call, 10) == (204, None)
        run.refresh_from_db()
        assert run.status == "dispatched"

    def test_of_many_sessions_one_gets_it(self, server, background):
        calls = [
            background.submit(server.call, "/claim-next", {"session_id": f"s{n}", "wait": 4, "limit": 5})
            for n in range(8)
        ]
        server.settle()
        (run,) = dispatched()
        found = Counter(answered(call, 15)[0] for call in calls)
        assert found == {200: 1, 204: 7}
        assert RunLease.objects.filter(run=run).count() == 1

    def test_each_of_three_runs_finds_one_session(self, server, background):
        calls = [background.submit(server.call, "/claim-next", {"session_id": f"s{n}", "wait": 30}) for n in range(3)]
        server.settle()
        runs = dispatched(count=3)
        assert {answered(call)[1]["id"] for call in calls} == {str(run.pk) for run in runs}

    def test_the_detail_answers_at_each_move_and_at_the_end(self, server, background):
        run = make_run("claimed", workflow_type="t1")
        path = f"/{run.pk}?wait=30"
        call = background.submit(server.call, path)
        server.settle()
        lifecycle.heartbeat(run.pk, session_id="s1", actor=agent_actor())
        assert answered(call)[1]["status"] == "running"
        call = background.submit(server.call, path)
        time.sleep(0.5)
        lifecycle.heartbeat(run.pk, session_id="s1", actor=agent_actor())  # no move, no news
        time.sleep(0.5)
        assert not call.done()
        lifecycle.complete(run.pk, session_id="s1", actor=agent_actor(), output_summary={"v": 1})
        assert answered(call)[1]["status"] == "completed"
        assert answered(background.submit(server.call, path))[1]["status"] == "completed"

    def test_a_detail_that_was_known_otherwise_is_answered_at_once(self, server, background):
        run = make_run("running", workflow_type="t1")
        known = {"If-None-Match": '"0-0-00000000"'}
        assert answered(background.submit(server.call, f"/{run.pk}?wait=30", **known))[0] == 200
        known = {"If-None-Match": f'"{run.last_seq}-0-00000000"'}
        call = background.submit(server.call, f"/{run.pk}?wait=30", **known)
        server.settle()
        assert not call.done()
        lifecycle.cancel(run.pk, actor=OPERATOR)
        assert answered(call)[1]["status"] == "cancelled"

    def test_a_detail_that_stays_as_it_was_known_is_304_at_the_end(self, server):
        path = f"/{make_run('running', workflow_type='t1').pk}?wait=0.5"
        known = server.call(path).headers["ETag"]
        began = time.monotonic()
        assert server.call(path, **{"If-None-Match": known}).status_code == 304
        assert time.monotonic() - began >= 0.5

    def test_from_the_create_call_to_the_session_that_waits(self, server, background):
        with running("run_dispatcher"):
            call = background.submit(server.call, "/claim-next", {"session_id": "s1", "wait": 30})
            server.settle()
            made = server.call("", {"workflow_type": "t1"}, agent="ops").json()
            status, body = answered(call, 20)  # the dispatcher may still be starting
            assert (status, body["id"]) == (200, made["id"])

    def test_a_lost_ring_is_made_up_for(self, server, background):
        pending = background.submit(server.call, "/pending?wait=30")
        detail_of = make_run("queued", workflow_type="t1")
        detail = background.submit(server.call, f"/{detail_of.pk}?wait=30", agent="ops")
        server.settle()
        with connection.cursor() as cursor:  # past every verb: nobody rings
            cursor.execute("UPDATE workflow_runs SET last_seq = last_seq + 1 WHERE id = %s", [detail_of.pk])
        silent = make_run("dispatched", workflow_type="t1")
        assert answered(pending, 8)[1]["runs"][0]["id"] == str(silent.pk)
        assert answered(detail, 8)[0] == 200
        WorkflowRun.objects.filter(pk=detail_of.pk).update(last_seq=1)


class TestWhatWaitingCosts:
    def test_two_hundred_waiters_hold_neither_threads_nor_connections(self, server, background):
        server.call("/pending")
        list(background.map(lambda _: server.call("/pending?wait=0"), range(40)))  # every thread is there
        threads = server.threads()
        with contextlib.ExitStack() as opened:
            for n in range(200):
                path = "/pending?wait=30" if n % 2 else "/claim-next"
                body = None if n % 2 else {"session_id": f"s{n}", "wait": 30}
                opened.enter_context(server.raw(path, body, agent="a2"))
            server.settle()
            assert server.threads() <= threads + 3
            assert len(server_backends()) <= WEB_THREADS + 2  # the pool at its largest, and the listener
            began = time.monotonic()
            for _ in range(50):
                assert server.call("/pending").status_code == 200
            assert time.monotonic() - began < 10
        wait_until(lambda: server.call("/pending").status_code == 200)


class TestTheEnd:
    def test_of_the_time(self, server):
        began = time.monotonic()
        assert server.call("/pending?wait=1").json() == {"runs": []}
        assert server.call("/claim-next", {"session_id": "s1", "wait": 0.5}).status_code == 204
        run = make_run("running", workflow_type="t1")
        assert server.call(f"/{run.pk}?wait=0.5").json()["status"] == "running"
        assert 2 <= time.monotonic() - began < 10

    @pytest.mark.parametrize("reset", [True, False])
    def test_of_a_client_claims_nothing_for_it(self, reset, server):
        gone = server.raw("/claim-next", {"session_id": "gone", "wait": 30})
        server.settle()
        if reset:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        gone.close()
        time.sleep(0.3)
        (run,) = dispatched()
        time.sleep(1)
        run.refresh_from_db()
        assert (run.status, run.lease_no) == ("dispatched", 0)
        assert server.call("/claim-next", {"session_id": "s2", "wait": 30}).json()["id"] == str(run.pk)

    def test_of_the_server_is_quick_and_answers_everybody(self, server):
        run = make_run("running", workflow_type="t1", input_payload={"text": "x" * 100_000})
        calls = [("/pending?wait=60", None), ("/claim-next", {"session_id": "s1", "wait": 60})]
        waiting = [server.raw(*call) for call in [*calls * 24, *[(f"/{run.pk}?wait=60", None)] * 2]]
        server.settle()
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        heads = Counter(sock.recv(65536).split(b"\r\n")[0] for sock in waiting)
        assert server.process.wait(10) == 0
        assert time.monotonic() - began < 3
        assert heads == {b"HTTP/1.1 200 OK": 26, b"HTTP/1.1 204 No Content": 24}
        for sock in waiting:
            sock.close()

    def test_of_several_workers_too(self, promises_hold):
        with running("serve", "--port", "0", "--workers", "2") as process:
            server = Server(process)
            wait_until(lambda: reaches(server))
            waiting = [server.raw("/pending?wait=60") for _ in range(10)]
            server.settle()
            process.send_signal(signal.SIGTERM)
            assert {sock.recv(65536).split(b"\r\n")[0] for sock in waiting} == {b"HTTP/1.1 200 OK"}
            assert process.wait(10) == 0
            for sock in waiting:
                sock.close()


class TestOutages:
    def test_connections_that_die_are_replaced(self, server, background):
        call = background.submit(server.call, "/claim-next", {"session_id": "s1", "wait": 30})
        server.settle()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) pid", [server_backends()])
        wait_until(waits)
        assert not call.done()
        (run,) = dispatched()
        assert answered(call)[1]["id"] == str(run.pk)

    def test_a_database_that_is_away_is_said_at_the_end_and_no_sooner(self, server, background):
        calls = [background.submit(server.call, "/pending?wait=3") for _ in range(12)]
        lasting = background.submit(server.call, "/claim-next", {"session_id": "s1", "wait": 40})
        server.settle()
        with away():
            answers = [call.result(20) for call in calls]
            assert {answer.status_code for answer in answers} == {503}
            assert {answer.json()["code"] for answer in answers} == {"database_unavailable"}
            assert {answer.headers["Retry-After"] for answer in answers} == {"2"}
            assert not lasting.done()
        (run,) = dispatched()
        assert answered(lasting, 15)[1]["id"] == str(run.pk)


class TestRefusals:
    @pytest.mark.parametrize("wait", ["61", "-1", "x", "1e1", "", "NaN", "60.1", "1&wait=2"])
    def test_of_a_wait_in_a_query(self, wait, server):
        run = make_run("running", workflow_type="t1")
        for path in (f"/pending?wait={wait}", f"/{run.pk}?wait={wait}"):
            answer = server.call(path)
            assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
            assert answer.json()["errors"][0]["field"] == "wait"

    @pytest.mark.parametrize("wait", [61, -1, "5", True, [1], 10**30])
    def test_of_a_wait_in_a_body(self, wait, server):
        answer = server.call("/claim-next", {"session_id": "s1", "wait": wait})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "wait")

    def test_come_before_any_waiting(self, server):
        began = time.monotonic()
        assert server.call("/pending?wait=30&bogus=1").status_code == 400
        assert server.call("/pending?wait=30&agent_id=a2").status_code == 403
        assert server.call("/claim-next", {"wait": 30}).status_code == 400
        assert server.call(f"/{make_run(workflow_type='t2').pk}?wait=30").status_code == 404
        assert httpx.get(f"{server.url}/api/workflow-runs/pending?wait=30").status_code == 401
        assert time.monotonic() - began < 10


def reaches(server: Server) -> bool:
    try:
        return server.call("/pending").status_code == 200
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def away() -> Iterator[None]:
    """The test database takes no new connections, and has dropped those of the server."""
    parameters = {**connection.get_connection_params(), "dbname": "postgres"}
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with psycopg.connect(**parameters, autocommit=True) as outside:
        outside.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            outside.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) pid", [server_backends()])
            yield
        finally:
            outside.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
