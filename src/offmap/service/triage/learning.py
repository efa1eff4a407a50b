"""Group and learn unknown inputs; `offmap.service.triage.process` runs this beside the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap.discovery import Discovery
from offmap.errors import InputError
from offmap.openworld import Deployment, LearningState, learn_classes, propose, start
from offmap.service.requests import TEXT
from offmap.service.settings import Settings
from offmap.service.triage import versions
from offmap.service.triage.inputs import KnownData, clone_network, read_unknown_inputs
from offmap.service.triage.journal import Journal
from offmap.service.triage.naming import name_by_model
from offmap.service.triage.proposal import Proposal, load_proposal, save_proposal
from offmap.service.unknowns import UnknownStore

KEYWORDS = 6  # of a group, on the page
MAX_TEXT = 10_000  # characters of each text that keywords and names are taken from
MIN_INPUTS = 10  # unknown inputs that can be grouped
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LearnedVersion:
    """A version that was learned and written, not yet in the journal.

    Parameters
    ----------
    folder : str
        From `offmap.service.triage.versions.write_version`.
    outcome : dict
        From `offmap.openworld.Round.to_json`.
    learned, discarded : list of str
        Ids of unknown inputs that are resolved or discarded once it is in service.
    """

    folder: str
    outcome: dict[str, Any]
    learned: list[str]
    discarded: list[str]


@dataclass(frozen=True)
class ProposedGroups:
    """Groups that were found and written, not yet in the journal.

    Parameters
    ----------
    folder : str
        From `offmap.service.triage.proposal.save_proposal`.
    ids : list of str
        The unknown inputs that were grouped.
    """

    folder: str
    ids: list[str]


@dataclass
class Workspace:
    """Everything that grouping and learning read.

    Parameters
    ----------
    base : Deployment or None
        What the service was started with; its network must not be run by another thread. Grouping without labelled
        data needs none.
    known : KnownData or None
        Labelled data of the known classes; without it inputs can be grouped, but not learned.
    settings : Settings
        Of the service.
    unknowns : UnknownStore
        The unknown inputs.
    journal : Journal
        Knows the version in service.
    width : int or None, default=None
        The number of stored features to group by where there are no labelled data; the most frequent one when `None`.
    """

    base: Deployment | None
    known: KnownData | None
    settings: Settings
    unknowns: UnknownStore
    journal: Journal
    width: int | None = None
    _state: tuple[int, LearningState] | None = None

    def load_state(self) -> LearningState:
        """Return the state of the loop for the version in service."""
        assert self.known is not None
        assert self.base is not None
        current = self.journal.current
        if self._state is None or self._state[0] != current:
            network = clone_network(self.base.network)
            runs = None if self.base.maps_features else network
            known = self.known.read(runs, self.base.class_names, self.settings, self.base.encoder)
            first = start(self.base.detector, known, network)
            self._state = current, versions.load_state(self.settings.store_dir, self.journal, current, first)
        return self._state[1]

    def load_proposal(self) -> Proposal | None:
        """Load the open proposal with its edits; `None` without one."""
        found = self.journal.open_proposal()
        if found is None:
            return None
        number, ids = found
        return load_proposal(self.proposal_folder(number), number, ids, self.journal)

    def proposal_folder(self, number: int) -> Path:
        """Return the folder of a proposal."""
        return self.settings.store_dir / versions.PROPOSALS / str(number)

    def group(self, progress: Progress) -> ProposedGroups:
        """Group the newest unknown inputs, and write the groups.

        Parameters
        ----------
        progress : callable
            Called with words and the share that is done.

        Returns
        -------
        ProposedGroups
            In a folder without a number.
        """
        ids, found = self.find_groups(progress)
        folder = versions.new_folder(self.proposal_folder(0).parent)
        save_proposal(folder, found)
        return ProposedGroups(str(folder), ids)

    def find_groups(self, progress: Progress) -> tuple[list[str], Discovery]:
        """Find groups in the newest unknown inputs.

        Parameters
        ----------
        progress : callable
            Called with words and the share that is done.

        Returns
        -------
        ids : list of str
            The inputs that were grouped.
        found : Discovery
            Their groups; beside the known classes where there are labelled data.
        """
        progress("reading the labelled inputs", 0.02)
        state = None if self.known is None else self.load_state()
        progress("reading the unknown inputs", 0.15)
        network, width = (None, self.width) if state is None else (state.network, _width(state))
        ids, inputs = read_unknown_inputs(self.unknowns, network, width, self.settings, keep_inputs=False)
        if len(ids) < MIN_INPUTS:
            raise InputError(f"{len(ids)} unknown inputs can be compared; at least {MIN_INPUTS} are needed for groups")
        progress(f"looking for groups in {len(ids)} inputs", 0.25)
        texts = self.read_texts(ids)

        def on_step(words: str, share: float) -> None:
            progress(words, 0.25 + 0.7 * share)

        if state is not None:
            found = propose(state, inputs, texts=texts, on_step=on_step)
        else:
            from offmap.discovery import discover

            found = discover(inputs.features, texts=texts, on_step=on_step)
        progress("naming the groups", 0.95)
        return ids, found if texts is None else name_by_model(found, texts, self.settings)

    def find_keywords(self, proposal: Proposal) -> dict[int, str]:
        """Return the words that are frequent in each group of texts and rare in the others; none for other inputs."""
        from offmap.discovery.naming import suggest_names

        texts = self.read_texts(proposal.ids)
        return {} if texts is None else suggest_names(texts, proposal.labels, words=KEYWORDS)

    def learn(self, proposal: Proposal, progress: Progress, **options: Any) -> LearnedVersion:
        """Learn the named groups of a proposal, and write the new version.

        Parameters
        ----------
        proposal : Proposal
            With names.
        progress : callable
            Called with words and the share that is done.
        **options : Any
            Of `offmap.openworld.learn_classes`.

        Returns
        -------
        LearnedVersion
            In a folder without a number.
        """
        state = self.load_state()
        if proposal.n_known != len(state.known.class_names):
            raise InputError("the groups were made beside other known classes; group the unknown inputs again")
        width = _width(state)
        ids, inputs = read_unknown_inputs(self.unknowns, state.network, width, self.settings, proposal.ids)
        if len(ids) < len(proposal.ids):
            raise InputError("some inputs of these groups are no longer stored; group the unknown inputs again")
        labelled, names = proposal.label_inputs(inputs, len(state.known.class_names))
        texts = None if self.base is None or self.base.examples is None else self.read_texts(ids)
        if texts is not None:  # answers show the nearest known text, of the new classes too
            labelled = replace(labelled, texts=np.array(texts, object))
        done = learn_classes(state, labelled, names, progress=progress, discovery=proposal.found, **options)
        folder = versions.write_version(self.settings.store_dir, done)
        learned = [id for id, label in zip(ids, labelled.labels, strict=True) if label >= 0]
        return LearnedVersion(str(folder), done.to_json(), learned, proposal.discarded())

    def read_texts(self, ids: list[str]) -> list[str] | None:
        """Return unknown inputs as texts: what was sent, or their references when all have several words."""
        items = self.unknowns.get(ids, contents=False)  # those of images may not fit in memory
        if len(items) < len(ids):
            return None
        if items and all(item.content_type == TEXT for item in items):
            blocks = self.unknowns.iter_blocks(ids=ids)
            sent = [(item.content or b"").decode()[:MAX_TEXT] for block in blocks for item in block]
            return sent if len(sent) == len(ids) else None
        texts = [item.reference or "" for item in items]
        return texts if texts and all(" " in text for text in texts) else None


def _width(state: LearningState) -> int:
    """Return the number of features that groups are made by, before any learned map of them."""
    return int(state.known.train.features.shape[1])
