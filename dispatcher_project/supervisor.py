"""`up`: the database, then web, dispatcher and monitor as one group, until Ctrl-C. Standard library only.

One thread multiplexes the children's output, their ends and the signals.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import ipaddress
import os
import selectors
import shlex
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dispatcher_project import embedded_postgres
from dispatcher_project.child import Child, ending
from dispatcher_project.embedded_postgres import EmbeddedPostgresError

ROOT = Path(__file__).resolve().parent.parent
GRACE_SECONDS = 5.0
READY_SECONDS = 60.0
DATABASE_CHECK_SECONDS = 5.0
COLOURS = {"web": 36, "dispatcher": 32, "monitor": 35, "demo": 33}
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - and where we reach ourselves then
DEFAULT_PORT = 3876
YES = frozenset({"1", "true", "yes", "on"})  # how a variable says it, here and in the settings
TOKENS = "tokens.env"  # export lines, written by `manage.py prepare`, 0600


class StartError(Exception):
    """`up` can't go on. The message is for the person at the terminal."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """host, port, data (absolute), demo, anonymous_loopback. Exits with a message when they make no sense."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dispatcher_project up", description="Run everything here until Ctrl-C."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", default=DEFAULT_PORT, type=int, help="port to listen on (default %(default)s)")
    parser.add_argument("--data", metavar="DIR", help="data directory (default DISPATCHER_DATA_DIR, else .data)")
    parser.add_argument("--demo", action="store_true", help="also simulated agents, so that something moves")
    parser.add_argument(
        "--anonymous-loopback", action="store_true", help="callers on this machine need no token (loopback only)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.port <= 65535:
        parser.error("--port must lie between 1 and 65535")
    options.anonymous_loopback |= os.environ.get("API_ANONYMOUS_LOOPBACK", "").strip().lower() in YES
    if options.anonymous_loopback and not is_loopback(options.host):
        parser.error(f"anonymous loopback (flag or variable) needs a loopback --host, and {options.host} is none")
    options.data = Path(options.data or os.environ.get("DISPATCHER_DATA_DIR") or ROOT / ".data").absolute()
    return options


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main(arguments: list[str]) -> NoReturn:
    supervisor = Supervisor(parse(arguments))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, supervisor.on_signal)
    try:
        supervisor.run()
    except (StartError, EmbeddedPostgresError) as error:
        sys.exit(f"{error}")
    sys.exit(0)


# --- the group -------------------------------------------------------------------------------------------------------


