"""Django settings, all of them. The environment is read here and nowhere else; the README has the table.

A wrong value raises ImproperlyConfigured with the variable's name, so that the start stops with a clear message.
"""

from __future__ import annotations

import os
import sys
import warnings
import zoneinfo
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import environ
from django.core.exceptions import ImproperlyConfigured

from dispatcher_project import conf, embedded_postgres, secret_key
from dispatcher_project.supervisor import YES

BASE_DIR = Path(__file__).resolve().parent.parent


def flag(name: str, *, default: bool = False) -> bool:
    """A yes/no variable. Anything but 1, 0, true, false, yes, no, on, off stops the start."""
    raw = os.environ.get(name, "").strip().lower()
    if raw == "":
        return default
    if raw in YES:
        return True
    if raw in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {raw!r}.")


def names(name: str, *, default: list[str]) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()] or default


DEBUG = flag("DEBUG")
DATA_DIR = Path(os.environ.get("DISPATCHER_DATA_DIR") or BASE_DIR / ".data").absolute()
EMBEDDED_DATABASE = not os.environ.get("DATABASE_URL")

# --- The web process ------------------------------------------------------------------------------------------------

# `manage.py serve` and its worker processes: the only ones whose threads share a pool of connections.
WEB_PROCESS = sys.argv[1:2] == ["serve"] or os.environ.get("DISPATCHER_PROCESS") == "web"
_threads = os.environ.get("WEB_THREADS") or "16"
if not (_threads.isascii() and _threads.isdigit() and 1 <= int(_threads) <= 200):
    raise ImproperlyConfigured(f"WEB_THREADS must be a whole number from 1 to 200, not {_threads!r}.")
WEB_THREADS = int(_threads)

# --- Database -------------------------------------------------------------------------------------------------------


def database(url_variable: str) -> dict[str, Any]:
    url = os.environ.get(url_variable) or os.environ.get("DATABASE_URL")
    if not url:
        place = embedded_postgres.connection(DATA_DIR)
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": place["dbname"],
            "USER": place["user"],
            "HOST": place["host"],
            "PORT": place["port"],
        }
    try:
        with warnings.catch_warnings(action="ignore"):  # of an unknown engine: refused below, with the variable's name
            config: dict[str, Any] = environ.Env.db_url_config(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"{url_variable} is no database address: {error}.") from None
    config["HOST"] = unquote(config.get("HOST") or "")  # a socket's directory: %2Frun%2Fpostgresql
    if config.get("ENGINE") != "django.db.backends.postgresql":
        raise ImproperlyConfigured(f"{url_variable} must be a postgres:// address: PostgreSQL is the queue.")
    return config


DATABASES: dict[str, dict[str, Any]] = {"default": database("DATABASE_URL"), "direct": database("DATABASE_DIRECT_URL")}
# A peer that vanished without a word is noticed within half a minute. libpq ignores these on a Unix socket.
KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
for _alias, _database in DATABASES.items():
    _database["OPTIONS"] = {**KEEPALIVE, **_database.get("OPTIONS", {})}
    _database["OPTIONS"].setdefault("connect_timeout", 5)
    _database["OPTIONS"].setdefault("application_name", f"workflow-dispatcher {' '.join(sys.argv[1:2])}".strip())
    _database["CONN_MAX_AGE"] = 0 if WEB_PROCESS else None
    _database["CONN_HEALTH_CHECKS"] = True  # in the pool, too: nobody is handed a connection that a restart killed
if WEB_PROCESS:
    # A thread uses one connection at a time, so a pool of that size is never exhausted by our own threads.
    DATABASES["default"]["OPTIONS"]["pool"] = {
        "min_size": 1,
        "max_size": WEB_THREADS,
        "timeout": 5,
        "max_idle": 60,
    }
# LISTEN and advisory locks: never pooled, the same database.
DATABASES["direct"]["TEST"] = {"MIRROR": "default"}

