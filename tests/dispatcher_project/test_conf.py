from __future__ import annotations

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dispatcher_project import conf

BY_NAME = {tunable.name: tunable for tunable in conf.TUNABLES}


def test_nothing_said_gives_the_designs_defaults():
    assert conf.read({}) == {
        "DISPATCHER_POLL_INTERVAL_MS": 30_000,
        "DISPATCHER_STALE_DISPATCH_MS": 300_000,
        "DISPATCHER_STALE_CLAIM_MS": 600_000,
        "DISPATCHER_MAX_DISPATCH_RETRIES": 3,
        "DISPATCHER_BATCH_SIZE": 10,
        "MONITOR_POLL_INTERVAL_MS": 30_000,
        "MONITOR_STALE_TIMEOUT_MINUTES": 60,
    }


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("raw", ["", " ", "\t"])
def test_an_empty_value_is_none(name, raw):
    assert conf.read({name: raw})[name] == BY_NAME[name].default


@pytest.mark.parametrize("name", BY_NAME)
def test_the_bounds_are_within(name):
    for value in (BY_NAME[name].minimum, BY_NAME[name].maximum):
        assert conf.read({name: f" {value} "})[name] == value


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("raw", ["abc", "1.5", "1e3", "30s", "-", "0x10", "NaN", "9" * 5000, "½"])
def test_what_is_no_whole_number_stops_the_start_by_name(name, raw):
    with pytest.raises(ImproperlyConfigured, match=f"{name} must be a whole number"):
        conf.read({name: raw})


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("beyond", [-1, 1])
def test_what_lies_outside_its_bounds_stops_the_start_by_name(name, beyond):
    tunable = BY_NAME[name]
    value = tunable.minimum - 1 if beyond < 0 else tunable.maximum + 1
    with pytest.raises(ImproperlyConfigured, match=f"{name} must lie between {tunable.minimum} and {tunable.maximum}"):
        conf.read({name: str(value)})
    with pytest.raises(ImproperlyConfigured, match=name):
        conf.read({name: str(-(10**30) if beyond < 0 else 10**30)})


def test_every_tunable_reaches_the_settings():
    for name in BY_NAME:
        assert isinstance(getattr(settings, name), int)


@pytest.mark.parametrize("stale_claim_ms", [3_000, 3_001, 5_999, 6_000, 100_000, 600_000, conf.DAY_MS])
def test_the_advised_heartbeat_is_at_most_a_third_of_the_stale_limit(stale_claim_ms):
    advised = conf.heartbeat_interval_seconds(stale_claim_ms)
    assert isinstance(advised, int)
    assert 1 <= advised <= 60
    assert advised * 1000 * 3 <= stale_claim_ms


def test_the_smallest_stale_limit_leaves_room_for_the_smallest_interval():
    assert BY_NAME["DISPATCHER_STALE_CLAIM_MS"].minimum >= 3_000
