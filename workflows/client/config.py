"""Where the server is and who is calling: the environment and what overrides it."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from workflows.client.errors import UsageError

API_VARIABLE = "DASHBOARD_API_BASE"
TOKEN_VARIABLE = "DISPATCHER_AGENT_TOKEN"  # noqa: S105  the variable's name
SESSION_VARIABLE = "DISPATCHER_SESSION_ID"
AGENT_VARIABLE = "DISPATCHER_AGENT_ID"
DEFAULT_API = "http://127.0.0.1:3876"


def from_environment(variable: str) -> str | None:
    """The variable's text; one that is set but empty counts as absent."""
    return os.environ.get(variable, "").strip() or None


def api_base(given: str | None) -> str:
    """`host:1`, `http://host:1/`, `http://host:1/api/` and the like → `http://host:1`."""
    text = (given or from_environment(API_VARIABLE) or DEFAULT_API).strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{text!r} is no address of a server. Set {API_VARIABLE} or --api like {DEFAULT_API}")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"The server's address holds a password. Leave it out: {TOKEN_VARIABLE} says who is calling")
    if parts.query or parts.fragment:
        raise UsageError(f"The server's address ends in a query or fragment: {text!r}")
    path = parts.path.rstrip("/").removesuffix("/api").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def agent_token(token_file: str | None) -> str | None:
    """The bearer token, or None to send none. It is never taken from the command line, which others can see."""
    if token_file is None:
        token = from_environment(TOKEN_VARIABLE)
    else:
        try:
            token = Path(token_file).read_text(encoding="ascii").strip()
        except UnicodeDecodeError:
            raise UsageError(f"The file {token_file} holds no token") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"Can't read the token file {token_file}: {reason_of(error)}") from None
        if not token:
            raise UsageError(f"The token file {token_file} is empty")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError("The token has characters that no token has; was it copied whole, and alone?")
    return token


def reason_of(error: Exception) -> str:
    """`No such file or directory` rather than `[Errno 2] No such file or directory: 'x'`."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
