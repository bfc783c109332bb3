"""`up` with real processes and a real database, around a stand-in for manage.py whose parts do as they are told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project import child, embedded_postgres, supervisor
from dispatcher_project.embedded_postgres import place, server, wire

ROOT = Path(__file__).resolve().parents[2]
MANAGE = """
import http.server, json, os, signal, sys, time
from pathlib import Path
command, data = sys.argv[1], Path(os.environ["DISPATCHER_DATA_DIR"])
def orders(): return (data / f"{command}.orders").read_text() if (data / f"{command}.orders").exists() else ""
(data / f"{command}.pid").write_text(str(os.getpid()))
(data / f"{command}.environment").write_text(json.dumps(dict(os.environ)))
if command == "prepare":
    print("export DISPATCHER_AGENT_TOKEN=secret")
    (data / "tokens.env").write_text("export DISPATCHER_AGENT_TOKEN=secret\\n")
    sys.exit(3 if "fail" in orders() else 0)
def stop(*_):
    if "stubborn" in orders(): return print("no", flush=True)
    print(f"{command} says goodbye", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: print("got SIGINT", flush=True))
print(f"{command} is here", flush=True)
if command != "serve":
    while True:
        time.sleep(0.05)
        if "die" in orders(): sys.exit(9)
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "unready" in orders() else 200)
        self.end_headers()
http.server.HTTPServer((sys.argv[3], int(sys.argv[5])), Ready).serve_forever()
"""
LAUNCH = """
import sys
from pathlib import Path
from dispatcher_project import supervisor
from dispatcher_project.embedded_postgres import place
supervisor.ROOT, place.ROOT_HOME = Path(sys.argv[1]), Path(sys.argv[2])
supervisor.main(sys.argv[3:])
"""


class Up:
    """A running `up`, and what it said so far."""

    def __init__(self, base: Path, *more: str, port: int, **environment: str) -> None:
        self.data, self.port = base / "data", port
        command = [
            sys.executable,
            "-c",
            LAUNCH,
            str(base),
            str(base / "lib"),
            "--port",
            str(port),
            "--data",
            str(self.data),
        ]
        self.process = subprocess.Popen(
            [*command, *more],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True,
            env={**os.environ, "PYTHONDEVMODE": "", **environment},
        )  # fmt: skip
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str, *, times: int = 1, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while sum(text in line for line in list(self.lines)) < times:
            assert time.monotonic() < deadline, "\n".join(self.lines)
            time.sleep(0.02)

    def wait_until_ready(self) -> None:
        """Said so, and each stand-in listens to signals."""
        self.wait_for("Ready. Open")
        self.wait_for("is here", times=3)

    def order(self, command: str, orders: str) -> None:
        self.data.mkdir(exist_ok=True)
        (self.data / f"{command}.orders").write_text(orders)

    def pid(self, command: str) -> int:
        return int((self.data / f"{command}.pid").read_text())

    def end(self, number: int = signal.SIGINT, *, seconds: float = 15) -> int:
        """Signal as a terminal does, to the whole foreground group; returns the exit code."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        code = self.process.wait(seconds)
        self.reader.join(5)
        assert self.process.stdout
        self.process.stdout.close()
        return code


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="wd-"))
    base.chmod(0o755)
    (base / "manage.py").write_text(MANAGE)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setattr(place, "ROOT_HOME", base / "lib")
    yield base
    server._stop(wire.listener(place.locate(base / "data")))
    shutil.rmtree(base)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def up(base: Path, port: int) -> Iterator[Up]:
    up = Up(base, port=port)
    yield up
    up.end(signal.SIGKILL)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return True


