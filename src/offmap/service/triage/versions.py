"""Learned versions on disk: each a folder that is written whole before the journal knows of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import offmap
from offmap import store
from offmap.detection import Detector
from offmap.errors import StoreError
from offmap.network import Network
from offmap.openworld import ClassifierUpdate, KnownSplits, LabeledInputs, LearningState, Round
from offmap.openworld.state import with_features_of
from offmap.service.triage.journal import Journal, Version

FOLDER = "versions"


@dataclass(frozen=True)
class InService:
    """A version as the service runs it, and the raw network behind it."""

    guard: Detector
    learned: ClassifierUpdate | None
    network: Network | None
    class_names: tuple[str, ...] | None

    def for_service(self) -> Network | None:
        """The network that goes with the guard."""
        return self.network if self.learned is None else self.learned.deployable(self.network)


def write_version(store_dir: Path, done: Round) -> Path:
    """Write guard, what was learned and the inputs it was learned from into a new folder, not yet numbered."""
    root = store_dir / FOLDER
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f".new-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir()
    done.new.guard.save(folder / "guard.offmap")
    done.new.learned.save(folder)
    tensors = {"features": done.pile.features, "labels": done.pile.labels}
    if done.pile.inputs is not None:
        tensors["inputs"] = done.pile.inputs
    config = {"class_names": list(done.new.known.class_names), "seed": done.settings["seed"]}
    store.save(folder / "pile.offmap", "pile", config, tensors)
    return folder


def keep_version(folder: Path, number: int) -> Path:
    """Give a written folder its number."""
    final = folder.parent / str(number)
    if final.exists():
        shutil.rmtree(final)  # of a number that the journal never gave out: a leftover of a crash
    os.replace(folder, final)
    return final


def clear_leftovers(store_dir: Path) -> None:
    """Remove folders of learning that was cut short."""
    for folder in (store_dir / FOLDER).glob(".new-*"):
        shutil.rmtree(folder, ignore_errors=True)


def chain(journal: Journal, number: int) -> list[Version]:
    """A version and those it stands on, the first one first."""
    found: list[Version] = []
    while number:
        version = journal.version(number)
        if version is None:
            raise StoreError(f"version {number} is not in the journal")
        found.append(version)
        number = version.parent
    return found[::-1]


def load_version(store_dir: Path, journal: Journal, number: int, base: InService) -> InService:
    """A version as it was when it was made; 0 is `base`."""
    current = base
    for version in chain(journal, number):
        folder = store_dir / FOLDER / str(version.id)
        learned = ClassifierUpdate.load(folder, base.network)
        network = learned.network or current.network
        guard = offmap.load(folder / "guard.offmap")
        current = InService(guard, learned, network, learned.class_names)
    return current


def load_state(store_dir: Path, journal: Journal, number: int, first: LearningState) -> LearningState:
    """The state of the loop at a version; `first` is the one that the service was started with."""
    state = first
    for version in chain(journal, number):
        folder = store_dir / FOLDER / str(version.id)
        learned = ClassifierUpdate.load(folder, first.network)
        stored = store.load(folder / "pile.offmap", "pile")
        pile = LabeledInputs.of(stored.tensors["features"], stored.tensors["labels"], stored.tensors.get("inputs"))
        known: KnownSplits = state.known.joined(pile, tuple(stored.config["class_names"]), stored.config["seed"])
        if learned.network is not None:
            known = with_features_of(learned.network, known)
        state = LearningState(offmap.load(folder / "guard.offmap"), learned, known, learned.network or state.network)
    return state
