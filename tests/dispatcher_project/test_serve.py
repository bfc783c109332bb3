"""`manage.py serve` as a process: one run's life, bodies that are too large or too slow, a quick end."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from django.db import connection, transaction

from dispatcher_project.supervisor import is_loopback
from governance.actors import DISPATCHER
from governance.models import AgentToken
from tests.factories import AgentFactory, RoutingRuleFactory
from tests.workflows.processes import backends, running, start, wait_until
from workflows import lifecycle
from workflows.models import ProcessInstance
from workflows.models.moves import lock

pytestmark = pytest.mark.django_db(transaction=True)
MIB = 1024 * 1024


class Server:
    def __init__(self, process) -> None:
        self.process = process
        line = process.stdout.readline()
        assert line.startswith("Listening on http://127.0.0.1:"), line + process.stderr.read()
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def raw(self, request: bytes) -> bytes:
        with self.connect() as sock:
            sock.sendall(request)
            return sock.recv(65536)


@pytest.fixture
def server(transactional_db) -> Iterator[Server]:
    with running("serve", "--port", "0", WEB_THREADS="4") as process:
        yield Server(process)


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    AgentFactory(agent_id="a1", role="operator")
    RoutingRuleFactory(workflow_type="doc", agent_id="a1")
    headers = {"Authorization": f"Bearer {AgentToken.issue('a1')[1]}"}
    with httpx.Client(base_url=f"{server.url}/api", headers=headers, timeout=20) as found:
        yield found


def chunks(size):
    for _ in range(0, size, 64 * 1024):
        yield b" " * 64 * 1024
    yield b"{}"


def test_a_run_through_its_life(client):
    made = client.post("/workflow-runs", json={"workflow_type": "doc", "input_payload": {"n": 1}})
    assert made.status_code == 201, made.text
    assert "server" not in made.headers
    run = f"/workflow-runs/{made.json()['id']}"
    lifecycle.dispatch([made.json()["id"]], agent_id="a1", department_id=None, actor=DISPATCHER)
    assert [found["id"] for found in client.get("/workflow-runs/pending").json()["runs"]] == [made.json()["id"]]
    for verb, status in (("claim", "claimed"), ("heartbeat", "running"), ("complete", "completed")):
        answer = client.post(f"{run}/{verb}", json={"session_id": "s1"})
        assert (answer.status_code, answer.json()["status"]) == (200, status)
    assert len(client.get(run).json()["events"]) == 5
    assert client.head("/workflow-runs").status_code == 200


def test_chunked_bodies_are_read_whole(client):
    body = iter([b'{"workflow_', b'type": ', b'"doc"}'])
    answer = client.post("/workflow-runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large(chunked, client):
    body = chunks(6 * MIB) if chunked else b" " * 6 * MIB
    answer = client.post("/workflow-runs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert answer.headers["content-type"] == "application/problem+json"
    exactly = client.post("/workflow-runs", content=b"{}".ljust(5 * MIB), headers={"Content-Type": "application/json"})
    assert exactly.status_code == 400


def test_a_length_that_lies(server, client):
    head = b"POST /api/workflow-runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert b" 413 " in server.raw(head + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")
    assert b" 400 " in server.raw(head + b"Content-Length: -5\r\n\r\n{}")
    with server.connect() as sock:  # promises more than it sends
        sock.sendall(head + b"Content-Length: 100\r\n\r\n{}")
    assert client.get("/workflow-runs").status_code == 200


def test_slow_uploads_hold_no_thread(server, client):
    slow = [server.connect() for _ in range(20)]  # five times the threads
    for sock in slow:
        sock.sendall(b"POST /api/workflow-runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert client.get("/workflow-runs", timeout=5).status_code == 200
    for sock in slow:
        sock.close()


@pytest.mark.parametrize(
    "target",
    [b"/api/workflow-runs?x=\xff", b"/api/workflow-runs?x=%ff", b"/api/\xff", b"/api/workflow-runs/%00", b"/api/%ff"],
)
def test_odd_bytes_in_the_target(target, server, client):
    token = client.headers["Authorization"].encode()
    answer = server.raw(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + token + b"\r\n\r\n")
    assert answer.split()[1] in (b"400", b"404"), answer


def test_fifty_at_once_and_every_connection_given_back(server, client):
    def get(n):
        return client.get("/workflow-runs/dispatcher/stats" if n % 2 else "/workflow-runs").status_code

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(get, range(200))) == {200}
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity
            WHERE application_name = 'workflow-dispatcher serve' AND datname = current_database()"""
        )
        open_, busy = cursor.fetchone()
    assert open_ <= 4 + 1  # the pool, and the ringer's
    assert busy == 0


