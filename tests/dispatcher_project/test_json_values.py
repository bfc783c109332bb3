from __future__ import annotations

import json
import string
import tracemalloc
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher_project import json_values
from dispatcher_project.json_values import BadJSON
from tests.factories import OPERATOR
from workflows import lifecycle
from workflows.models import rows


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-0", 0),
        ("1.0", Decimal("1.0")),
        ("1.10", Decimal("1.10")),
        ("0.1", Decimal("0.1")),
        ("0.30000000000000004", Decimal("0.30000000000000004")),
        ("1e3", Decimal("1E+3")),
        ("1E-399", Decimal("1E-399")),
        ("1.7976931348623157e308", Decimal("1.7976931348623157E+308")),
        ("0.0", Decimal("0.0")),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63) + 1), -(2**63) + 1),
        (str(2**63), Decimal(2**63)),
        ("9" * 300, Decimal("9" * 300)),
        ("0." + "1" * 60, Decimal("0." + "1" * 60)),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\u0001"', "\x01"),
        (b'{"a": [true, false, null]}', {"a": [True, False, None]}),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_good_json_is_read_exactly(text, value):
    found = json_values.loads(text)
    assert found == value
    assert type(found) is type(value)
    assert str(found) == str(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "nul",
        "[1,]",
        "{'a': 1}",
        "\ufeff{}",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe[\x00]\x00",
        b'"\xed\xa0\x80"',
        b'"\xff"',
        "NaN",
        "Infinity",
        "-Infinity",
        '{"a": NaN}',
        "1e309",
        "1e400",
        "-1e400",
        "1e999",
        "[1e999]",
        "1e-400",
        "1e-999999",
        "1e99999999999999999999",
        "-1e99999999999999999999",
        "1e-99999999999999999999",
        "0e99999999999999999999",
        "0e999999999",
        "0e-999999999",
        "0e-20000",
        "1.7976931348623159e308",
        "9" * 400,
        "-" + "9" * 400,
        "9" * 5000,
        "1." + "9" * 20000,
        "0." + "0" * 20000,
        '"\\u0000"',
        '{"a\\u0000": 1}',
        '{"a": {"b": ["x\\u0000"]}}',
        '"\\ud800"',
        '"\\ude00\\ud83d"',
        '{"\\udfff": 1}',
        '[{"a": "\\ud800"}]',
    ],
    ids=lambda text: repr(text[:30]),
)
def test_bad_json_is_refused(text):
    with pytest.raises(BadJSON):
        json_values.loads(text)


@pytest.mark.parametrize("depth", [1, 63, 64])
def test_nesting_is_taken_to_its_limit(depth):
    json_values.loads(nested(depth))
    json_values.loads(nested(depth, '{"a":', "}").replace('"a":}', '"a":1}'))


@pytest.mark.parametrize("depth", [65, 66, 200, 2000, 20_000, 200_000])
@pytest.mark.parametrize("unclosed", [False, True])
def test_nesting_beyond_the_limit_is_refused(depth, unclosed):
    text = "[" * depth if unclosed else nested(depth)
    with pytest.raises(BadJSON):
        json_values.loads(text)
    with pytest.raises(BadJSON):
        json_values.loads('{"a":' * depth + "1" + "}" * (0 if unclosed else depth))


def test_a_refusal_names_the_place():
    with pytest.raises(BadJSON, match=r"input_payload\.list\.1\.text: text must not contain the NUL"):
        json_values.loads('{"input_payload": {"list": ["x", {"text": "a\\u0000b"}]}}')
    with pytest.raises(BadJSON, match="body: text must not contain half a surrogate"):
        json_values.loads('"\\ud800"')


def test_a_refusal_is_printable_and_short_whatever_the_keys_are():
    with pytest.raises(BadJSON) as refused:
        json_values.loads(json.dumps({"k" * 100_000: {"\ud800": 1}}))
    assert len(str(refused.value)) < 400
    with pytest.raises(BadJSON) as refused:
        json_values.check({"a\x00": {"b\ud800": "\x00"}})
    str(refused.value).encode()


