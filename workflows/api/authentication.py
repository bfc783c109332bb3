"""Who is calling: `request.user` is a `governance.actors.Actor`, made from credentials and nothing else."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from governance.actors import Actor
from governance.models import Role
from governance.models.token import TokenRefused, authenticate

ANONYMOUS = Actor("agent", "dashboard-operator", role=Role.OPERATOR)
FORWARDING = (
    "HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PROTO",
    "HTTP_X_FORWARDED_PORT", "HTTP_X_FORWARDED_SERVER", "HTTP_X_REAL_IP", "HTTP_VIA",
)  # fmt: skip


class AgentTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. A header that is there and isn't good ends the request: nobody falls through."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        scheme, _, plain = header.partition(" ")
        plain = plain.strip()
        if scheme.lower() != "bearer" or not plain:
            raise AuthenticationFailed("Authorization must be: Bearer <token>.", code="token_invalid")
        if not plain.isascii() or not plain.isprintable():
            raise AuthenticationFailed("The token is not valid.", code="token_invalid")
        try:
            return authenticate(plain), None
        except TokenRefused as refused:
            raise AuthenticationFailed(str(refused), code=refused.code) from None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class StaffSessionAuthentication(SessionAuthentication):
    """The admin's session, with CSRF. Operators by permission; other staff may read."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES:
            return None
        user = getattr(request._request, "user", None)
        if user is None or not user.is_active or not user.is_staff:
            return None
        self.enforce_csrf(request)
        return Actor("staff", user.get_username(), operates=user.has_perm("governance.operate")), None


class AnonymousLoopbackAuthentication(BaseAuthentication):
    """With API_ANONYMOUS_LOOPBACK: whoever calls from this very machine, and not through a proxy, is an operator.

    A web page that the browser was lured to calls from this machine, too: its `Origin` must be ours.
    """

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        if not settings.API_ANONYMOUS_LOOPBACK or not is_loopback(request.META.get("REMOTE_ADDR", "")):
            return None
        if any(name in request.META for name in FORWARDING):
            return None
        if request.META.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
            return None
        origin = request.META.get("HTTP_ORIGIN")
        if origin is not None and urlsplit(origin).netloc != request.get_host():
            return None
        return ANONYMOUS, None


def is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