# --- Django ---------------------------------------------------------------------------------------------------------

SECRET_KEY = os.environ.get("SECRET_KEY") or (secret_key.load_or_create(DATA_DIR) if EMBEDDED_DATABASE else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY must be set when DATABASE_URL is.")

ALLOWED_HOSTS = names("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = names("CSRF_TRUSTED_ORIGINS", default=[])
TIME_ZONE = os.environ.get("TIME_ZONE") or "UTC"
if TIME_ZONE not in zoneinfo.available_timezones():
    raise ImproperlyConfigured(f"TIME_ZONE must be the name of a zone, like Europe/Berlin, not {TIME_ZONE!r}.")
USE_TZ = True
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "dispatcher_project.urls"
APPEND_SLASH = False
WSGI_APPLICATION = "dispatcher_project.wsgi.application"

INSTALLED_APPS = [
    "workflows",
    "routing",
    "governance",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # no collectstatic step on a fresh machine
WHITENOISE_AUTOREFRESH = DEBUG

# --- Behind a proxy that ends TLS -----------------------------------------------------------------------------------

BEHIND_TLS_PROXY = flag("BEHIND_TLS_PROXY")
if BEHIND_TLS_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^health/"]
    SECURE_HSTS_SECONDS = 31_536_000
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True

# --- The API --------------------------------------------------------------------------------------------------------

API_ANONYMOUS_LOOPBACK = flag("API_ANONYMOUS_LOOPBACK")
API_CAMEL_CASE_TWINS = flag("API_CAMEL_CASE_TWINS", default=True)
METRICS_TOKEN = os.environ.get("METRICS_TOKEN", "")
API_MAX_BODY_BYTES = 5 * 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = API_MAX_BODY_BYTES

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "workflows.api.authentication.AgentTokenAuthentication",
        "workflows.api.authentication.StaffSessionAuthentication",
        "workflows.api.authentication.AnonymousLoopbackAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["workflows.api.permissions.IsKnownActor"],
    "DEFAULT_PARSER_CLASSES": ["workflows.api.parsers.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["workflows.api.renderers.RunJSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "workflows.api.negotiation.FirstRenderer",
    "URL_FORMAT_OVERRIDE": None,
    "EXCEPTION_HANDLER": "dispatcher_project.api_errors.handle",
    "UNAUTHENTICATED_USER": None,
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Workflow Dispatcher",
    "DESCRIPTION": "Runs of work for fleets of AI agents: queued, dispatched, claimed, kept alive, completed.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "workflows.api.openapi.complete"],
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# --- Tunables -------------------------------------------------------------------------------------------------------

_tunables = conf.read(os.environ)
DISPATCHER_POLL_INTERVAL_MS = _tunables["DISPATCHER_POLL_INTERVAL_MS"]
DISPATCHER_STALE_DISPATCH_MS = _tunables["DISPATCHER_STALE_DISPATCH_MS"]
DISPATCHER_STALE_CLAIM_MS = _tunables["DISPATCHER_STALE_CLAIM_MS"]
DISPATCHER_MAX_DISPATCH_RETRIES = _tunables["DISPATCHER_MAX_DISPATCH_RETRIES"]
DISPATCHER_BATCH_SIZE = _tunables["DISPATCHER_BATCH_SIZE"]
MONITOR_POLL_INTERVAL_MS = _tunables["MONITOR_POLL_INTERVAL_MS"]
MONITOR_STALE_TIMEOUT_MINUTES = _tunables["MONITOR_STALE_TIMEOUT_MINUTES"]

# --- Logging --------------------------------------------------------------------------------------------------------

LOG_LEVEL = os.environ.get("LOG_LEVEL", "INFO").upper()
if LOG_LEVEL not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
    raise ImproperlyConfigured("LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR.")
LOGGING_CONFIG = "dispatcher_project.logs.configure"
LOGGING = {"level": LOG_LEVEL, "json": flag("LOG_JSON")}
