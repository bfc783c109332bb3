"""The bodies that we take, as serializers: shape and field checks, nothing else. Unknown fields are ignored."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from rest_framework import serializers

from budgets.usage import TOKEN_FIELDS
from dispatcher_project.errors import Invalid
from governance.models.token import MAX_DAYS
from routing import models as routing
from workflows.api import query, twins
from workflows.api.fields import (
    INT32,
    AnyJSON,
    Clamped,
    Flag,
    Integer,
    JSONObject,
    Moment,
    Percent,
    Text,
    Usage,
    Wait,
)
from workflows.lifecycle.ending import MAX_RETRY_AFTER_SECONDS
from workflows.lifecycle.queueing import EDITABLE
from workflows.lifecycle.reporting import MAX_URI
from workflows.models.rows import COLUMNS, RULE_COLUMNS

MAX_NAME = 100
MAX_SESSION = 200
MAX_REASON = 5_000
MAX_ERROR = 100_000
MAX_RETRIES = 999
MAX_NOTES = 20_000

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x1f\x7f-\x9f]+")


class Shape(serializers.Serializer[Any]):
    """`null_is_absent`: null for an optional field means that it isn't given."""

    null_is_absent: ClassVar[bool] = True

    @classmethod
    def read(cls, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The checked fields of `body`, those only that were given. Errors: serializers.ValidationError, Invalid."""
        shape = cls(data=cls.merged(body), **options)
        shape.is_valid(raise_exception=True)
        return dict(shape.validated_data)

    @classmethod
    def merged(cls, body: dict[str, Any]) -> dict[str, Any]:
        fields = cls._declared_fields
        body = twins.merge(body, fields)
        if not cls.null_is_absent:
            return body
        return {name: value for name, value in body.items() if value is not None}


class Session(Shape):
    session_id = Text(min_length=1, max_length=MAX_SESSION)
    lease_no = Integer(required=False, min_value=0)


class Create(Shape):
    workflow_type = Text(min_length=1, max_length=MAX_NAME, validators=[routing.NAME])
    input_payload = AnyJSON(required=False)
    owner_agent_id = Text(required=False, min_length=1, max_length=MAX_NAME)
    initiator = Text(required=False, max_length=200)
    priority = Integer(required=False)
    not_before = Moment(required=False)
    max_retries = Integer(required=False, min_value=0, max_value=MAX_RETRIES)


class Claim(Shape):
    session_id = Text(min_length=1, max_length=MAX_SESSION)
    agent_id = Text(required=False, min_length=1, max_length=MAX_NAME)


class ClaimNext(Claim):
    workflow_types = serializers.ListField(
        child=Text(min_length=1, max_length=MAX_NAME), required=False, min_length=1, max_length=100
    )
    limit = Clamped(required=False, least=query.MIN_LIMIT, most=query.MAX_LIMIT)
    wait = Wait(required=False)


class Start(Session):
    pass


class Progress(Shape):
    percent = Percent(required=False)
    message = Text(required=False, allow_blank=True, max_length=500)


class Heartbeat(Session):
    progress = JSONObject(required=False)
    usage = Usage(required=False)

    def validate_progress(self, value: dict[str, Any]) -> dict[str, Any]:
        return Progress.read(value)


class TopLevelUsage(Shape):
    """Usage beside the other fields of `complete`; `Usage` says what they may be."""

    model_id = AnyJSON(required=False)
    input_tokens = AnyJSON(required=False)
    output_tokens = AnyJSON(required=False)
    cached_tokens = AnyJSON(required=False)
    cache_write_tokens = AnyJSON(required=False)
    cost_estimate = AnyJSON(required=False)
    currency = AnyJSON(required=False)


class Complete(TopLevelUsage):
    session_id = Text(required=False, min_length=1, max_length=MAX_SESSION)
    lease_no = Integer(required=False, min_value=0)
    output_summary = JSONObject(required=False)
    summary = AnyJSON(required=False)
    error = Text(required=False, allow_blank=True, max_length=MAX_ERROR)
    usage = AnyJSON(required=False)

    def validate_summary(self, value: Any) -> Any:
        if not isinstance(value, str | dict):
            raise serializers.ValidationError("must be text or an object")
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        beside = {name: attrs.pop(name) for name in TopLevelUsage._declared_fields if name in attrs}
        if beside and "usage" in attrs:
            raise serializers.ValidationError(
                {"usage": f"is given twice, here and at the top level ({', '.join(sorted(beside))})"}
            )
        given = beside or attrs.get("usage")
        attrs["usage"] = Usage().to_internal_value(given) if given is not None else []
        return attrs


class Fail(Shape):
    session_id = Text(required=False, min_length=1, max_length=MAX_SESSION)
    lease_no = Integer(required=False, min_value=0)
    error = Text(min_length=1, max_length=MAX_ERROR)
    retryable = Flag(required=False)
    retry_after_seconds = Integer(required=False, min_value=0, max_value=MAX_RETRY_AFTER_SECONDS)
    usage = Usage(required=False)

    def validate_error(self, value: str) -> str:
        if not value.strip():
            raise serializers.ValidationError("must say what went wrong")
        return value


class Release(Session):
    reason = Text(required=False, allow_blank=True, max_length=MAX_REASON)


class Step(Session):
    step_name = Text(min_length=1, max_length=200)
    status = Text(required=False, min_length=1, max_length=50)
    output = AnyJSON(required=False)


class Artifact(Session):
    uri = Text(min_length=1, max_length=MAX_URI)
    artifact_type = Text(required=False, min_length=1, max_length=50)
    label = Text(required=False, allow_blank=True, max_length=200)  # type: ignore[assignment]  # a field, no label
    metadata = JSONObject(required=False)

    def validate_uri(self, value: str) -> str:
        if not _URI.fullmatch(value):
            raise serializers.ValidationError(
                "must be a URI with its scheme (https:, s3:, file:, …), no control characters"
            )
        return value


class GatewaySession(Shape):
    session_id = Text(min_length=1, max_length=MAX_SESSION)


class Edit(Shape):
    """Null clears what may be empty. Other columns of a run are refused (`OTHERS`), unknown names ignored."""

    null_is_absent = False

    gateway_session_id = Text(required=False, allow_null=True, min_length=1, max_length=MAX_SESSION)
    gateway_session_active = Flag(required=False)
    current_step = Text(required=False, allow_null=True, min_length=1, max_length=200)
    operator_notes = Text(required=False, allow_null=True, allow_blank=True, max_length=MAX_NOTES)
    priority = Integer(required=False)
    not_before = Moment(required=False, allow_null=True)

    @classmethod
    def read(cls, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        refused = sorted(name for name in twins.merge(body, OTHERS) if name in OTHERS)
        if refused:
            raise Invalid(fields=dict.fromkeys(refused, "can't be edited"))
        return super().read(body, **options)


OTHERS = frozenset({*COLUMNS, *RULE_COLUMNS, "retry_count", "max_retries", "hold_reason", "progress"}) - set(EDITABLE)


class Bulk(Shape):
    action = serializers.ChoiceField(choices=("cancel", "run-now"))
    filter = JSONObject()
    reason = Text(required=False, allow_blank=True, max_length=MAX_REASON)


class Cancel(Shape):
    reason = Text(required=False, allow_blank=True, max_length=MAX_REASON)
    note = Text(required=False, allow_blank=True, max_length=MAX_REASON)


class Route(Shape):
    """Every field but the type may be left out of an edit, and keeps its value then."""

    null_is_absent = False

    workflow_type = Text(min_length=1, max_length=MAX_NAME)
    agent_id = Text(min_length=1, max_length=MAX_NAME)
    priority = Integer(required=False)
    max_concurrent = Integer(required=False, min_value=0, max_value=routing.MAX_CONCURRENT)
    timeout_minutes = Integer(required=False, min_value=1, max_value=routing.MAX_TIMEOUT_MINUTES)
    max_attempts = Integer(required=False, allow_null=True, min_value=1, max_value=routing.MAX_ATTEMPTS)
    active = Flag(required=False)
    inactive_reason = Text(required=False, allow_blank=True, max_length=500)


class Agent(Shape):
    null_is_absent = False

    agent_id = Text(min_length=1, max_length=MAX_NAME)
    display_name = Text(required=False, allow_blank=True, max_length=200)
    role = Text(required=False, min_length=1, max_length=20)
    capabilities = serializers.ListField(child=Text(min_length=1, max_length=100), required=False, max_length=100)
    department_id = Text(required=False, allow_null=True, min_length=1, max_length=MAX_NAME)
    active = Flag(required=False)
    inactive_reason = Text(required=False, allow_blank=True, max_length=500)
    reason = Text(required=False, allow_blank=True, max_length=500)
    max_concurrent = Integer(required=False, allow_null=True, min_value=0, max_value=INT32)


class Token(Shape):
    days = Integer(required=False, min_value=1, max_value=MAX_DAYS)


class Department(Shape):
    department_id = Text(min_length=1, max_length=MAX_NAME)
    name = Text(min_length=1, max_length=200)


assert set(TopLevelUsage._declared_fields) == {"model_id", "cost_estimate", "currency", *TOKEN_FIELDS}  # noqa: S101
