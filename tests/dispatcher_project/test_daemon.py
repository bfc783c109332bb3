from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest
from django.db import OperationalError, connection

from dispatcher_project.daemon import Loop, Next, Notifier, Stop, database_is_lost, run_forever


class Worker:
    """Notes its ticks; does what the test told it, in turn."""

    def __init__(self, *script, stop, ticks):
        self.script, self.stop_, self.left = list(script), stop, ticks
        self.seen, self.at, self.lost, self.stopped = [], [], 0, False

    def tick(self, keys, stopping):
        self.seen.append(keys)
        self.at.append(time.monotonic())
        self.left -= 1
        if self.left <= 0:
            self.stop_.set()
        deed = self.script.pop(0) if self.script else Next()
        if isinstance(deed, Exception):
            raise deed
        return deed

    def rest(self):
        return 60.0

    def database_lost(self):
        self.lost += 1

    def stop(self):
        self.stopped = True


class Bell:
    """Rings in turn what the test told it."""

    def __init__(self, *rings):
        self.rings = list(rings)
        self.slept = []

    def wait(self, timeout, wake_fd):
        self.slept.append(timeout)
        if self.rings:
            return self.rings.pop(0)
        time.sleep(min(timeout, 0.2))
        return set()

    def close(self):
        pass


@pytest.fixture
def stop():
    made = Stop()
    yield made
    made.close()


def drive(worker, bell=None, poll_seconds=60.0):
    Loop(worker, poll_seconds=poll_seconds, listener=bell, stop=worker.stop_).run()
    return worker


def test_it_ticks_at_each_poll(stop):
    worker = drive(Worker(stop=stop, ticks=3), poll_seconds=0.1)
    assert worker.seen == [None] * 3
    assert 0.18 < worker.at[2] - worker.at[0] < 2


def test_a_tick_that_was_cut_goes_again_at_once(stop):
    worker = drive(Worker(Next(full=True), Next(full=True), stop=stop, ticks=3))
    assert worker.seen == [None] * 3
    assert worker.at[2] - worker.at[0] < 1


def test_a_ring_brings_a_tick_for_its_keys_alone(stop):
    worker = drive(Worker(stop=stop, ticks=2), Bell(set(), {"type:a"}))
    assert worker.seen == [None, {"type:a"}]


def test_what_rang_before_the_first_tick_is_covered_by_it(stop):
    worker = drive(Worker(stop=stop, ticks=2), Bell({"*"}), poll_seconds=0.2)
    assert worker.seen == [None, None]


def test_contended_keys_are_tried_again_soon_and_not_left_to_the_poll(stop):
    worker = drive(Worker(Next(keys=frozenset({"type:a"}), after=0.1), stop=stop, ticks=2), Bell())
    assert worker.seen == [None, {"type:a"}]
    assert 0.09 < worker.at[1] - worker.at[0] < 1


def test_keys_cut_by_the_batch_go_again_at_once(stop):
    worker = drive(Worker(Next(keys=frozenset({"*"})), stop=stop, ticks=2))
    assert worker.seen == [None, {"*"}]


def test_the_alarm_rings_before_the_poll(stop):
    worker = drive(Worker(Next(due=0.15), stop=stop, ticks=2))
    assert worker.seen == [None, None]
    assert 0.14 < worker.at[1] - worker.at[0] < 1


def test_what_is_due_and_can_not_be_done_does_not_spin(stop):
    worker = drive(Worker(*[Next(due=-1.0)] * 5, stop=stop, ticks=4))
    assert worker.at[3] - worker.at[0] > 0.29


def test_rings_without_end_do_not_starve_the_poll(stop):
    worker = drive(Worker(stop=stop, ticks=200), Bell(*[{"type:a"}] * 5000), poll_seconds=0.001)
    assert worker.seen.count(None) >= 2


@pytest.mark.parametrize("error", [ValueError("a bug"), OperationalError("the connection is lost")])
def test_a_failing_tick_is_said_once_and_tried_again_with_a_growing_back_off(stop, error, caplog):
    worker = drive(Worker(error, error, error, stop=stop, ticks=4))
    assert worker.seen == [None] * 4
    gaps = [later - earlier for earlier, later in zip(worker.at, worker.at[1:], strict=False)]
    assert gaps[0] > 0.19
    assert gaps[2] > 0.79
    assert len([record for record in caplog.records if "trying again" in record.getMessage()]) == 1
    assert len([record for record in caplog.records if "working again" in record.getMessage()]) == 1
    assert worker.lost == (3 if isinstance(error, OperationalError) else 0)


@pytest.mark.django_db
def test_a_refused_statement_is_no_lost_database():
    connection.ensure_connection()
    assert not database_is_lost(OperationalError("deadlock detected"))
    assert not database_is_lost(ValueError())


def test_a_signal_wakes_it_and_its_handlers_are_put_back(stop):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    worker = Worker(stop=stop, ticks=99)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
    began = time.monotonic()
    run_forever(worker, poll_seconds=60, listen=False, stop=stop)
    assert time.monotonic() - began < 10
    assert worker.stopped
    assert (
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGALRM),
    ) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_signal_breaks_off_what_hangs(stop, caplog):
    worker = Worker(stop=stop, ticks=99)
    worker.tick = lambda keys, stopping: time.sleep(30)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    began = time.monotonic()
    run_forever(worker, poll_seconds=60, listen=False, stop=stop)
    assert time.monotonic() - began < 10
    assert not worker.stopped
    assert "in the middle" in caplog.text


@pytest.mark.parametrize("address", ["path", "@abstract"])
def test_systemd_hears_us_by_path_and_by_abstract_name(address, tmp_path, monkeypatch):
    name = str(tmp_path / "notify") if address == "path" else f"@test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind("\0" + name[1:] if name.startswith("@") else name)
        inbox.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        monkeypatch.setenv("WATCHDOG_USEC", "3000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        notifier = Notifier()
        assert notifier.interval == 1.5
        notifier.say("READY=1", "STATUS=running")
        assert inbox.recv(100) == b"READY=1\nSTATUS=running"
        notifier.alive()
        notifier.alive()
        assert inbox.recv(100) == b"WATCHDOG=1"
        inbox.settimeout(0.1)
        with pytest.raises(TimeoutError):
            inbox.recv(100)


def test_a_watchdog_for_another_process_is_none_of_ours(monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier()
    notifier.say("READY=1")
    assert notifier.interval == float("inf")
