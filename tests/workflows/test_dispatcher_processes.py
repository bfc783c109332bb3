"""The real commands as processes: by ring, by signal, through lost connections, several at once, killed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from dispatcher_project import clock, pubsub
from tests.factories import OPERATOR, make_run
from tests.plugin import find_program, needs
from tests.workflows.processes import backends, listeners, running, start, wait_until
from workflows import lifecycle, states
from workflows.models import ProcessInstance, WorkflowRun

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_ringer_left():
    yield
    pubsub.close()


@pytest.fixture
def many(route):
    type(route).objects.update(max_concurrent=1000)


def dispatched():
    return WorkflowRun.objects.filter(status="dispatched").count()


POLL_SECONDS = 30  # the default: what only the poll would find takes that long


def create():
    return lifecycle.create("doc", actor=OPERATOR).run["id"]


def end(process):
    """It takes a fraction of a second; what never ends by itself is told from that on the slowest machine."""
    process.send_signal(signal.SIGTERM)
    process.wait(10)


def test_a_ring_is_heard_at_once_and_a_signal_ends_it(many):
    with running("run_dispatcher") as process:
        wait_until(listeners)
        wait_until(lambda: ProcessInstance.objects.filter(last_tick_at__isnull=False))
        for n in range(1, 6):
            create()
            assert wait_until(lambda n=n: dispatched() == n) < POLL_SECONDS / 3
        assert not [query for _, query in backends() if "idle in transaction" in query]
        wait_until(lambda: ProcessInstance.objects.get().last_tick_summary["dispatched_count"])
        end(process)
        assert process.returncode == 0
        output = process.communicate()[1]
    row = ProcessInstance.objects.get()
    assert row.stopped_at is not None
    assert row.poll_interval_ms == 30_000
    assert 1 <= output.count("] tick [") <= 5
    assert "Traceback" not in output


def test_the_alarm_goes_off_when_a_parked_run_is_due(many):
    with running("run_dispatcher"):
        wait_until(listeners)
        lifecycle.create("doc", actor=OPERATOR, not_before=clock.now() + timedelta(seconds=1.5))
        took = wait_until(dispatched)
        assert 1 < took < POLL_SECONDS / 3


def test_a_freed_slot_is_filled_at_once(route):
    with running("run_dispatcher"):
        wait_until(listeners)
        first, second = create(), create()
        wait_until(dispatched)
        lifecycle.cancel(first, actor=OPERATOR)
        assert wait_until(lambda: WorkflowRun.objects.get(pk=second).status == "dispatched") < POLL_SECONDS / 3


def test_a_backlog_larger_than_the_batch_goes_without_waiting_for_the_poll(many):
    for _ in range(35):
        make_run()
    with running("run_dispatcher", "--batch-size", "10"):
        assert wait_until(lambda: dispatched() == 35) < POLL_SECONDS * 2 / 3


def test_b039_it_goes_on_after_every_connection_was_ended_three_times(many):
    with running("run_dispatcher") as process:
        wait_until(listeners)
        for n in range(1, 4):
            before = set(listeners())
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", [[pid for pid, _ in backends()]])
            wait_until(lambda before=before: set(listeners()) - before)
            create()
            assert wait_until(lambda n=n: dispatched() == n) < POLL_SECONDS / 3
        end(process)
        output = process.communicate()[1]
    assert output.count("not listening") == 3
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_even_while_a_lock_holds_it_up(route, number):
    make_run()
    with running("run_dispatcher", "--interval", "1") as process:
        wait_until(lambda: dispatched() and listeners())
        with connection.cursor() as cursor:
            cursor.execute("BEGIN; LOCK TABLE workflow_runs")
            try:
                time.sleep(1.5)
                process.send_signal(number)
                process.wait(10)
            finally:
                cursor.execute("ROLLBACK")
        assert process.returncode == 0
        assert "in the middle" in process.communicate()[1]


def test_it_waits_for_a_database_that_is_not_there_and_says_so_once(tmp_path):
    url = f"postgres://nobody@/none?host={tmp_path}"
    process = start("run_monitor", "--interval", "0.2", DATABASE_URL=url)
    assert process.stderr is not None
    assert "database lost" in process.stderr.readline()
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=5)[1]
    assert not output
    assert process.returncode == 0


def test_systemd_is_told(many, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        path = str(tmp_path / "notify")
        inbox.bind(path)
        inbox.settimeout(10)
        with running("run_dispatcher", NOTIFY_SOCKET=path, WATCHDOG_USEC="1000000") as process:
            assert b"READY=1" in inbox.recv(1000)
            began = time.monotonic()
            beats = [inbox.recv(1000) for _ in range(3)]
            assert beats == [b"WATCHDOG=1"] * 3
            assert time.monotonic() - began < POLL_SECONDS / 3
            process.send_signal(signal.SIGTERM)
            while b"STOPPING=1" not in inbox.recv(1000):
                pass


def test_the_monitor_rings_for_what_it_freed(route):
    with running("run_dispatcher"):
        wait_until(listeners)
        run = make_run(states.RUNNING)
        waiting = create()
        WorkflowRun.objects.filter(pk=run.pk).update(deadline_at=clock.now() - timedelta(seconds=1))
        with running("run_monitor", "--once"):
            wait_until(lambda: WorkflowRun.objects.get(pk=waiting).status == "dispatched", 10)
        assert WorkflowRun.objects.get(pk=run.pk).status == "timed_out"


def test_b012_four_at_once_hand_out_one_even_when_one_is_killed(route):
    for _ in range(10):
        make_run()
    for round_ in range(2):
        processes = [start("run_dispatcher", "--once") for _ in range(4)]
        if round_:
            threading.Timer(0.5 + 0.15 * round_, processes[0].kill).start()
        outputs = [process.communicate(timeout=60) for process in processes]
        assert dispatched() == 1
        assert not [error for _, error in outputs if "deadlock" in error or "Traceback" in error]
        assert [process.returncode for process in processes[1:]] == [0, 0, 0]
        WorkflowRun.objects.update(status="queued", target_agent_id=None, dispatch_attempts=0)


def test_b006_two_monitors_at_once_end_a_run_once(route):
    run = make_run(states.RUNNING)
    WorkflowRun.objects.update(deadline_at=clock.now() - timedelta(seconds=60))
    for process in [start("run_monitor", "--once") for _ in range(2)]:
        assert process.wait(30) == 0
        process.communicate()
    assert list(run.events.values_list("verb", flat=True)) == ["create", "time_out"]


@pytest.mark.parametrize("arguments", [["--interval", "-1"], ["--batch-size", "x"]])
def test_a_bad_option_ends_it_with_a_clear_line(arguments):
    process = start("run_dispatcher", *arguments)
    output = process.communicate(timeout=20)[1]
    assert process.returncode == 2
    assert f"argument {arguments[0]}: must be" in output


@pytest.fixture
def pooler():
    """The address of a pgbouncer in transaction mode before the test database; it refuses to be root."""
    known = connection.get_connection_params()
    place = Path(tempfile.mkdtemp(prefix="pooler-"))
    config = place / "pgbouncer.ini"
    server = f"host={known['host']} port={known.get('port', 5432)} dbname={known['dbname']} user={known['user']}"
    config.write_text(
        f"""[databases]
test = {server}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {place}
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
"""
    )
    command = [find_program("pgbouncer"), "-q", str(config)]
    if os.geteuid() == 0:
        owner = pwd.getpwuid(Path(known["host"]).stat().st_uid if known["host"].startswith("/") else 65534)
        os.chown(place, owner.pw_uid, owner.pw_gid)
        command[1:1] = ["-u", owner.pw_name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((place / ".s.PGSQL.6432").exists)
        yield f"postgres://{known['user']}@/test?host={place}&port=6432"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(place)


@needs("pgbouncer")
def test_b041_behind_a_transaction_pooler_the_poll_is_all(many, pooler):
    with running("run_dispatcher", "--interval", "0.5", DATABASE_URL=pooler) as process:
        wait_until(lambda: ProcessInstance.objects.filter(last_tick_at__isnull=False))
        for n in range(1, 9):
            create()
            wait_until(lambda n=n: dispatched() == n, 3)
        end(process)
        output = process.communicate()[1]
    assert output.count("LISTEN does not work") == 1
    assert "Traceback" not in output
