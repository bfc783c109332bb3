"""Who is doing this? Comes from the credentials alone: never from a body, a header or the spelling of an id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Actor:
    """`role` and `capabilities` are an agent's; `operates` is a staff person's permission to act as an operator."""

    kind: Literal["agent", "staff", "system"]
    id: str
    role: str = ""
    capabilities: frozenset[str] = frozenset()
    operates: bool = False

    # DRF and Django ask these of `request.user`.
    is_authenticated = True
    is_anonymous = False
    is_active = True

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"

    @property
    def pk(self) -> str:
        return str(self)


DISPATCHER = Actor("system", "dispatcher")
MONITOR = Actor("system", "monitor")
