"""The worker loops, with threads and with asyncio, by the same tests."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.dispatcher import Dispatcher
from tests.client.processes import until
from tests.client.server import Answer, ScriptedServer, problem
from workflows.client import (
    AsyncDispatcherClient,
    AsyncWorker,
    DispatcherClient,
    GiveBack,
    Outcome,
    Retry,
    Worker,
    errors,
)
from workflows.client.lease import Lease
from workflows.client.replies import Reply

Handler = Callable[[Any], Any]


class Bench:
    """One worker of either kind, in this process."""

    def __init__(self, kind: str, server: ScriptedServer, dispatcher: Dispatcher) -> None:
        self.kind, self.server, self.dispatcher = kind, server, dispatcher
        self.outcomes: list[Outcome] = []
        self.worker: Any = None

    def run(self, handler: Handler, **how: bool) -> list[str]:
        """`handler` is a plain function; where it naps (`job.pause(seconds)`) it can be ended. The outcomes' kinds."""
        options = {"on_outcome": lambda job, outcome: self.outcomes.append(outcome), "wait_seconds": 0.2}
        if self.kind == "sync":
            with DispatcherClient(self.server.url, timeout_seconds=2) as client:
                self.worker = Worker(client, "s1", ["doc"], handler, **options)
                self.worker.run(**how)
        else:
            asyncio.run(self._run_async(handler, options, how))
        return [outcome.kind for outcome in self.outcomes]

    async def _run_async(self, handler: Handler, options: Any, how: Any) -> None:
        async def handle(job: Any) -> Any:
            return await asyncio.to_thread(handler, job) if handler is not work_long else await long(job)

        async with AsyncDispatcherClient(self.server.url, timeout_seconds=2) as client:
            self.worker = AsyncWorker(client, "s1", ["doc"], handle, **options)
            await self.worker.run(**how)


def work_long(job: Any) -> None:
    for _ in range(200):
        time.sleep(0.05)
        job.check()


async def long(job: Any) -> None:
    for _ in range(200):
        await asyncio.sleep(0.05)
        await job.check()


