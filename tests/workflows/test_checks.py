"""Settings and databases that would break the queue's guarantees stop the start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection, connections
from psycopg import IsolationLevel

from workflows import checks


def ids(found):
    return [message.id for message in found]


@pytest.fixture
def of_settings(monkeypatch):
    def found(**config):
        monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES={"default": config}))
        return ids(checks.transactions_are_ours(None))

    return found


@pytest.mark.parametrize("level", [None, IsolationLevel.READ_COMMITTED])
def test_read_committed_is_what_we_want(of_settings, level):
    assert of_settings(OPTIONS={"isolation_level": level}) == []
    assert of_settings() == []


@pytest.mark.parametrize("level", [IsolationLevel.SERIALIZABLE, IsolationLevel.REPEATABLE_READ, 1, "3"])
def test_another_isolation_stops_the_start(of_settings, level):
    assert of_settings(OPTIONS={"isolation_level": level}) == ["workflows.E002"]


def test_a_transaction_around_each_request_stops_the_start(of_settings):
    assert of_settings(ATOMIC_REQUESTS=True) == ["workflows.E001"]
    assert of_settings(ATOMIC_REQUESTS=False) == []


def test_the_checks_are_registered():
    assert "workflows.E001" not in ids(run_checks())


@pytest.mark.django_db
def test_our_own_database_is_ours():
    assert checks.database_is_ours(None, databases=["default"]) == []


def test_without_databases_nothing_is_asked():
    assert checks.database_is_ours(None) == []
    assert checks.database_is_ours(None, databases=[]) == []
    assert checks.database_is_ours(None, databases=["direct"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize("table", sorted(checks.OWN_TABLES))
def test_a_foreign_table_of_one_of_our_names_stops_the_start(table):
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table} CASCADE")
        cursor.execute(f"CREATE TABLE {table} (theirs text)")
    (error,) = checks.database_is_ours(None, databases=["default"])
    assert error.id == "workflows.E004"
    assert repr(table) in error.msg
    assert "DATABASE_URL" in error.hint
    with pytest.raises(CommandError, match="not ours"):
        call_command("check", databases=["default"])


@pytest.mark.django_db
def test_an_empty_database_is_welcome():
    with connection.cursor() as cursor:
        for table in checks.OWN_TABLES:
            cursor.execute(f"DROP TABLE {table} CASCADE")
    assert checks.database_is_ours(None, databases=["default"]) == []


@pytest.mark.django_db
def test_foreign_tables_in_a_schema_that_we_do_not_use_are_none_of_our_business():
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA theirs")
        cursor.execute("CREATE TABLE theirs.workflow_runs (theirs text)")
    assert checks.database_is_ours(None, databases=["default"]) == []


@pytest.mark.django_db
def test_a_database_whose_transactions_are_of_another_kind_stops_the_start():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_isolation = 'repeatable read'")
    assert ids(checks.database_is_ours(None, databases=["default"])) == ["workflows.E002"]


def test_every_table_of_ours_is_looked_for():
    apps_of_ours = ("workflows", "routing", "governance")
    ours = {model._meta.db_table for app in apps_of_ours for model in apps.get_app_config(app).get_models()}
    assert set(checks.OWN_TABLES) == ours
    for table, columns in checks.OWN_TABLES.items():
        (model,) = [
            m for app in apps_of_ours for m in apps.get_app_config(app).get_models() if m._meta.db_table == table
        ]
        assert columns <= {field.column for field in model._meta.local_concrete_fields if hasattr(field, "column")}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("version", "found"), [(130012, ["workflows.E003"]), (96024, ["workflows.E003"]), (140000, [])]
)
def test_a_server_that_is_too_old_stops_the_start(monkeypatch, version, found):
    connection.ensure_connection()
    monkeypatch.setattr(connections["default"], "connection", _Older(connection.connection, version))
    messages = checks.database_is_ours(None, databases=["default"])
    assert ids(messages) == found
    assert all(str(version // 10000) in message.msg for message in messages)


class _Older:
    """The connection, but of a server of another version."""

    def __init__(self, real, version):
        self._real = real
        self.info = SimpleNamespace(server_version=version)

    def __getattr__(self, name):
        return getattr(self._real, name)