def test_a_long_key_above_many_values_costs_no_more_memory_than_they_do():
    """Once every value took a copy of the path to it: 4 MB of text became terabytes."""
    text = json.dumps({"k" * 1_000_000: ["x"] * 100_000})
    tracemalloc.start()
    try:
        json_values.loads(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000


# --- Out ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1.50", "1.5"),
        ("-0.0", "0"),
        ("0E-10", "0"),
        ("0E+3", "0"),
        ("100", "100"),
        ("1E+3", "1000"),
        ("0.0000000001", "0.0000000001"),
        ("9999999999.9999999999", "9999999999.9999999999"),
        ("0.3000000000000000444", "0.3000000000000000444"),
        ("1E-30", "1E-30"),
        ("1E+300", "1E+300"),
        ("0." + "1" * 40, "0." + "1" * 40),
        ("123456789012345678901234567890.5", "123456789012345678901234567890.5"),
    ],
)
def test_a_decimal_as_a_json_number(value, text):
    assert json_values.plain(Decimal(value)) == text


FINITE = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda number: not number or -400 < number.adjusted() < 300
)


@given(FINITE)
def test_no_digit_of_a_decimal_is_lost(number):
    text = json_values.plain(number)
    assert Decimal(text) == number
    assert json.loads(text) is not None


@given(FINITE, FINITE)
def test_digests_of_decimals_agree_exactly_where_the_values_do(one, other):
    assert (json_values.digest(one) == json_values.digest(other)) == (one == other)


def test_a_digest_sees_the_last_of_many_digits():
    one, other = (json_values.loads("0." + "1" * 40 + end) for end in "12")
    assert json_values.digest(one) != json_values.digest(other)


def test_a_digest_is_of_the_value_not_of_the_text():
    texts = ['{"a": 1, "b": [1.50, 2]}', '{"b":[1.5,2.0],"a":1.0}', '{"b":[15e-1,2],"a":1,"a":1}']
    assert len({json_values.digest(json_values.loads(text)) for text in texts}) == 1
    assert json_values.digest({"a": "1"}) != json_values.digest({"a": 1})
    assert json_values.digest([1, 2]) != json_values.digest([2, 1])
    assert json_values.digest({"a": None}) != json_values.digest({})


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(10**200), 10**200) | FINITE
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def as_text(value: object) -> str:
    """JSON with numbers as decimals write them, made here so that the module is not its own judge."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{as_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_text, value)) + "]"
    return json.dumps(value)


@given(VALUES)
def test_what_is_read_is_what_was_written(value):
    assert json_values.loads(as_text(value)) == value
    assert json_values.loads(json_values.dumps(json_values.loads(as_text(value)))) == value


@given(st.text(alphabet=string.printable + "\x00\ud800é", max_size=60) | st.binary(max_size=60))
@settings(max_examples=300)
def test_nothing_makes_the_reader_fail_otherwise(text):
    try:
        value = json_values.loads(text)
    except BadJSON as error:
        str(error).encode()
    else:
        json_values.dumps(value)
        json_values.digest(value)


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,25})?", fullmatch=True))
@settings(max_examples=300)
def test_no_number_makes_the_reader_fail_otherwise(text):
    try:
        value = json_values.loads(text)
    except BadJSON:
        return
    assert Decimal(json_values.dumps(value)) == Decimal(text)


def test_only_json_values_are_written():
    with pytest.raises(TypeError):
        json_values.dumps({"a": object()})
    with pytest.raises(TypeError):
        json_values.digest({"a": {1, 2}})


# --- Through PostgreSQL ---------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    "number",
    [
        "0.1",
        "1.10",
        "100",
        "0.30000000000000004",
        "12345678901234567890.12345678901234567890",
        str(2**64),
        "9" * 300,
        "-0.0000000001",
        "1.0",
        "0." + "123456789" * 100,
    ],
)
def test_a_number_comes_out_of_a_run_digit_for_digit(number):
    run = lifecycle.create("doc", actor=OPERATOR, input_payload=json_values.loads(f'{{"n": {number}}}')).run
    assert run["input_payload"] == f'{{"n": {number}}}'
    assert rows.get(run["id"])["input_payload"] == run["input_payload"]


@pytest.mark.django_db
@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_what_the_reader_takes_the_database_stores(value):
    payload = json_values.loads(as_text({"value": value}))
    stored = lifecycle.create("doc", actor=OPERATOR, input_payload=payload).run["input_payload"]
    assert json_values.loads(stored) == payload


@pytest.mark.django_db
@given(st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,6})?", fullmatch=True))
@settings(max_examples=60, deadline=None)
def test_every_number_that_the_reader_takes_the_database_stores(text):
    try:
        payload = json_values.loads(f"[{text}]")
    except BadJSON:
        return
    stored = lifecycle.create("doc", actor=OPERATOR, input_payload=payload).run["input_payload"]
    assert json_values.loads(stored) == payload
