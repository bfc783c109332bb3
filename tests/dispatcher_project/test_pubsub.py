from __future__ import annotations

import json
import os
import threading
import time

import psycopg
import pytest
from django.db import connection, transaction

from dispatcher_project import pubsub
from dispatcher_project.daemon import Stop
from dispatcher_project.pubsub import CHANNEL, EVERYTHING, Listener, Ringer, decode, encode, ring
from tests.workflows.processes import wait_until

database = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stop():
    made = Stop()
    yield made
    made.close()


@pytest.fixture
def listener(transactional_db, stop):
    made = Listener()
    assert made.wait(0, stop.fd) == set()
    yield made
    made.close()
    pubsub.close()


def backend(purpose):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
            [f"%{purpose}"],
        )
        return [pid for (pid,) in cursor.fetchall()]


def terminate(purpose):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) pid", [backend(purpose)])


def heard(listener, stop, seconds=5.0):
    """All that is rung until half a second of silence."""
    keys = listener.wait(seconds, stop.fd)
    while more := listener.wait(0.3, stop.fd):
        keys |= more
    return keys


def test_keys_go_out_compact_and_those_that_do_not_fit_mean_everything():
    assert encode({"type:b", "agent:ü"}) == '["agent:\\u00fc","type:b"]'
    assert decode(encode({"type:b", "agent:ü"})) == {"type:b", "agent:ü"}
    assert encode(f"type:{n}" for n in range(10_000)) == '["*"]'
    assert len(encode([f"type:{'ü' * 100}{n}" for n in range(9)])) < 8000


@pytest.mark.parametrize("payload", ["", "x", "{}", "[1]", "null"])
def test_a_payload_that_is_not_ours_means_everything(payload):
    assert decode(payload) == {EVERYTHING}


@database
def test_a_ring_goes_out_after_the_commit_and_never_without_one(listener, stop):
    with transaction.atomic():
        ring("type:a")
        assert listener.wait(0.2, stop.fd) == set()
    assert listener.wait(5, stop.fd) == {"type:a"}
    with transaction.atomic():
        ring("type:b")
        transaction.set_rollback(True)
    assert listener.wait(0.2, stop.fd) == set()


@database
def test_many_rings_become_few(listener, stop, monkeypatch):
    sent = []
    real = Ringer._send
    monkeypatch.setattr(Ringer, "_send", lambda self, keys: (sent.append(keys), real(self, keys))[1])
    for n in range(300):
        ring(f"type:{n}")
    assert heard(listener, stop) == {f"type:{n}" for n in range(300)}
    assert len(sent) < 50


@database
def test_the_first_ring_does_not_wait(listener, stop):
    ring("type:warm-up")
    heard(listener, stop)
    began = time.monotonic()
    ring("type:a")
    assert listener.wait(5, stop.fd) == {"type:a"}
    assert time.monotonic() - began < 0.2


@database
def test_a_ringer_whose_connection_died_rings_on_a_new_one(listener, stop):
    ring("type:a")
    heard(listener, stop)
    terminate(" ring")
    ring("type:b")
    assert heard(listener, stop) == {"type:b"}


@database
def test_an_outage_is_said_once_costs_nothing_and_ends_by_itself(listener, stop, monkeypatch, caplog):
    real = pubsub.connect
    monkeypatch.setattr(pubsub, "OUTAGE_SECONDS", 0.02)
    with monkeypatch.context() as patch:
        patch.setattr(pubsub, "connect", lambda purpose: (_ for _ in ()).throw(psycopg.OperationalError("away")))
        pubsub.close()
        for n in range(5):
            ring(f"type:{n}")
            time.sleep(0.05)
    assert len([record for record in caplog.records if "can't ring" in record.getMessage()]) == 1
    assert pubsub.connect is real
    ring("type:x")
    assert heard(listener, stop) == {"type:x"}


@database
def test_closing_sends_what_is_pending_and_leaves_no_connection(listener, stop):
    for n in range(20):
        ring(f"type:{n}")
    pubsub.close()
    wait_until(lambda: not backend(" ring"))
    assert heard(listener, stop) == {f"type:{n}" for n in range(20)}
    ring("type:again")
    assert heard(listener, stop) == {"type:again"}


@database
def test_an_idle_ringer_gives_its_connection_back(listener, stop, monkeypatch):
    monkeypatch.setattr(pubsub, "IDLE_SECONDS", 0.1)
    ring("type:a")
    heard(listener, stop)
    wait_until(lambda: not backend(" ring"))


@database
def test_a_forked_child_rings_by_itself(listener, stop):
    ring("type:parent")
    heard(listener, stop)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pubsub._ring_now(("type:child",))
            pubsub.close()
            os.write(writer, b"done")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"done"
    assert heard(listener, stop) == {"type:child"}
    ring("type:parent")
    assert heard(listener, stop) == {"type:parent"}
    os.close(reader)
    os.close(writer)


@database
def test_a_sleeper_is_woken(listener, stop):
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    assert listener.wait(10, stop.fd) == set()
    assert time.monotonic() - began < 2


@database
def test_a_dropped_listener_is_back_at_once_on_a_new_connection_and_knows_it_may_have_missed_something(
    listener, stop, caplog
):
    for _ in range(3):
        before = backend(" listen")
        terminate(" listen")
        assert listener.wait(5, stop.fd) == {EVERYTHING}
        assert backend(" listen") != before
        ring("type:a")
        assert heard(listener, stop) == {"type:a"}
    assert len([record for record in caplog.records if "not listening" in record.getMessage()]) == 3


@database
def test_a_listener_in_an_outage_sleeps_between_its_tries(listener, stop, monkeypatch, caplog):
    tries = []

    def away(purpose):
        tries.append(time.monotonic())
        raise psycopg.OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr(pubsub, "connect", away)
        terminate(" listen")
        assert listener.wait(2, stop.fd) == set()
        assert 2 <= len(tries) <= 6
    assert listener.wait(5, stop.fd) == {EVERYTHING}
    assert len([record for record in caplog.records if "not listening" in record.getMessage()]) == 1


@database
def test_a_connection_that_can_not_hear_leaves_the_poll(transactional_db, stop, monkeypatch, caplog):
    monkeypatch.setattr(pubsub, "_listen", lambda connection, channel: False)
    deaf = Listener()
    for _ in range(3):
        assert deaf.wait(0.01, stop.fd) == set()
    assert not deaf.listening
    assert len([record for record in caplog.records if "does not work" in record.getMessage()]) == 1


@database
def test_foreign_notifications_wake_and_mean_everything(listener, stop):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'hello')", [CHANNEL])
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, json.dumps(["type:a"])])
    assert heard(listener, stop) == {EVERYTHING, "type:a"}


def test_moves_of_runs_have_a_channel_of_their_own_and_many_of_them_still_name_each():
    runs = {f"run:{n}" for n in range(250)}
    sent = pubsub.envelopes({"type:a", "pending:a1", *runs})
    assert [channel for channel, _ in sent] == [CHANNEL, *[pubsub.RUNS_CHANNEL] * 3]
    assert decode(sent[0][1]) == {"type:a"}
    assert set().union(*(decode(payload) for _, payload in sent[1:])) == {"pending:a1", *runs}
    assert pubsub.envelopes({"run:1"}) == [(pubsub.RUNS_CHANNEL, '["run:1"]')]


@database
def test_dispatchers_do_not_hear_of_moves(listener, stop):
    ring("run:1", "pending:a1")
    assert listener.wait(0.3, stop.fd) == set()
