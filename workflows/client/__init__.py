"""The agents' side of the HTTP contract: `DispatcherClient` and `Worker`, for asyncio too, and the command line
`dispatcher-agent` that is made of them. Imports no Django, and nothing at all before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workflows.client.async_client import AsyncDispatcherClient as AsyncDispatcherClient
    from workflows.client.async_worker import AsyncJob as AsyncJob
    from workflows.client.async_worker import AsyncWorker as AsyncWorker
    from workflows.client.client import DispatcherClient as DispatcherClient
    from workflows.client.errors import ApiProblem as ApiProblem
    from workflows.client.errors import ClientError as ClientError
    from workflows.client.errors import LeaseLost as LeaseLost
    from workflows.client.errors import OutcomeUnknown as OutcomeUnknown
    from workflows.client.errors import TemporaryError as TemporaryError
    from workflows.client.jobs import Failed as Failed
    from workflows.client.jobs import GiveBack as GiveBack
    from workflows.client.jobs import Outcome as Outcome
    from workflows.client.jobs import Retry as Retry
    from workflows.client.jobs import Stopped as Stopped
    from workflows.client.objects import Heartbeat as Heartbeat
    from workflows.client.objects import Run as Run
    from workflows.client.objects import Stats as Stats
    from workflows.client.objects import Usage as Usage
    from workflows.client.worker import Job as Job
    from workflows.client.worker import Worker as Worker

__version__ = "0.1.0"

_MODULES = {
    "async_client": ("AsyncDispatcherClient",),
    "async_worker": ("AsyncJob", "AsyncWorker"),
    "client": ("DispatcherClient",),
    "errors": ("ApiProblem", "ClientError", "LeaseLost", "OutcomeUnknown", "TemporaryError"),
    "jobs": ("Failed", "GiveBack", "Outcome", "Retry", "Stopped"),
    "objects": ("Heartbeat", "Run", "Stats", "Usage"),
    "worker": ("Job", "Worker"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
