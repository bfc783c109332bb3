"""`dispatcher-agent run`: real processes against a server that loses, refuses and goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Result
from tests.client.dispatcher import Dispatcher
from tests.client.processes import alive, result, until
from tests.client.server import ScriptedServer, problem

Process = Callable[..., "subprocess.Popen[str]"]
Agent = Callable[..., Result]
RUN = ("run", "--types", "doc", "--session", "s1")


@pytest.fixture
def dispatcher(server: ScriptedServer) -> Dispatcher:
    server.otherwise = Dispatcher({"n": 1})
    return server.otherwise


@pytest.fixture
def start(process: Process) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `run` with Python as its command: (code, options…)."""
    started = []

    def start(code: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        child = process(*RUN, *options, "--", sys.executable, "-c", code, **environment)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def pids(file: Path, count: int) -> list[int]:
    until(lambda: file.exists() and len(file.read_text().split()) == count)
    return [int(pid) for pid in file.read_text().split()]


TELLS_ALL = """
import json, os, sys
given = json.load(sys.stdin)
print("given", given, flush=True)
print("::progress 40 half way")
print('::usage {"model_id": "m", "input_tokens": 3}')
print("::usage [1]")
print('{"not": "the last"}')
names = [f"DISPATCHER_{name}" for name in ("RUN_ID", "WORKFLOW_TYPE", "LEASE_NO", "SESSION_ID", "API")]
print(json.dumps({name: os.environ[name] for name in names} | {"token": os.environ.get("DISPATCHER_AGENT_TOKEN")}))
print("no object")
"""


def test_a_run_is_done_by_the_command(
    dispatcher: Dispatcher, start: Any, server: ScriptedServer, tmp_path: Any
) -> None:
    (tmp_path / "token").write_text("wd_secret")
    code, out, err = result(start(TELLS_ALL, "--once", "--token-file", str(tmp_path / "token")))
    assert (code, dispatcher.history) == (0, ["claim r1", "complete r1"])
    assert out.splitlines()[0] == "given {'n': 1}"
    assert "::" not in out
    assert "No usage was understood" in err
    assert "r1 doc completed after" in err
    (done,) = dispatcher.bodies("complete")
    assert done["output_summary"] == {
        "DISPATCHER_RUN_ID": "r1",
        "DISPATCHER_WORKFLOW_TYPE": "doc",
        "DISPATCHER_LEASE_NO": "1",
        "DISPATCHER_SESSION_ID": "s1",
        "DISPATCHER_API": server.url,
        "token": None,
    }
    assert done["usage"] == [{"model_id": "m", "input_tokens": 3}]
    assert all(body["lease_no"] == 1 for verb, body in dispatcher.calls if verb in ("start", "heartbeat", "complete"))
    assert {received.headers["authorization"] for received in server.received} == {"Bearer wd_secret"}


def test_progress_goes_out_with_a_heartbeat(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.interval = 60
    child = start("import time; print('::progress 40 half way', flush=True); time.sleep(30)")
    until(
        lambda: (
            {"percent": 40, "message": "half way"} in [beat.get("progress") for beat in dispatcher.bodies("heartbeat")]
        )
    )
    child.send_signal(signal.SIGTERM)
    assert result(child)[0] == 0
    assert dispatcher.history == ["claim r1", "release r1"]


CODES = [
    ("raise SystemExit(0)", 0, "complete", {}),
    (
        "import sys; print('x' * 9999 + 'the end', file=sys.stderr); raise SystemExit(3)",
        1,
        "fail",
        {"retryable": False},
    ),
    ("raise SystemExit(75)", 75, "fail", {"retryable": True, "error": "Exit code 75"}),
    ("import os; os.kill(os.getpid(), 9)", 1, "fail", {"error": "Killed by SIGKILL"}),
]


@pytest.mark.parametrize(("code", "expected", "verb", "sent"), CODES)
def test_exit_code_ends_the_run(
    dispatcher: Dispatcher, start: Any, code: str, expected: int, verb: str, sent: dict[str, Any]
) -> None:
    done = result(start(code, "--once", "--json"))
    assert done[0] == expected
    (line,) = done[1].splitlines()
    assert json.loads(line)["run_id"] == "r1"
    (body,) = dispatcher.bodies(verb)
    assert sent.items() <= body.items()
    if expected == 1 and "the end" in code:
        assert body["error"].endswith("the end")
        assert len(body["error"]) < 5000


def test_command_that_is_not_there_is_said_before_anything_is_claimed(
    agent: Agent, server: ScriptedServer, tmp_path: Path
) -> None:
    for command in (("no-such-command",), (str(tmp_path),), ()):
        missing = agent(*RUN, "--", *command)
        assert (missing.code, server.received) == (1, [])
        assert missing.err.startswith("dispatcher-agent: ")


def test_output_file_is_the_output(dispatcher: Dispatcher, start: Any, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text('{"of": "another run"}')
    dispatcher.runs += Dispatcher({}, {}).runs[1:]
    code = f"import os; os.environ['DISPATCHER_RUN_ID'] == 'r1' or open({str(file)!r}, 'w').write('text')"
    assert result(start(code, "--drain", "--output-file", str(file)))[0] == 0
    assert [body["output_summary"] for body in dispatcher.bodies("complete")] == [{}, {"result": "text"}]


def test_100_mb_of_output_leave_memory_alone(dispatcher: Dispatcher, server: ScriptedServer) -> None:
    code = """import sys
for n in range(50):
    sys.stdout.buffer.write(b"x" * 1_000_000); sys.stderr.buffer.write(b"y" * 1_000_000)
sys.stdout.buffer.write(b'\\n{"v": 1}')"""
    runner = (
        "import re, sys; from workflows.client.cli import main; code = main(sys.argv[1:]);"
        "peak = re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read());"
        "print(code, int(peak[1]) // 1024, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", runner, *RUN, "--api", server.url, "--once", "--", sys.executable, "-c", code],
        capture_output=True,
        timeout=40,
    )
    exit_code, megabytes = done.stderr.splitlines()[-1].split()
    assert (exit_code, dispatcher.bodies("complete")[-1]["output_summary"]) == (b"0", {"v": 1})
    assert len(done.stdout) > 50_000_000
    assert int(megabytes) < 70


def test_output_that_is_no_utf_8_passes_as_it_is(dispatcher: Dispatcher, server: ScriptedServer) -> None:
    code = (
        r"import os; os.write(1, b'\xff\xfe\n::progress 3 \xff\n{\"a\": \"\xff\"}\n');"
        r"os.write(2, b'\xfd\n'); raise SystemExit(4)"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "workflows.client.cli",
            *RUN,
            "--api",
            server.url,
            "--once",
            "--",
            sys.executable,
            "-c",
            code,
        ],
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert done.stdout == b'\xff\xfe\n{"a": "\xff"}\n'
    assert b"\xfd" in done.stderr
    assert dispatcher.bodies("fail")[0]["error"] == "Exit code 4: \ufffd"


FAMILY = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    subprocess.Popen([sys.executable, "-c", open(sys.argv[1] + ".py").read(), sys.argv[1], "grandchild"])
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} ")
time.sleep(60)
"""


@pytest.fixture
def family(process: Process, tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[int]]]]:
    """A runner whose command has a child that ignores SIGTERM: (runner, both ids)."""
    started: list[int] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], list[int]]:
        file = tmp_path / "pids"
        file.with_suffix(".py").write_text(FAMILY)
        child = process(*RUN, *options, "--", sys.executable, f"{file}.py", str(file))
        started.append(child.pid)
        found = pids(file, 2)
        started.extend(found)
        return child, found

    yield start
    for pid in started:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_b043_lost_lease_ends_the_whole_process_group(dispatcher: Dispatcher, family: Any) -> None:
    child, (pid, grandchild) = family("--once", "--grace", "1")
    dispatcher.lose()
    code, _, err = result(child)
    assert code == 2
    assert "r1 doc was lost" in err
    assert not alive(pid)
    assert not alive(grandchild)
    assert dispatcher.history == ["claim r1"]


def test_directive_stop_ends_the_command(dispatcher: Dispatcher, start: Any) -> None:
    child = start("import time; time.sleep(60)", "--once")
    until(lambda: dispatcher.bodies("heartbeat"))
    dispatcher.directive = "stop"
    assert result(child)[0] == 2


def test_pause_suspends_and_continue_resumes_while_heartbeats_go_on(
    dispatcher: Dispatcher, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "ticks"
    child = start(
        f"import time, os\nwhile not os.path.exists({str(tmp_path / 'end')!r}):\n"
        f"    open({str(file)!r}, 'a').write('.'); time.sleep(0.02)",
        "--once",
    )
    until(file.exists)
    dispatcher.directive = "pause"
    beats = len(dispatcher.bodies("heartbeat"))
    until(lambda: len(dispatcher.bodies("heartbeat")) > beats + 2)
    ticks = file.stat().st_size
    time.sleep(0.5)
    assert file.stat().st_size == ticks
    assert len(dispatcher.bodies("heartbeat")) > beats + 4
    dispatcher.directive = "continue"
    until(lambda: file.stat().st_size > ticks)
    (tmp_path / "end").touch()
    assert result(child)[0] == 0


GRACEFUL = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *a: exit(0)); print('up', flush=True); time.sleep(60)"
)
UNWILLING = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *a: exit(3)); print('up', flush=True); time.sleep(60)"
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize(("code", "ending"), [(GRACEFUL, "complete"), (UNWILLING, "release"), (DEAF, "release")])
def test_sigterm_finishes_or_gives_back(dispatcher: Dispatcher, start: Any, code: str, ending: str) -> None:
    dispatcher.runs += Dispatcher({}, {}).runs[1:]
    child = start(code, "--grace", "0.5")
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGTERM)
    assert result(child)[0] == 0
    assert dispatcher.history == ["claim r1", f"{ending} r1"]


def test_second_sigterm_is_quicker(dispatcher: Dispatcher, start: Any) -> None:
    child = start(DEAF)
    assert child.stdout.readline() == "up\n"
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    result(child)
    assert time.monotonic() - began < 5
    assert dispatcher.history == ["claim r1", "release r1"]


def test_sigterm_while_it_waits_ends_at_once_and_leaves_no_run_behind(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.runs[0].update(status="queued")
    child = start("")
    until(lambda: dispatcher.bodies("claim-next"))
    dispatcher.runs[0].update(status="claimed", claim_session_id="s1", lease_no=1)  # the reply was on its way
    child.send_signal(signal.SIGTERM)
    assert result(child, 5)[0] == 0
    assert not dispatcher.history or dispatcher.history[-1] == "release r1"


def test_kill_9_of_the_runner_ends_the_command_and_what_it_started(dispatcher: Dispatcher, family: Any) -> None:
    child, (pid, grandchild) = family()
    child.kill()
    child.communicate()
    until(lambda: not alive(pid) and not alive(grandchild))


@pytest.mark.parametrize("verb", ["claim-next", "start", "heartbeat", "complete"])
def test_b055_lost_replies_cost_nothing(dispatcher: Dispatcher, start: Any, verb: str) -> None:
    dispatcher.drop[verb] = 1
    assert result(start("import time; time.sleep(0.5)", "--once"))[0] == 0
    assert dispatcher.drop[verb] == 0
    assert dispatcher.history == ["claim r1", "complete r1"]
    assert not dispatcher.bodies("fail")


def test_server_that_is_away_for_a_while_is_waited_for(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.lease_seconds = 30
    child = start("import time; time.sleep(1)", "--once")
    until(lambda: dispatcher.bodies("heartbeat"))
    dispatcher.away = True
    time.sleep(1.2)
    dispatcher.away = False
    assert result(child)[0] == 0
    assert dispatcher.history == ["claim r1", "complete r1"]


def test_server_that_is_away_for_longer_than_the_lease_stops_the_work(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.lease_seconds = 1
    child = start("import time; time.sleep(60)", "--once")
    until(lambda: dispatcher.bodies("heartbeat"))
    dispatcher.away = True
    code, _, err = result(child)
    assert code == 2
    assert "could not be reached for as long as the lease lasts" in " ".join(err.split())


def test_server_without_claim_next_is_polled(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.knows_claim_next = False
    dispatcher.drop["claim"] = 1
    dispatcher.runs[:0] = [{**dispatcher.runs[0], "id": "r0", "workflow_type": "other"}]
    assert result(start("", "--drain"))[0] == 0
    assert dispatcher.history[-1] == "complete r1"
    assert len(dispatcher.bodies("claim-next")) == 1


def test_drain_ends_when_nothing_is_pending(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.runs += Dispatcher({}, {}, {}).runs[1:]
    code = "import os; exit(os.environ['DISPATCHER_RUN_ID'] == 'r2')"
    exit_code, out, _ = result(start(code, "--drain", "--json"))
    lines = [json.loads(line) for line in out.splitlines()]
    assert exit_code == 1
    assert [(line["run_id"], line["outcome"]) for line in lines] == [
        ("r1", "completed"),
        ("r2", "failed"),
        ("r3", "completed"),
    ]
    assert list(lines[0]) == [
        "run_id", "workflow_type", "lease_no", "outcome", "status", "exit_code", "seconds", "detail",
    ]  # fmt: skip


def test_output_that_the_server_refuses_fails_the_run(dispatcher: Dispatcher, start: Any) -> None:
    dispatcher.refuse["complete"] = problem(413, "too_large", "The body is too large")
    assert result(start("print('{}')", "--once"))[0] == 1
    assert "too large" in dispatcher.bodies("fail")[0]["error"]


def test_what_the_command_left_running_is_ended(dispatcher: Dispatcher, start: Any, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"import subprocess; open({str(file)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    began = time.monotonic()
    assert result(start(code, "--once"))[0] == 0
    assert time.monotonic() - began < 10
    assert not alive(int(file.read_text()))
