"""Open-world splits: some classes known and partly labelled, everything else unlabelled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from offmap.data.samples import Samples, encode_labels
from offmap.errors import InputError
from offmap.typing import IntArray

_CLASSES, _SAMPLES = 0, 1  # streams of random numbers that must not meet


class Published(NamedTuple):
    """A published split: the classes of the data set, how many are known, and the share of those that is labelled."""

    classes: int
    known: int
    ratio: float


PUBLISHED = {
    # Novel class discovery (thesis, section 6.5, the division of UNO): the known is labelled, the unlabelled all novel.
    "C10-5": Published(10, 5, 1.0),
    "C100-50": Published(100, 50, 1.0),
    "C100-80": Published(100, 80, 1.0),
    # Open-world learning (thesis, section 7.5; section 8.4, the division of ORCA): half known, half of those labelled.
    "ORCA-C10": Published(10, 5, 0.5),
    "ORCA-C100": Published(100, 50, 0.5),
    "ORCA-IN100": Published(100, 50, 0.5),
}


@dataclass(frozen=True, eq=False)
class OpenWorldSplit:
    """Which samples are labelled, which are not, and which classes are known; made by `open_world_split`.

    Parameters
    ----------
    targets : ndarray of int64
        The true class of every sample; −1 where a sample belongs to none, as an out-of-scope query does.
    known : ndarray of int64
        The known classes, in ascending order.
    labelled : ndarray of int64
        The labelled samples, in ascending order.
    rows : ndarray of int64
        Where the samples stand in the data that was split, in ascending order: all of it, unless the split was made
        of a part.
    classes : tuple of str, default=()
        Names of the classes, by index, when they have names.

    Examples
    --------
    >>> split = open_world_split([0, 0, 1, 1, 2, 2], known=2, ratio=0.5, seed=0)
    >>> split.labels
    array([ 0, -1, -1,  1, -1, -1])
    >>> split.unlabelled, split.novel, split.n_classes
    (array([1, 2, 4, 5]), array([2]), 3)
    """

    targets: IntArray
    known: IntArray
    labelled: IntArray
    rows: IntArray
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return (
            f"OpenWorldSplit({len(self)} samples, {len(self.labelled)} labelled; "
            f"{len(self.known)} known and {len(self.novel)} novel classes)"
        )

    @cached_property
    def labels(self) -> IntArray:
        """The labels that a learner may see: the class where labelled, −1 elsewhere."""
        labels = np.full(len(self), -1, np.int64)
        labels[self.labelled] = self.targets[self.labelled]
        return labels

    @cached_property
    def unlabelled(self) -> IntArray:
        """The samples without a label, in ascending order."""
        return np.flatnonzero(self.labels < 0)

    @cached_property
    def novel(self) -> IntArray:
        """The classes that no label names, in ascending order."""
        return np.setdiff1d(self.targets[self.targets >= 0], self.known)

    @property
    def n_classes(self) -> int:
        """Known and novel classes together."""
        return len(self.known) + len(self.novel)

    @cached_property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """For each sample, whether its true class is a known one."""
        return np.isin(self.targets, self.known)

    @cached_property
    def is_novel(self) -> npt.NDArray[np.bool_]:
        """For each sample, whether its true class is a novel one; samples of no class are neither."""
        return (self.targets >= 0) & ~self.is_known

    def apply(self, samples: Samples) -> Samples:
        """Return the data as a learner may see it: ``labels`` with −1, the truth put aside as ``targets``.

        Examples
        --------
        >>> split = open_world_split(["cat", "cat", "dog"], known=["cat"], ratio=1)
        >>> seen = split.apply(Samples({"features": np.eye(3)}))
        >>> seen.labels, seen.arrays["targets"], seen.classes
        (array([ 0,  0, -1]), array([0, 0, 1]), ('cat', 'dog'))
        """
        if len(self) and self.rows[-1] >= len(samples):
            raise InputError(
                f"{self!r}.apply: it points at sample {self.rows[-1]}, but there are {len(samples)}; "
                "give the data that was split"
            )
        part = samples[self.rows]
        arrays = {**part.arrays, "labels": self.labels, "targets": self.targets}
        return Samples(arrays, self.classes or part.classes, part.names, part.skipped, part.head)

    def split_validation(self, share: float = 0.5, ratio: float = 0.5, seed: int = 0) -> OpenWorldSplit:
        """Split the labelled samples, some known classes taken as novel: validation without novel labels.

        The classes of the labelled samples are divided in two, and part of the samples of those that stay known are
        labelled (thesis, appendix B.3.4).

        Parameters
        ----------
        share : float, default=0.5
            The share of the known classes that stay known.
        ratio : float, default=0.5
            The share of their samples that is labelled.
        seed : int, default=0
            Seed of both choices.

        Returns
        -------
        OpenWorldSplit
            Its `rows` point into the data that this split was made of.

        Examples
        --------
        >>> whole = open_world_split(np.arange(80) % 8, known=4)
        >>> part = whole.split_validation()
        >>> len(part), part.n_classes, bool(np.isin(part.novel, whole.known).all())
        (20, 4, True)
        """
        if len(self.known) < 2:
            raise InputError(
                f"{self!r}.split_validation: two known classes are needed, one to stay known and one to play novel"
            )
        some = int(np.clip(round(share * len(self.known)), 1, len(self.known) - 1))
        rng = np.random.default_rng([seed, _CLASSES])
        kept = np.sort(rng.permutation(self.known)[:some])
        return _split(self.targets[self.labelled], kept, ratio, seed, self.classes, self.rows[self.labelled])


def parse_known(text: str, names: tuple[str, ...] = ()) -> int | float | list[int | str]:
    """Parse known classes as `open_world_split` takes them: so many, a share, or names and numbers with commas.

    Parameters
    ----------
    text : str
        Such as ``"5"``, ``"0.5"`` or ``"cat,dog"``.
    names : tuple of str, optional
        The names of all classes; a number that is also a name is taken for the name.

    Returns
    -------
    int, float or list
        What `open_world_split` takes as `known`.

    Examples
    --------
    >>> parse_known("5"), parse_known("0.5"), parse_known("cat,7")
    (5, 0.5, ['cat', 7])
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0] not in names:
        try:
            return int(parts[0]) if parts[0].isdigit() else float(parts[0])
        except ValueError:
            return [parts[0]]
    return [int(part) if part.isdigit() and part not in names else part for part in parts]


