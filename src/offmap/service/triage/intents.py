"""Deploying and rolling back on disk: the states of unknown inputs and the journal change together, or not at all.

The journal holds the intent from before the first write until after the last, so that what a crash interrupts is
finished later.
"""

from __future__ import annotations

import logging

from offmap.errors import StoreError
from offmap.service.triage.journal import Journal
from offmap.service.triage.records import Intent
from offmap.service.unknowns import UnknownStore

_log = logging.getLogger(__name__)


def finish_intent(journal: Journal, unknowns: UnknownStore) -> Intent | None:
    """Finish a deployment or rollback that had begun; doing a part of it again changes nothing.

    Parameters
    ----------
    journal : Journal
        Holds the intent, where there is one.
    unknowns : UnknownStore
        The inputs that are resolved, discarded or open again.

    Returns
    -------
    Intent or None
        What was finished.
    """
    intent = journal.intent
    if intent is not None:
        unknowns.set_statuses(_statuses(journal, intent))
        journal.finish(intent)
    return intent


def undo_intent(journal: Journal, unknowns: UnknownStore, intent: Intent) -> None:
    """Take back an intent that could not be finished; where that fails too, it stays in the journal to be finished.

    Parameters
    ----------
    journal : Journal
        Holds the intent.
    unknowns : UnknownStore
        The inputs that get their earlier states back.
    intent : Intent
        What had begun.
    """
    opposite = Intent("rollback" if intent.action == "deploy" else "deploy", intent.version)
    try:
        unknowns.set_statuses(_statuses(journal, opposite))
        journal.abandon()
    except StoreError as error:
        _log.error("the %s is finished once the store can be written again: %s", intent.action, error)


def _statuses(journal: Journal, intent: Intent) -> dict[str, list[str]]:
    version = journal.intended_version(intent)
    if intent.action == "deploy":
        return {"resolved": version.learned, "discarded": version.discarded}
    return {"open": version.learned + version.discarded}