def wait_until_gone(*pids: int, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_group_starts_says_what_to_open_and_stops_cleanly(up: Up) -> None:
    up.wait_until_ready()
    assert "export DISPATCHER_AGENT_TOKEN=secret" in up.lines  # bare, to be copied
    up.wait_for("web        | serve is here")
    up.wait_for("dispatcher | run_dispatcher is here")
    up.wait_for("monitor    | run_monitor is here")
    assert any(f"http://127.0.0.1:{up.port}/admin/" in line for line in up.lines)
    assert f"[up]   . {up.data}/tokens.env" in up.lines
    assert f"[up]   export DASHBOARD_API_BASE=http://127.0.0.1:{up.port}" in up.lines
    assert urllib.request.urlopen(f"http://127.0.0.1:{up.port}/").status == 200
    pids = [up.pid(command) for command in ("serve", "run_dispatcher", "run_monitor")]
    assert up.end(signal.SIGINT) == 0
    assert all(gone(pid) for pid in pids)
    assert not embedded_postgres.is_running(up.data)
    said = "\n".join(up.lines)
    assert said.count("says goodbye") == 3
    assert "got SIGINT" not in said  # the terminal's Ctrl-C isn't delivered twice
    assert "Traceback" not in said
    assert "\x1b" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_as_well(up: Up, number: int) -> None:
    up.wait_until_ready()
    assert up.end(number) == 0
    assert "\n".join(up.lines).count("says goodbye") == 3


def test_child_that_dies_is_restarted_and_said_so(up: Up) -> None:
    up.wait_until_ready()
    os.kill(up.pid("run_dispatcher"), signal.SIGKILL)
    up.wait_for("dispatcher ended (SIGKILL); starting it again in 1 s.")
    up.wait_for("run_dispatcher is here", times=2)
    up.order("run_monitor", "die")
    up.wait_for("monitor ended (exit code 9); starting it again in 1 s.")
    up.wait_for("monitor ended (exit code 9); starting it again in 2 s.")
    assert up.end() == 0


def test_database_that_dies_is_started_again(up: Up) -> None:
    up.wait_until_ready()
    here = place.locate(up.data)
    pid = wire.listener(here)
    assert pid
    os.kill(pid, signal.SIGKILL)
    up.wait_for("The database doesn't answer; starting it again.")
    deadline = time.monotonic() + 20
    while wire.ask(here) != "":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert up.end() == 0
    assert not embedded_postgres.is_running(up.data)


def test_stubborn_child_is_killed_and_a_second_ctrl_c_is_quicker(up: Up) -> None:
    up.order("run_monitor", "stubborn")
    up.wait_until_ready()
    pid = up.pid("run_monitor")
    began = time.monotonic()
    os.killpg(up.process.pid, signal.SIGINT)
    up.wait_for("monitor    | no")
    assert up.end() == 0
    assert time.monotonic() - began < supervisor.GRACE_SECONDS
    assert gone(pid)
    up.wait_for("monitor didn't stop in time; killed.")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells children of their parent's death")
def test_children_and_database_follow_a_killed_supervisor(up: Up) -> None:
    up.wait_until_ready()
    pids = [up.pid(command) for command in ("serve", "run_dispatcher", "run_monitor")]
    up.process.kill()
    wait_until_gone(*pids)
    assert embedded_postgres.is_running(up.data)  # a stand-in holds no share; the next start adopts it
    again = Up(up.data.parent, port=up.port)
    again.wait_until_ready()
    assert again.end() == 0
    assert not embedded_postgres.is_running(up.data)


def test_second_up_on_the_same_data_is_refused(up: Up, base: Path, port: int) -> None:
    up.wait_until_ready()
    second = Up(base, port=port + 1)
    assert second.process.wait(10) == 1
    second.end()
    assert "It is already running on this data directory" in second.lines[0]
    assert f"http://127.0.0.1:{port}" in second.lines[0]
    assert up.end() == 0


def test_used_port_is_named_before_anything_starts(base: Path, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        up = Up(base, port=port)
        assert up.process.wait(10) == 1
        up.end()
    assert len(up.lines) == 1
    assert f"Port {port} on 127.0.0.1 can't be used" in up.lines[0]
    assert "--port" in up.lines[0]
    assert not (up.data / "prepare.pid").exists()


def test_data_directory_that_cannot_be_used_is_named(base: Path, port: int) -> None:
    (base / "data").touch()
    up = Up(base, port=port)
    assert up.end(0, seconds=10) == 1
    assert up.lines == [f"The data directory {base / 'data'} can't be used: File exists."]


def test_failing_preparation_ends_it(base: Path, port: int) -> None:
    (base / "data").mkdir()
    (base / "data" / "prepare.orders").write_text("fail")
    up = Up(base, port=port)
    assert up.process.wait(20) == 1
    up.end()
    assert "The preparation of the database failed" in "\n".join(up.lines)
    assert not embedded_postgres.is_running(up.data)


def test_options_reach_the_children_and_database_url_keeps_the_embedded_one_away(base: Path, port: int) -> None:
    up = Up(base, "--demo", "--anonymous-loopback", port=port, DATABASE_URL="postgres://elsewhere/x")
    up.wait_until_ready()
    up.wait_for("demo       | demo_agents is here")
    seen = json.loads((up.data / "serve.environment").read_text())
    assert (seen["API_ANONYMOUS_LOOPBACK"], seen["DISPATCHER_DATA_DIR"]) == ("1", str(up.data))
    assert not embedded_postgres.is_running(up.data)
    assert up.end() == 0


def test_proxy_of_the_environment_does_not_come_between(base: Path, port: int) -> None:
    up = Up(base, port=port, http_proxy="http://127.0.0.1:1", DATABASE_URL="postgres://elsewhere/x")
    up.wait_until_ready()
    assert up.end() == 0


def test_back_off_doubles_up_to_its_limit_and_is_reset_by_a_long_life() -> None:
    web = child.Child("web", [], {}, ROOT)
    assert [web.schedule(0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert web.schedule(child.BACKOFF_RESET_SECONDS) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_hosts(host: str) -> None:
    assert supervisor.is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.org"])
def test_hosts_that_are_no_loopback_refuse_anonymous_callers(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        supervisor.parse(["--anonymous-loopback", "--host", host])
    assert "needs a loopback --host" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1", "true", " On "])
def test_the_variable_for_anonymous_callers_is_refused_there_like_the_flag(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("API_ANONYMOUS_LOOPBACK", value)
    assert supervisor.parse([]).anonymous_loopback
    with pytest.raises(SystemExit):
        supervisor.parse(["--host", "0.0.0.0"])
    assert "needs a loopback --host" in capsys.readouterr().err