def open_world_split(
    targets: Any,
    known: int | float | Iterable[int | str] = 0.5,
    ratio: float = 0.5,
    seed: int = 0,
    pick: Literal["first", "random"] = "first",
    classes: tuple[str, ...] = (),
) -> OpenWorldSplit:
    """Choose known classes and label part of their samples.

    A class draws its labelled samples from random numbers of its own: more known classes or a larger ratio add
    labels and take none away.

    Parameters
    ----------
    targets : array-like of shape (n,)
        The true class of every sample, as indices or names; −1 for samples of no class, which stay unlabelled. Whether
        the samples are pictures, sentences or rows of a table does not matter.
    known : int, float or iterable of int or str, default=0.5
        The known classes: so many (an integer), such a share of all (a number below 1), or these, by index or name.
    ratio : float, default=0.5
        The share of the samples of a known class that is labelled, rounded down, at least one.
    seed : int, default=0
        Seed of the choice of samples, and of classes if they are picked at random.
    pick : {"first", "random"}, default="first"
        Whether a number or share of classes means the ``"first"``, as the published splits do, or ``"random"`` ones.
    classes : tuple of str, default=()
        Names of the classes, by index, when targets are indices.

    Returns
    -------
    OpenWorldSplit
        The labels, and which classes are known.

    Examples
    --------
    >>> split = open_world_split(np.arange(100) % 10, known=5, ratio=0.5)
    >>> split
    OpenWorldSplit(100 samples, 25 labelled; 5 known and 5 novel classes)
    >>> open_world_split(["a", "b", "b", "c"], known=["b"], ratio=1).labels
    array([-1,  1,  1, -1])
    """
    true, names = encode_labels(np.asarray(targets), "targets")
    names = names or tuple(classes)
    present = np.unique(true[true >= 0])
    if true.size and true.min() < -1:
        raise InputError(f"targets: {true.min()} is not a class; classes count from 0, and −1 stands for no class")
    if len(present) == 0:
        raise InputError("targets: no sample has a class; an open-world split needs true classes to hide")
    return _split(true, _chosen(known, present, names, seed, pick), ratio, seed, names, np.arange(len(true)))