class Supervisor:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stops = 0  # signals received
        self.selector = selectors.DefaultSelector()
        self.wake_out, self.wake_in = os.pipe()
        os.set_blocking(self.wake_in, False)
        self.selector.register(self.wake_out, selectors.EVENT_READ, None)
        self.holder: embedded_postgres.Holder | None = None
        self.embedded = not os.environ.get("DATABASE_URL")
        self.children: list[Child] = []
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        host = WILDCARDS.get(options.host, options.host)
        self.host = f"[{host}]" if ":" in host else host
        self.url = f"http://{self.host}:{options.port}"

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_in, b"!")

    def run(self) -> None:
        lock = take_lock(self.options.data, self.url)
        try:
            check_port(self.options.host, self.options.port)
            if self.embedded:
                self.hold_database()
            self.run_group()
        finally:
            if self.holder:
                self.holder.release()
                self.say("Stopped. All data is kept.")
            os.close(lock)

    def run_group(self) -> None:
        if not self.stops:
            self.prepare()
        if self.stops:
            return
        names = ["web", "dispatcher", "monitor", *(["demo"] if self.options.demo else [])]
        commands = {
            "web": ["serve", "--host", self.options.host, "--port", str(self.options.port)],
            "dispatcher": ["run_dispatcher"],
            "monitor": ["run_monitor"],
            "demo": ["demo_agents"],
        }
        self.children = [Child(name, commands[name], self.environment(), ROOT) for name in names]
        try:
            for child in self.children:
                self.start(child)
            self.watch()
        finally:
            self.stop()

    def environment(self) -> dict[str, str]:
        environment = {**os.environ, "DISPATCHER_DATA_DIR": str(self.options.data), "PYTHONUNBUFFERED": "1"}
        environment.setdefault("DASHBOARD_API_BASE", self.url)
        if self.options.host not in WILDCARDS:
            environment.setdefault("ALLOWED_HOSTS", f"127.0.0.1,localhost,[::1],{self.host}")
        if self.options.anonymous_loopback:
            environment["API_ANONYMOUS_LOOPBACK"] = "1"
        return environment

    # -- phases

    def hold_database(self) -> None:
        """Take our share of the database; another one if we had one (its server died, say)."""
        embedded_postgres.forget_libpq_environment()
        previous, self.holder = self.holder, embedded_postgres.ensure_running(self.options.data)
        if previous:
            previous.release()

    def prepare(self) -> None:
        """Migrations, fixtures, operator, tokens. Shown as it is: it prints the export lines."""
        child = Child("", ["prepare"], self.environment(), ROOT)
        self.start(child)
        try:
            while child.process and not self.stops:
                self.turn(0.5)
                self.collect(child)
        finally:
            self.stop([child])
        if child.due < 0 and not self.stops:
            raise StartError("The preparation of the database failed; see above.")

    def watch(self) -> None:
        """Until a signal: forward output, restart what died, look after the database, say when all is ready."""
        ready_until: float | None = time.monotonic() + READY_SECONDS
        database_check = time.monotonic() + DATABASE_CHECK_SECONDS
        while not self.stops:
            self.turn(0.5)
            now = time.monotonic()
            for child in self.children:
                self.collect(child)
                if not child.process and child.due <= now and not self.stops:
                    self.start(child)
            if ready_until:
                ready_until = self.check_ready(ready_until)
            if self.embedded and now > database_check:
                self.check_database()
                database_check = time.monotonic() + DATABASE_CHECK_SECONDS

    def check_ready(self, until: float) -> float | None:
        """None once that has been said, one way or the other."""
        answer = get(f"{self.url}/health/ready")
        if answer is None:
            self.say_ready()
            return None
        if time.monotonic() > until:
            self.say(f"Not ready after {READY_SECONDS:.0f} s ({answer}). Still trying; see the lines above.")
            return None
        return until

    def check_database(self) -> None:
        if embedded_postgres.is_running(self.options.data):
            return
        self.say("The database doesn't answer; starting it again.")
        try:
            self.hold_database()
        except EmbeddedPostgresError as error:
            self.say(str(error))

    def stop(self, children: list[Child] | None = None) -> None:
        """TERM, a grace period (cut short by a second Ctrl-C), KILL."""
        children = self.children if children is None else children
        running = [child for child in children if child.process]
        for child in running:
            child.signal(signal.SIGTERM)
        stops, deadline = self.stops, time.monotonic() + GRACE_SECONDS
        while any(child.process for child in running) and time.monotonic() < deadline and self.stops <= max(stops, 1):
            self.turn(0.1)
            for child in running:
                self.collect(child, restart=False)
        for child in running:
            if child.process:
                self.say(f"{child.name or 'prepare'} didn't stop in time; killed.")
                child.kill_group()
                child.process.wait()
                self.collect(child, restart=False)

    # -- output

    def start(self, child: Child) -> None:
        child.start()
        if child.process and child.process.stdout:
            os.set_blocking(child.process.stdout.fileno(), False)
            self.selector.register(child.process.stdout, selectors.EVENT_READ, child)

    def turn(self, seconds: float) -> None:
        """Wait for output, a signal or the time; forward output."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                os.read(self.wake_out, 100)
            else:
                self.forward(key.data)

    def forward(self, child: Child) -> bool:
        """One read's worth; False when there is no more for now."""
        output = child.process.stdout if child.process else None
        if output is None or output.closed:
            return False
        try:
            data = os.read(output.fileno(), 65536)
        except BlockingIOError:
            return False
        if not data:
            self.selector.unregister(output)
            output.close()
        *lines, child.partial = (child.partial + data).split(b"\n") if data else (child.partial, b"")
        for line in lines:
            if line or data:
                self.show(child.name, line.decode(errors="replace"))
        return bool(data)

    def collect(self, child: Child, *, restart: bool = True) -> None:
        """If it ended: the rest of its output, and when it is started again."""
        if child.process is None or (code := child.process.poll()) is None:
            return
        while self.forward(child):
            pass
        output = child.process.stdout
        if output and not output.closed:  # a grandchild holds the other end
            self.selector.unregister(output)
            output.close()
        child.kill_group()
        child.process = None
        if child.name == "":
            child.due = -1.0 if code else 0.0
        elif restart and not self.stops:
            wait = child.schedule(time.monotonic())
            self.say(f"{child.name} ended ({ending(code)}); starting it again in {wait:.0f} s.")

    def show(self, name: str, line: str) -> None:
        if not name:
            prefix = ""
        elif self.colour:
            prefix = f"\x1b[{COLOURS[name]}m{name:<10} |\x1b[0m "
        else:
            prefix = f"{name:<10} | "
        # The terminal or the pipe behind us may be gone; stopping cleanly goes on.
        with contextlib.suppress(OSError, ValueError):
            print(f"{prefix}{line}", flush=True)

    def say(self, text: str) -> None:
        for line in text.splitlines():
            self.show("", f"[up] {line}" if line else "")

    def say_ready(self) -> None:
        tokens = self.options.data / TOKENS
        agent = ROOT / ".venv" / "bin" / "dispatcher-agent"
        environment = [f". {shlex.quote(str(tokens))}"] if tokens.exists() else []
        if self.options.port != DEFAULT_PORT:
            environment.append(f"export DASHBOARD_API_BASE={self.url}")
        lines = [
            f"Ready. Open {self.url}/admin/",
            "Next, in another terminal:",
            *(f"  {line}" for line in environment),
            f'  {shlex.quote(str(agent))} submit code-change --input \'{{"title": "Hello"}}\'',
            f"  {shlex.quote(str(agent))} poll   # then claim, heartbeat, complete: {agent.name} --help",
            "Ctrl-C stops everything and keeps the data.",
        ]
        self.say("\n".join(lines))


# --- what is asked before ---------------------------------------------------------------------------------------------


def take_lock(data: Path, url: str) -> int:
    """The one `up` of a data directory; raises StartError naming where the other one is."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"The data directory {data} can't be used: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.read(lock, 200).decode(errors="replace").strip()
        os.close(lock)
        raise StartError(
            f"It is already running on this data directory: {data} ({other}). "
            "Stop that one with Ctrl-C first, or give this one another --data and --port."
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{url}, process {os.getpid()}\n".encode(), 0)
    return lock


def check_port(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise StartError(
            f"Port {port} on {host} can't be used: {error.strerror}. Stop what uses it, or choose another with --port."
        ) from error


def get(url: str) -> str | None:
    """None when it answers 200, else what is wrong. No proxy of the environment comes between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=1):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}: {error.read(300).decode(errors='replace')}"
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    main(sys.argv[1:])
