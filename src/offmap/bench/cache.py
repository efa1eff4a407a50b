"""Activations of sets, computed once: folders named by the content they were made from.

The name holds a checksum of weights, inputs, scaling and passes, so changed weights or data never find an old folder;
`Network.extract` compares every batch with what the folder was made from once more, and resumes a run cut short.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activations import Activations, Head
from offmap.bench.networks import BenchNetwork
from offmap.bench.sets import LoadedSet
from offmap.errors import InputError
from offmap.extra_passes import BatchStatistics, Request, Requirements

CHECKED = 16  # stored features are compared with the network itself on so many inputs
TOLERANCE = 0.02  # float16 features of size up to 16 are rounded by up to 0.004


def locate_cache() -> Path:
    """Return the folder for activations and trained weights, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "offmap" / "bench"


@dataclass
class Extractor:
    """Extracts activations of sets through one network, or finds them in the cache.

    Parameters
    ----------
    network : BenchNetwork
        The network.
    folder : Path
        Folder of the cache.
    batch_size : int, default=32
        Inputs per pass.
    fresh : bool, default=False
        Run the network even where stored features are declared.
    on_step : callable, optional
        Called with a short text when a step begins.
    log : dict
        Where each set's activations came from; filled while extracting.
    """

    network: BenchNetwork
    folder: Path
    batch_size: int = 32
    fresh: bool = False
    on_step: Callable[[str], None] = lambda words: None
    log: dict[str, dict[str, Any]] = field(default_factory=dict)
    _head: Head | None = field(default=None, repr=False)

    def head(self, like: LoadedSet) -> Head | None:
        """Return the network's last linear layer, found by running it on one input."""
        if self._head is None:
            (first, *_rest) = self.network.batches(LoadedSet(like.name, like.samples[:1]), 1)
            self.network.net(first[0] if isinstance(first, tuple) else first)
            self._head = self.network.net.head
        return self._head

    def extract_plain(self, loaded: LoadedSet, like: LoadedSet | None = None) -> Activations:
        """Extract features, logits and labels.

        Parameters
        ----------
        loaded : LoadedSet
            The set.
        like : LoadedSet or None, default=None
            A set with inputs, where this one has only features.

        Returns
        -------
        Activations
            Mapped from the cache.
        """
        stored = loaded.stored
        weights = self.network.weights
        belongs = stored is not None and weights is not None and stored.belongs_to(weights)
        if stored is not None and belongs and not (self.fresh and loaded.can_run):
            features = stored.features()
            head = self.head(loaded if loaded.can_run else _required(like, loaded))
            acts = Activations(features, head, labels=loaded.samples.labels)
            largest = self._compare_stored(loaded, acts) if loaded.can_run else None
            self.log[loaded.name] = {
                "inputs": len(loaded), "from": f"stored features, {stored.file.name}", "largest difference": largest,
            }  # fmt: skip
            return acts
        if stored is not None and not loaded.can_run:
            raise InputError(
                f"{stored.file}: these features were not made with the weights {weights}, and there are no inputs "
                "to run the network on"
            )
        return self.extract(loaded, None)

    def _compare_stored(self, loaded: LoadedSet, acts: Activations) -> float:
        """Run the network on a few inputs and compare with what is stored; return the largest difference."""
        rows = np.linspace(0, len(loaded) - 1, min(CHECKED, len(loaded))).astype(int)
        few = LoadedSet(loaded.name, loaded.samples[rows])
        again = self.network.net.extract(self.network.batches(few, self.batch_size), progress=False)
        largest = float(np.abs(again.features - acts.features[rows]).max())
        if largest > TOLERANCE:
            raise InputError(f"{loaded.name}: stored features differ by {largest:.3g} from what the network says")
        return largest

    def extract(self, loaded: LoadedSet, request: Request | None) -> Activations:
        """Run one pass over the inputs, with one extra pass where asked for.

        Parameters
        ----------
        loaded : LoadedSet
            The set.
        request : Request or None
            The extra pass.

        Returns
        -------
        Activations
            Mapped from the cache.
        """
        extras = () if request is None else (request,)
        folder = self.folder / f"{_plain_name(loaded.name)}-{self._key(loaded, extras)}"
        if not folder.exists():
            words = "" if request is None else f" for {request.key}"
            self.on_step(f"running {self.network.name} over {len(loaded)} inputs of {loaded.name}{words}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        acts = self.network.net.extract(
            self.network.batches(loaded, self.batch_size), requirements=Requirements(extras=extras), to=folder
        )
        self.log[loaded.name if request is None else f"{loaded.name}: {request.key}"] = {
            "inputs": len(loaded), "from": "the network", "seconds": round(time.perf_counter() - started, 1),
        }  # fmt: skip
        return acts

    def extract_passes(self, loaded: LoadedSet, requests: tuple[Request, ...]) -> Activations:
        """Extract features, logits, labels and extra passes; each pass is kept by itself, so that methods share them.

        Parameters
        ----------
        loaded : LoadedSet
            The set.
        requests : tuple of Request
            The extra passes.

        Returns
        -------
        Activations
            Mapped from the cache.
        """
        if not loaded.can_run:
            raise InputError(f"{loaded.name}: only features are at hand, no inputs to send through the network again")
        parts = [self.extract(loaded, request) for request in requests]
        extras = {name: array for part in parts for name, array in part.extras.items()}
        first = parts[0]
        return Activations(first.features, first.head, first.given_logits, loaded.samples.labels, extras)

    def extract_noise(self, n: int, like: LoadedSet, seed: int) -> Activations:
        """Extract activations of N(0, 1) noise, on which parameters are chosen.

        Parameters
        ----------
        n : int
            Number of inputs.
        like : LoadedSet
            A set whose inputs have the shape.
        seed : int
            Seed of the noise.

        Returns
        -------
        Activations
            Mapped from the cache.
        """
        shape = self.network.batches(like, 1).shape
        key = hashlib.sha256(f"{self.network.net.fingerprint()}|{shape}".encode()).hexdigest()[:16]
        folder = self.folder / f"noise-{n}-{seed}-{key}"
        if (folder / "activations.json").is_file():
            return Activations.open(folder)
        self.on_step(f"running {self.network.name} over {n} inputs of noise")
        acts = self.network.net.noise(n, shape, seed=seed, batch_size=self.batch_size)
        folder.parent.mkdir(parents=True, exist_ok=True)
        acts.save(folder)
        return acts

    def _key(self, loaded: LoadedSet, extras: tuple[Request, ...]) -> str:
        network = self.network
        keys = [request.key for request in extras]
        if any(isinstance(request, BatchStatistics) for request in extras):
            keys.append(f"batches of {self.batch_size}")  # this pass depends on its neighbours
        parts = (network.net.fingerprint(), network.net.layer, loaded.digest, network.mean, network.std, *keys)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def hold_out(known: Activations, n: int, seed: int = 0) -> tuple[Activations, Activations]:
    """Split known inputs in two: the rest, and `n` (at most half) to choose parameters on.

    Parameters
    ----------
    known : Activations
        Known inputs.
    n : int
        How many to set aside.
    seed : int, default=0
        Seed of the draw.

    Returns
    -------
    rest, held : Activations

    Examples
    --------
    >>> rest, held = hold_out(Activations(np.zeros((10, 2))), 3)
    >>> len(rest), len(held)
    (7, 3)
    """
    order = np.random.default_rng(seed).permutation(len(known))
    n = min(n, len(known) // 2)
    return known[np.sort(order[n:])], known[np.sort(order[:n])]


def _required(like: LoadedSet | None, loaded: LoadedSet) -> LoadedSet:
    if like is None:
        raise InputError(f"{loaded.name}: only features are at hand; a set with inputs is needed to find the head")
    return like


def _plain_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