def test_connections_that_the_database_ended_reach_nobody(server, client):
    assert client.get("/workflow-runs").status_code == 200
    with connection.cursor() as cursor:
        for pid, _ in backends():
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    assert {client.get("/workflow-runs").status_code for _ in range(10)} == {200}


def test_its_row_says_that_it_lives_and_that_it_stopped(server):
    wait_until(lambda: ProcessInstance.objects.filter(kind="web", pid=server.process.pid).exists())
    server.process.terminate()
    assert server.process.wait(10) == 0
    assert ProcessInstance.objects.get(pid=server.process.pid).stopped_at is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_soon_with_connections_open(number, server, client):
    assert client.get("/workflow-runs").status_code == 200  # kept alive
    half = server.connect()
    half.sendall(b"POST /api/workflow-runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    time.sleep(0.2)
    began = time.monotonic()
    server.process.send_signal(number)
    assert server.process.wait(10) == 0
    assert time.monotonic() - began < 5
    assert half.recv(100).startswith(b"HTTP/1.1 503 ")
    half.close()
    assert "Traceback" not in server.process.stderr.read()


def test_a_thread_that_waits_for_a_lock_keeps_nobody(server, client):
    run = client.post("/workflow-runs", json={"workflow_type": "doc"}).json()["id"]
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            lock(run)
            waiting = pool.submit(client.post, f"/workflow-runs/{run}/cancel", json={})
            wait_until(somebody_waits)
            began = time.monotonic()
            server.process.terminate()
            assert server.process.wait(10) == 0
            assert time.monotonic() - began < 6
        assert waiting.exception() is not None or waiting.result().status_code == 500


def somebody_waits():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0]


def test_several_workers_share_the_port(transactional_db):
    with running("serve", "--port", "0", "--workers", "2", WEB_THREADS="2") as process:
        server = Server(process)
        wait_until(lambda: ProcessInstance.objects.filter(kind="web", stopped_at=None).count() == 2)
        assert {httpx.get(f"{server.url}/health/live").status_code for _ in range(5)} == {200}
        process.terminate()
        assert process.wait(10) == 0
        assert not ProcessInstance.objects.filter(stopped_at=None).exists()


def test_a_busy_port_is_said_in_one_line(server):
    process = start("serve", "--port", str(server.port))
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"Can't listen on port {server.port} of 127.0.0.1: Address already in use" in errors
    assert len(errors.splitlines()) == 1


class TestAnonymousLoopback:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
    def test_is_refused_beyond_this_machine(self, host):
        assert not is_loopback(host)
        process = start("serve", "--port", "0", "--host", host, API_ANONYMOUS_LOOPBACK="1")
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "API_ANONYMOUS_LOOPBACK" in errors

    def test_needs_no_token_and_no_proxy_between(self, transactional_db):
        with running("serve", "--port", "0", API_ANONYMOUS_LOOPBACK="1") as process:
            url = f"{Server(process).url}/api/workflow-runs"
            assert httpx.get(url).status_code == 200
            for name in ("X-Forwarded-For", "Forwarded", "Via"):
                assert httpx.get(url, headers={name: "127.0.0.1"}).status_code == 401


def test_without_a_database_it_lives_and_says_so():
    nowhere = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}
    with running("serve", "--port", "0", **nowhere) as process:
        url = Server(process).url
        assert httpx.get(f"{url}/health/live").status_code == 200
        ready = httpx.get(f"{url}/health/ready", timeout=20)
        assert (ready.status_code, ready.json()["checks"]["database"]["ok"]) == (503, False)
        answer = httpx.get(f"{url}/api/workflow-runs", headers={"Authorization": "Bearer x"}, timeout=20)
        assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        assert answer.headers["retry-after"].isdigit()
        began = time.monotonic()
        process.terminate()
        assert process.wait(15) == 0
        assert time.monotonic() - began < 6
