"""Learned versions and proposals on disk: each a folder that is complete before the journal knows of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

import offmap
from offmap import store
from offmap.errors import StoreError
from offmap.openworld import (
    ClassifierUpdate,
    Deployment,
    KnownExamples,
    KnownSplits,
    LabeledInputs,
    LearningState,
    Round,
)
from offmap.openworld.state import read_with_network
from offmap.service.triage.inputs import clone_network
from offmap.service.triage.journal import Journal
from offmap.service.triage.records import Version

FOLDER = "versions"
PROPOSALS = "proposals"


def new_folder(root: Path) -> Path:
    """Make a folder without a number, for `keep_version`."""
    folder = root / f".new-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir(parents=True)
    return folder


def write_version(store_dir: Path, done: Round) -> Path:
    """Write a learned version and the inputs it was learned from into a new folder without a number.

    Parameters
    ----------
    store_dir : Path
        The folder of the service.
    done : Round
        From `offmap.openworld.learn_classes`.

    Returns
    -------
    Path
        The new folder, for `keep_version`.
    """
    folder = new_folder(store_dir / FOLDER)
    done.new.detector.save(folder / "guard.offmap")
    done.new.learned.save(folder)
    tensors = {"features": done.candidates.features, "labels": done.candidates.labels}
    if done.candidates.inputs is not None:
        tensors["inputs"] = done.candidates.inputs
    config = {"class_names": list(done.new.known.class_names), "seed": done.settings["seed"]}
    if done.candidates.texts is not None:
        config["texts"] = done.candidates.texts.tolist()
    store.save(folder / "pile.offmap", "pile", config, tensors)
    return folder


def keep_version(folder: Path, number: int) -> Path:
    """Give a written folder its number."""
    final = folder.parent / str(number)
    if final.exists():
        shutil.rmtree(final)  # of a number that the journal never assigned: a leftover of a crash
    os.replace(folder, final)
    return final


def clear_leftovers(store_dir: Path) -> None:
    """Remove folders of grouping and learning that were interrupted."""
    for root in (FOLDER, PROPOSALS):
        for folder in (store_dir / root).glob(".new-*"):
            shutil.rmtree(folder, ignore_errors=True)


def list_ancestors(journal: Journal, number: int) -> list[Version]:
    """List a version and those it was learned on top of, the first one first."""
    found: list[Version] = []
    while number:
        version = journal.version(number)
        if version is None:
            raise StoreError(f"version {number} is not in the journal")
        found.append(version)
        number = version.parent
    return found[::-1]


def load_version(store_dir: Path, journal: Journal, number: int, base: Deployment) -> Deployment:
    """Load a version with a network of its own, as other threads run those of other versions.

    Parameters
    ----------
    store_dir : Path
        The folder of the service.
    journal : Journal
        Of the same folder.
    number : int
        The version; 0 is `base`.
    base : Deployment
        What the service was started with.

    Returns
    -------
    Deployment
        To be put in service.
    """
    network, learned, examples = base.network, None, base.examples
    for version in list_ancestors(journal, number):
        folder = store_dir / FOLDER / str(version.id)
        learned = ClassifierUpdate.load(folder, base.network)
        network = learned.network or network
        examples = None if examples is None else _add_learned(examples, folder)
    network = clone_network(network)
    if learned is None:
        return replace(base, network=network)
    detector = offmap.load(store_dir / FOLDER / str(number) / "guard.offmap")
    return Deployment(detector, learned.deployable(network), learned.class_names, base.encoder, examples, base.pictures)


def _add_learned(examples: KnownExamples, folder: Path) -> KnownExamples:
    """Return the examples with the texts that a version was learned from, where its folder holds them."""
    stored = store.load(folder / "pile.offmap", "pile")
    if "texts" not in stored.config:
        return examples
    store.check_fields("pile", stored.config, {"texts": list})
    learned = np.flatnonzero(stored.tensors["labels"] >= 0)
    texts = [str(stored.config["texts"][row]) for row in learned]
    features, labels = stored.tensors["features"][learned], stored.tensors["labels"][learned]
    return examples.add(KnownExamples(texts, features, labels)).sample()


@store.restoring("learned version")
def load_state(store_dir: Path, journal: Journal, number: int, first: LearningState) -> LearningState:
    """Load the state of the loop at a version; `first` is the one that the service was started with."""
    state = first
    for version in list_ancestors(journal, number):
        folder = store_dir / FOLDER / str(version.id)
        learned = ClassifierUpdate.load(folder, first.network)
        stored = store.load(folder / "pile.offmap", "pile")
        part = LabeledInputs.of(stored.tensors["features"], stored.tensors["labels"], stored.tensors.get("inputs"))
        known: KnownSplits = state.known.add_groups(part, tuple(stored.config["class_names"]), stored.config["seed"])
        if learned.network is not None:
            known = read_with_network(learned.network, known)
        state = LearningState(offmap.load(folder / "guard.offmap"), learned, known, learned.network or state.network)
    return state
