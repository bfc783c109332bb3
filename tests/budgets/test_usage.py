from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.usage import MAX_MODELS, MAX_TOKENS, TOKEN_FIELDS, UsageReport, parse
from dispatcher_project.errors import Invalid

MONEY = "cost_estimate"


def one(**fields: Any) -> UsageReport:
    (report,) = parse(fields)
    return report


def refused_field(value: Any) -> str:
    with pytest.raises(Invalid) as refused:
        parse(value)
    (field,) = refused.value.fields
    return field


def test_nothing_said_is_no_report_and_an_empty_object_one_without_totals():
    assert parse(None) == []
    assert parse([]) == []
    assert parse({}) == [UsageReport(None, None, None, None, None, None)]


def test_an_object_is_one_report_and_a_list_one_for_each_model():
    assert one(model_id="m", input_tokens=5, currency="USD", unknown=1).input_tokens == 5
    reports = parse([{"model_id": "m"}, {"model_id": "n"}, {}])
    assert [report.model_id for report in reports] == ["m", "n", None]


@pytest.mark.parametrize("field", TOKEN_FIELDS)
@pytest.mark.parametrize(
    ("value", "tokens"),
    [(0, 0), (1, 1), (MAX_TOKENS, MAX_TOKENS), (Decimal("3.0"), 3), (Decimal("1E+3"), 1000), (None, None)],
)
def test_tokens_are_whole_numbers_however_they_are_written(field, value, tokens):
    found = getattr(one(**{field: value}), field)
    assert (found, type(found)) == (tokens, type(tokens))


@pytest.mark.parametrize("field", TOKEN_FIELDS)
@pytest.mark.parametrize(
    "value",
    [
        -1,
        True,
        False,
        1.0,
        "1",
        "NaN",
        [],
        {},
        MAX_TOKENS + 1,
        10**400,
        Decimal("0.5"),
        Decimal("-1"),
        Decimal("1E+308"),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("-Infinity"),
        float("nan"),
        float("inf"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_other_tokens_are_refused_by_name(field, value):
    assert refused_field({field: value}) == f"usage.{field}"


@pytest.mark.parametrize(
    ("value", "cost"),
    [
        (0, "0"),
        (3, "3"),
        ("0.1", "0.1"),
        (Decimal("0.0000000001"), "0.0000000001"),
        ("9999999999.9999999999", "9999999999.9999999999"),
        ("1e-10", "1E-10"),
        ("0.10000000000000", "0.1"),
        (None, None),
    ],
)
def test_money_is_an_exact_decimal_from_a_number_or_text(value, cost):
    assert one(cost_estimate=value).cost_estimate == (cost and Decimal(cost))


@pytest.mark.parametrize(
    "value",
    [
        -1,
        "-0.01",
        True,
        0.1,
        float("nan"),
        "",
        "abc",
        "NaN",
        "sNaN",
        "nan123",
        "Infinity",
        "-inf",
        "1e10",
        10**10,
        "1e400",
        "1e999",
        "1e99999999999999999999",
        "1e-99999999999999999999",
        "0.00000000001",
        "1e-11",
        "$1",
        "1,5",
        [],
        {},
        10**400,
        "9" * 100_000,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_other_money_is_refused_by_name(value):
    assert refused_field({MONEY: value}) == f"usage.{MONEY}"


@pytest.mark.parametrize("value", ["", "x" * 201, 1, True, [], {}])
def test_a_models_name_is_text_of_up_to_200_characters(value):
    assert refused_field({"model_id": value}) == "usage.model_id"
    assert one(model_id="x" * 200).model_id == "x" * 200


@pytest.mark.parametrize("value", ["EUR", "usd", "", 1, True, ["USD"]])
def test_money_is_in_dollars(value):
    assert refused_field({"currency": value}) == "usage.currency"


@pytest.mark.parametrize("value", ["x", 1, True, Decimal(1)])
def test_a_report_is_an_object_or_a_list(value):
    assert refused_field(value) == "usage"


@pytest.mark.parametrize("value", [None, "x", 1, [], [{}]])
def test_a_list_holds_objects_only(value):
    assert refused_field([{"model_id": "m"}, value]) == "usage[1]"


def test_a_model_stands_once_in_a_list():
    assert refused_field([{"model_id": "m"}, {"model_id": "n"}, {"model_id": "m"}]) == "usage[2].model_id"
    assert refused_field([{}, {"model_id": None}]) == "usage[1].model_id"


def test_a_list_is_bounded():
    assert len(parse([{"model_id": str(n)} for n in range(MAX_MODELS)])) == MAX_MODELS
    assert refused_field([{"model_id": str(n)} for n in range(MAX_MODELS + 1)]) == "usage"


def test_the_field_is_named_as_the_caller_calls_it():
    with pytest.raises(Invalid) as refused:
        parse([{"input_tokens": -1}], field="body.usage")
    assert list(refused.value.fields) == ["body.usage[0].input_tokens"]


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=30) | st.decimals() | st.floats() | st.just("USD")
)
REPORTS = st.dictionaries(
    st.sampled_from(["model_id", "currency", MONEY, *TOKEN_FIELDS, "other"]), SCALARS | st.lists(SCALARS, max_size=2)
)


@given(REPORTS | st.lists(REPORTS, max_size=4) | SCALARS)
def test_a_report_is_read_within_its_columns_or_refused_and_nothing_else(value):
    reports: list[UsageReport] = []
    try:
        reports = parse(value)
    except Invalid as refused:
        fields = list(refused.fields) or ["unnamed"]
    else:
        fields = []
    assert all(name.startswith("usage") for name in fields)
    for report in reports:
        assert all(total is None or 0 <= total <= MAX_TOKENS for total in (getattr(report, x) for x in TOKEN_FIELDS))
        cost = report.cost_estimate
        assert cost is None or (0 <= cost < 10**10 and cost == round(cost, 10))


@given(st.decimals(0, "9999999999.9999999999", places=10), st.booleans())
def test_no_cent_is_lost(cost, as_text):
    assert one(cost_estimate=str(cost) if as_text else cost).cost_estimate == cost