@pytest.fixture(params=["sync", "async"])
def bench(request: pytest.FixtureRequest, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("workflows.client.retries.FIRST_DELAY_SECONDS", 0.02)
    monkeypatch.setattr("workflows.client.steps.FIRST_PAUSE_SECONDS", 0.05)
    dispatcher = server.otherwise = Dispatcher({"n": 1})
    return Bench(request.param, server, dispatcher)


def raising(error: BaseException) -> Handler:
    def handler(job: Any) -> None:
        raise error

    return handler


RESULTS = [
    (lambda job: {"n": job.payload["n"] + 1}, "completed", {"output_summary": {"n": 2}}),
    (lambda job: "text", "completed", {"output_summary": {"result": "text"}}),
    (lambda job: None, "completed", {"output_summary": {}}),
    (lambda job: {"a": object()}, "failed", {"retryable": False}),
    (raising(ValueError("no such file")), "failed", {"error": "ValueError: no such file", "retryable": False}),
    (raising(Retry("busy", after_seconds=9)), "retried", {"error": "busy", "retry_after_seconds": 9}),
    (raising(GiveBack("not mine")), "released", {"reason": "not mine"}),
]


@pytest.mark.parametrize(("handler", "kind", "sent"), RESULTS)
def test_handler_says_how_the_run_ends(bench: Bench, handler: Handler, kind: str, sent: dict[str, Any]) -> None:
    assert bench.run(handler, once=True) == [kind]
    body = [sent for verb, sent in bench.dispatcher.calls if verb != "heartbeat"][-1]
    assert {"session_id": "s1", "lease_no": 1, **sent}.items() <= body.items()
    assert bench.dispatcher.history[0] == "claim r1"
    assert len(bench.dispatcher.history) == 2


def test_progress_and_usage_are_reported(bench: Bench) -> None:
    def handler(job: Any) -> None:
        job.progress(40, "half way")
        job.usage({"model_id": "m", "input_tokens": 1})
        job.usage([{"model_id": "m", "input_tokens": 2}, {"input_tokens": 5}])
        with pytest.raises(ValueError, match="JSON"):
            job.progress(float("nan"))
        until(lambda: any("usage" in beat for beat in bench.dispatcher.bodies("heartbeat")))

    assert bench.run(handler, once=True) == ["completed"]
    totals = [{"model_id": "m", "input_tokens": 2}, {"input_tokens": 5}]
    beats = bench.dispatcher.bodies("heartbeat")
    assert {"percent": 40, "message": "half way"} in [beat.get("progress") for beat in beats]
    assert bench.dispatcher.bodies("complete")[0]["usage"] == totals


def test_lost_lease_ends_the_work_and_books_what_it_used(bench: Bench) -> None:
    def lose() -> None:
        until(lambda: bench.dispatcher.bodies("heartbeat"))
        bench.dispatcher.lose()

    thread = threading.Thread(target=lose)
    thread.start()
    assert bench.run(work_long, once=True) == ["lost"]
    thread.join()
    assert bench.dispatcher.history == ["claim r1"]


def test_usage_of_a_lost_run_is_booked(bench: Bench) -> None:
    def handler(job: Any) -> None:
        until(lambda: bench.dispatcher.bodies("heartbeat"))
        bench.dispatcher.lose()
        job.usage({"input_tokens": 7})
        until(lambda: job.stopped)

    assert bench.run(handler, once=True) == ["lost"]
    assert bench.dispatcher.bodies("usage")[0]["usage"] == [{"input_tokens": 7}]


def test_pause_holds_the_work(bench: Bench) -> None:
    seen: list[bool] = []

    def handler(job: Any) -> None:
        bench.dispatcher.directive = "pause"
        until(lambda: job.paused)
        seen.append(job.paused)
        bench.dispatcher.directive = "continue"
        until(lambda: not job.paused)

    assert bench.run(handler, once=True) == ["completed"]
    assert seen == [True]


@pytest.mark.parametrize("verb", ["claim-next", "start", "heartbeat", "complete"])
def test_b055_lost_replies_are_repeated_as_they_were(bench: Bench, verb: str) -> None:
    bench.dispatcher.drop[verb] = 6 if verb == "complete" else 2  # a call is tried 4 times
    assert bench.run(lambda job: time.sleep(0.3), once=True) == ["completed"]
    assert bench.dispatcher.history == ["claim r1", "complete r1"]
    sent = [seen.body for seen in bench.server.received if seen.path.endswith("/complete")]
    assert len(set(sent)) == 1


def test_b055_ending_that_nobody_answers_never_becomes_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.client.steps.ENDING_PATIENCE_SECONDS", 0.5)
    bench.dispatcher.drop["complete"] = 99
    assert bench.run(lambda job: None, once=True) == ["unknown"]
    assert not bench.dispatcher.bodies("fail")
    assert not bench.dispatcher.bodies("release")


def test_server_out_of_reach_for_the_lease_stops_the_work(bench: Bench) -> None:
    bench.dispatcher.lease_seconds = 0.8

    def go_away() -> None:
        until(lambda: bench.dispatcher.bodies("heartbeat"))
        bench.dispatcher.away = True

    thread = threading.Thread(target=go_away)
    thread.start()
    began = time.monotonic()
    assert bench.run(work_long, once=True) == ["lost"]
    thread.join()
    assert time.monotonic() - began < 5


def test_signal_lets_the_handler_finish(bench: Bench) -> None:
    bench.dispatcher.runs += Dispatcher({}, {}).runs[1:]

    def handler(job: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: job.shutting_down)

    assert bench.run(handler) == ["completed"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_second_signal_gives_the_run_back(bench: Bench) -> None:
    def signals() -> None:
        until(lambda: bench.dispatcher.bodies("heartbeat"))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)

    thread = threading.Thread(target=signals)
    thread.start()
    assert bench.run(work_long) == ["released"]
    thread.join()
    assert bench.dispatcher.history == ["claim r1", "release r1"]


def test_signal_ends_the_wait(bench: Bench) -> None:
    bench.dispatcher.runs.clear()

    def send() -> None:
        until(lambda: bench.dispatcher.bodies("claim-next"))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    assert bench.run(lambda job: None) == []
    thread.join()


def test_refusal_is_raised_and_an_absent_server_too_when_draining(bench: Bench) -> None:
    bench.dispatcher.refuse["claim-next"] = problem(403, "forbidden", "No")
    with pytest.raises(errors.ApiProblem):
        bench.run(lambda job: None)
    bench.dispatcher.away = True
    with pytest.raises(errors.TemporaryError):
        bench.run(lambda job: None, drain=True)


def test_news_that_the_server_refuses_cost_no_run(bench: Bench) -> None:
    def handler(job: Any) -> None:
        bench.dispatcher.refuse["heartbeat"] = problem(400, "invalid", "No such usage")
        job.usage({"input_tokens": -1})
        until(lambda: not job.lease.usage())
        del bench.dispatcher.refuse["heartbeat"]

    assert bench.run(handler, once=True) == ["completed"]
    assert "usage" not in bench.dispatcher.bodies("complete")[0]


def test_refused_progress_takes_no_usage_with_it() -> None:
    lease = Lease("r1", session_id="s1", lease_no=1, now=0.0)
    lease.note_progress(4, "x" * 9999)
    lease.note_usage({"input_tokens": 3})
    lease.refused(lease.heartbeat(), now=1.0)
    beat = lease.heartbeat()
    assert (beat.progress, lease.usage(), lease.has_unsent_usage) == (None, [{"input_tokens": 3}], True)
    lease.refused(beat, now=2.0)
    assert (lease.usage(), lease.has_unsent_usage) == ([], False)


def test_trimmed_input_is_fetched(bench: Bench) -> None:
    bench.dispatcher.runs[0].update(input_payload={}, input_payload_truncated=True)
    bench.dispatcher.refuse["r1"] = Answer(200, {"input_payload": {"n": 4}})
    assert bench.run(lambda job: job.payload, once=True) == ["completed"]
    assert bench.dispatcher.bodies("complete")[0]["output_summary"] == {"n": 4}


def held(lease: Lease, sent_at: float, **answer: Any) -> None:
    lease.held(lease.heartbeat(), Reply(200, "", answer, "application/json", "OK"), sent_at=sent_at)


def test_lease_is_measured_by_our_clock_from_the_answers_own_times() -> None:
    lease = Lease("r1", session_id="s1", lease_no=1, now=100.0)
    assert lease.due == 100.0
    held(
        lease,
        200.0,
        lease_expires_at="1999-01-01T00:10:00Z",
        last_heartbeat_at="1999-01-01T00:00:00Z",
        heartbeat_interval_seconds=60,
    )
    assert (lease.due, lease.expires) == (260.0, 800.0)
    lease.note_progress(4, None)
    assert lease.due == 202.0
    lease.failed(now=261.0)
    assert 261.0 < lease.due < 262.0
    lease.failed(now=261.0, retry_after=9999)
    assert lease.due == 800.0
    held(lease, 300.0, heartbeat_interval_seconds=20)
    assert (lease.due, lease.expires) == (320.0, 360.0)
