from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dispatcher_project.secret_key import load_or_create


def test_a_key_is_made_once_and_kept_to_its_owner(tmp_path):
    directory = tmp_path / "a" / "data"
    key = load_or_create(directory)
    assert len(key) >= 50
    assert load_or_create(directory) == key
    assert stat.S_IMODE((directory / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [path.name for path in directory.iterdir()] == ["secret_key"]


def test_each_installation_has_its_own(tmp_path):
    assert load_or_create(tmp_path / "a") != load_or_create(tmp_path / "b")


@pytest.mark.parametrize("attempt", range(20))
def test_first_starts_at_once_agree_and_leave_nothing_behind(tmp_path, attempt):
    """Threads here; containers that share a volume have one pid, too."""
    together = Barrier(8)

    def first_start(_: int) -> str:
        together.wait()
        return load_or_create(tmp_path / "data")

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(first_start, range(8)))
    assert len(keys) == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["secret_key"]


def test_a_draft_that_a_killed_start_left_is_never_taken_for_the_key(tmp_path):
    (tmp_path / "secret_key.1").write_text("half")
    assert load_or_create(tmp_path) != "half"


def test_a_key_made_by_hand_is_taken_without_its_line_end(tmp_path):
    (tmp_path / "secret_key").write_text("by hand\n")
    assert load_or_create(tmp_path) == "by hand"


@pytest.mark.parametrize("content", ["", "\n", "  "])
def test_an_empty_key_stops_the_start(tmp_path, content):
    (tmp_path / "secret_key").write_text(content)
    with pytest.raises(ValueError, match="is empty: remove it"):
        load_or_create(tmp_path)