def published_split(name: str, targets: Any, seed: int = 0) -> OpenWorldSplit:
    """Make a split from the literature by its name.

    Classes and shares are the published ones; the samples are drawn by our seed. ``C10-5``, ``C100-50`` and ``C100-80``
    label everything known, so that all unlabelled samples are novel (thesis, chapter 6, section 6.5). ``ORCA-C10``,
    ``ORCA-C100`` and ``ORCA-IN100`` label half of the first half of the classes (thesis, chapter 7, section 7.5).

    Parameters
    ----------
    name : str
        A key of `PUBLISHED`.
    targets : array-like of shape (n,)
        The true classes, by the data set's own indices.
    seed : int, default=0
        Seed of the choice of samples.

    Returns
    -------
    OpenWorldSplit
        The labels, and which classes are known.

    Examples
    --------
    >>> published_split("C10-5", np.arange(100) % 10)
    OpenWorldSplit(100 samples, 50 labelled; 5 known and 5 novel classes)
    >>> published_split("ORCA-C10", np.arange(100) % 10)
    OpenWorldSplit(100 samples, 25 labelled; 5 known and 5 novel classes)
    """
    if name not in PUBLISHED:
        raise InputError(f"published_split({name!r}): the published splits are {', '.join(PUBLISHED)}")
    recipe = PUBLISHED[name]
    split = open_world_split(targets, recipe.known, recipe.ratio, seed)
    if split.n_classes != recipe.classes:
        raise InputError(
            f"published_split({name!r}): the split is of {recipe.classes} classes, the targets have {split.n_classes}; "
            "open_world_split takes any number"
        )
    return split


def _chosen(known: Any, present: IntArray, names: tuple[str, ...], seed: int, pick: str) -> IntArray:
    """Return the known classes as sorted indices."""
    if pick not in ("first", "random"):
        raise InputError(f"pick={pick!r}: classes are picked 'first' or 'random'")
    if isinstance(known, bool | str):
        raise InputError(f"known={known!r}: give a number, a share below 1, or a list of classes")
    if isinstance(known, int | float | np.integer | np.floating):
        whole = isinstance(known, int | np.integer)
        count = int(known) if whole else int(known * len(present) + 0.5)
        if not 1 <= count <= len(present) or not (whole or 0 < known < 1):
            raise InputError(
                f"known={known}: there are {len(present)} classes; name from 1 to {len(present)} of them, or a share "
                "between 0 and 1 that makes at least one"
            )
        order = present if pick == "first" else np.random.default_rng([seed, _CLASSES]).permutation(present)
        return np.sort(order[:count])
    asked = list(known)
    places = {name: place for place, name in enumerate(names)}
    wanted = [places.get(one, -1) if isinstance(one, str) else int(one) for one in asked]
    missing = [one for one, place in zip(asked, wanted, strict=True) if place not in present]
    if missing or not wanted:
        raise InputError(f"known={asked}: no sample is of class {missing or 'any'}; name classes that are there")
    return np.unique(np.array(wanted, np.int64))


def _split(
    true: IntArray, known: IntArray, ratio: float, seed: int, names: tuple[str, ...], rows: IntArray
) -> OpenWorldSplit:
    if not 0 < ratio <= 1:
        raise InputError(f"ratio={ratio}: the share of labelled samples is above 0 and at most 1")
    if seed < 0:
        raise InputError(f"seed={seed}: a seed is a whole number from 0 on")
    parts = []
    for label in known.tolist():
        members = np.flatnonzero(true == label)
        order = np.random.default_rng([seed, _SAMPLES, label]).permutation(members)
        parts.append(order[: max(1, int(ratio * len(members) + 1e-9))])
    return OpenWorldSplit(true, known, np.sort(np.concatenate(parts)), rows, names)
