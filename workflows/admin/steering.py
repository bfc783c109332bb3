"""What an operator may do to a run here: the verbs that exist, offered by the run's state, called row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from django import forms

from dispatcher_project.errors import DomainError
from governance.actors import Actor
from governance.rules import may_steer
from workflows import lifecycle
from workflows.models import WorkflowRun
from workflows.states import MOVES

AT_ONCE = 500
MAX_REASON = 5_000


@dataclass(frozen=True, slots=True)
class Offer:
    """`done`: what a run is afterwards. `call(id, actor=, reason=)`: the verb. `allowed`: who may."""

    verb: str
    label: str
    done: str
    warning: str
    call: Callable[..., Any]
    allowed: Callable[[Actor], bool] = may_steer

    def fits(self, state: str, actor: Actor) -> bool:
        return MOVES[self.verb].leaves(state) and self.allowed(actor)


OFFERS: dict[str, Offer] = {
    offer.verb: offer
    for offer in (
        Offer(
            "cancel",
            "Cancel",
            "cancelled",
            "A cancelled run ends for good. An agent at work on it learns that from its next call.",
            lifecycle.cancel,
        ),
    )
}


def offers(state: str, actor: Actor) -> list[Offer]:
    return [offer for offer in OFFERS.values() if offer.fits(state, actor)]


class ReasonForm(forms.Form):
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        help_text="Why? It stands in the run's timeline, beside your name.",
    )


@dataclass(slots=True)
class Outcome:
    done: int = 0
    refusals: list[str] = field(default_factory=list)


def steer(offer: Offer, runs: Iterable[WorkflowRun], *, actor: Actor, reason: str) -> Outcome:
    """Each run by itself: a refusal of one doesn't hold up the others. A repeat is no refusal, and nothing done."""
    outcome = Outcome()
    for run in runs:
        try:
            offer.call(run.pk, actor=actor, reason=reason or None)
        except DomainError as refusal:
            outcome.refusals.append(f"{run.workflow_type} {run.pk}: {refusal.detail}")
        else:
            outcome.done += offer.fits(run.status, actor)
    return outcome
