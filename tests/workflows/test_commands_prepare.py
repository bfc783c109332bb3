from __future__ import annotations

import stat
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import authenticate as sign_in
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from governance.models import Agent, AgentToken, Department
from governance.models.token import authenticate
from routing.models import RoutingRule
from tests.factories import DepartmentFactory
from workflows import first_start

pytestmark = pytest.mark.django_db


@pytest.fixture
def data_dir(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(first_start, "LOCK_DATABASE", "default")  # a second connection wouldn't see this test's rows
    settings.DATA_DIR = tmp_path / "data"
    return settings.DATA_DIR


def prepare() -> str:
    out = StringIO()
    call_command("prepare", stdout=out)
    text = out.getvalue()
    # Tokens and paths can't be broken into lines, and stand alone; everything else fits a terminal.
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(("export ", "  ")))
    return text


def sourced(file: Path) -> dict[str, str]:
    names = [
        "DISPATCHER_AGENT_TOKEN",
        "DISPATCHER_OPERATOR_TOKEN",
        "DISPATCHER_ADMIN_LOGIN",
        "DISPATCHER_ADMIN_PASSWORD",
    ]
    script = f". {file}; " + "; ".join(f'echo "${name}"' for name in names)
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.splitlines(), strict=True))


def test_the_first_start_makes_login_tokens_and_fixtures(data_dir):
    text = prepare()
    made = sourced(data_dir / "tokens.env")
    assert all(value in text for value in made.values())
    assert authenticate(made["DISPATCHER_AGENT_TOKEN"]).id == "main"
    assert authenticate(made["DISPATCHER_OPERATOR_TOKEN"]).id == "dashboard-operator"
    user = sign_in(username=made["DISPATCHER_ADMIN_LOGIN"], password=made["DISPATCHER_ADMIN_PASSWORD"])
    assert user.is_superuser
    assert RoutingRule.objects.count() == 8


def test_the_file_is_for_its_owner_only(data_dir):
    prepare()
    assert stat.S_IMODE((data_dir / "tokens.env").stat().st_mode) == 0o600
    assert [path.name for path in data_dir.iterdir()] == ["tokens.env"]


def test_the_second_start_shows_no_secret_and_names_the_file(data_dir):
    prepare()
    made = sourced(data_dir / "tokens.env")
    text = prepare()
    assert "tokens.env" in text
    assert not [value for value in made.values() if value != "operator" and value in text]
    assert sourced(data_dir / "tokens.env") == made
    assert AgentToken.objects.count() == 2


def test_edits_and_deletions_survive_a_start(data_dir):
    prepare()
    RoutingRule.objects.filter(pk="qa-review").update(max_concurrent=7)
    RoutingRule.objects.filter(pk="code-change").delete()
    prepare()
    assert RoutingRule.objects.get(pk="qa-review").max_concurrent == 7
    assert not RoutingRule.objects.filter(pk="code-change").exists()


def test_what_an_operator_removed_whole_does_not_come_back(data_dir):
    prepare()
    for model in (RoutingRule, Agent, Department):
        model.objects.all().delete()
    get_user_model().objects.all().delete()
    text = prepare()
    assert not any(model.objects.exists() for model in (RoutingRule, Agent, Department, AgentToken))
    assert "createsuperuser" in text


def test_a_fleet_that_was_there_before_is_left_alone(data_dir):
    DepartmentFactory(department_id="mine")
    prepare()
    assert not Agent.objects.exists()
    assert list(Department.objects.values_list("pk", flat=True)) == ["mine"]


def test_no_login_is_made_where_people_can_sign_in(data_dir):
    get_user_model().objects.create_superuser("ada", password="x")
    text = prepare()
    assert "DISPATCHER_ADMIN_PASSWORD" not in text
    assert get_user_model().objects.count() == 1


def test_a_start_that_died_after_writing_the_file_is_made_anew(data_dir, monkeypatch):
    def die(path, lines):
        write(path, lines)
        raise KeyboardInterrupt

    write = first_start.write
    monkeypatch.setattr(first_start, "write", die)
    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert not AgentToken.objects.exists()
    monkeypatch.setattr(first_start, "write", write)
    prepare()
    assert authenticate(sourced(data_dir / "tokens.env")["DISPATCHER_AGENT_TOKEN"]).id == "main"


def test_a_data_directory_that_cannot_be_written_keeps_nothing(data_dir):
    data_dir.write_text("in the way")
    with pytest.raises(CommandError, match="data directory can't be used"):
        prepare()
    assert not AgentToken.objects.exists()
    assert not get_user_model().objects.exists()
