"""Open-world suites as declared: one data set, how its classes are hidden, what is learned from it."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from offmap.bench.suites import SetSpec
from offmap.errors import InputError
from offmap.learning import objective, registered
from offmap.learning.closed_form import SPECTRAL
from offmap.metrics.clustering import Convention

BUILT_IN = Path(__file__).with_name("declared") / "open_world"
BASELINES = ("k-means", "ss-k-means", "discover")
ALL = "all"
Classes = Literal["given", "estimated"]
Measure = Convention | Literal["apart", "test"]


@dataclass(frozen=True)
class OpenWorldProtocol:
    """How an open-world suite is measured.

    Parameters
    ----------
    seeds, first_seed : int, default=5 and 0
        Runs of every method; the seed chooses the split as well.
    limit : int, optional
        At most so many inputs, drawn by the seed.
    classes : {"given", "estimated"}, default="given"
        Whether methods are told how many classes there are.
    """

    seeds: int = 5
    first_seed: int = 0
    limit: int | None = None
    classes: Classes = "given"

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.first_seed < 0:
            raise InputError(f"seeds={self.seeds}, first_seed={self.first_seed}: at least 1 run, from seed 0 on")
        if self.limit is not None and self.limit < 20:
            raise InputError(f"limit={self.limit}: at least 20 inputs are needed to hide classes among")
        if self.classes not in get_args(Classes):
            raise InputError(f"classes={self.classes!r}: 'given' or 'estimated'")


@dataclass(frozen=True)
class OpenWorldSuite:
    """A data set, how its classes are hidden, and what is learned from it.

    Parameters
    ----------
    name, about : str
        As `offmap bench --list` prints them.
    data : SetSpec
        The inputs with their classes.
    split : mapping of str to Any
        Arguments of `open_world_split`, or ``published`` with the name of a published split.
    methods : tuple of str
        Objectives and baselines; ``all`` stands for every one that is not named.
    settings : mapping of str to Any
        Settings of `offmap.learn`, for every objective that has them; ``encoder`` and ``preset`` among them.
    protocol : OpenWorldProtocol
        Seeds, limits, whether the number of classes is given.
    thesis : mapping of str to mapping of str to float
        Figures printed in the thesis, in per cent: by method, then ``all``, ``known``, ``novel``.
    convention : str, default="orca"
        The convention of those figures.
    test : SetSpec, optional
        Inputs that are not there in learning. With them inputs are also told apart as in the thesis' section 6.5
        (`offmap.bench.open_world_apart`), the unlabelled ones (``apart``) and these (``test``).
    thesis_test : mapping of str to mapping of str to float
        Figures printed in the thesis for those.
    """

    name: str
    about: str
    data: SetSpec
    split: Mapping[str, Any]
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: OpenWorldProtocol = field(default_factory=OpenWorldProtocol)
    thesis: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    convention: Measure = "orca"
    test: SetSpec | None = None
    thesis_test: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A checksum of the data's declaration, split and settings: results of another one are not continued."""
        told = [self.data.source, self.split, self.settings, self.protocol.limit]
        told += [] if self.test is None else [self.test.source]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def list_open_world() -> dict[str, Path]:
    """List the open-world suites that come with offmap: their files by name.

    Examples
    --------
    >>> "open-digits" in list_open_world()
    True
    """
    return {file.stem: file for file in sorted(BUILT_IN.glob("*.toml"))}


def is_open_world(name: str | os.PathLike[str]) -> bool:
    """Tell whether a name or file is an open-world suite: one of the built-in ones, or a file with a [split].

    Examples
    --------
    >>> is_open_world("open-digits"), is_open_world("digits")
    (True, False)
    """
    if os.fspath(name) in list_open_world():
        return True
    file = Path(name)
    if file.suffix != ".toml" or not file.is_file():
        return False
    return "split" in _read_toml(file)


def load_open_world(name: str | os.PathLike[str]) -> OpenWorldSuite:
    """Load an open-world suite by its name, or from a TOML file of one's own.

    Parameters
    ----------
    name : str or path
        A name that `list_open_world` gives, or a file.

    Returns
    -------
    OpenWorldSuite

    Examples
    --------
    >>> load_open_world("open-digits").split["known"]
    5
    """
    known = list_open_world()
    file = known.get(os.fspath(name), Path(name))
    if not file.is_file():
        raise InputError(f"{os.fspath(name)}: no such suite; there are {', '.join(known)}, or name a .toml file")
    declared, words = _read_toml(file), {made.name for made in fields(OpenWorldSuite)} - {"name"}
    if strange := sorted(declared.keys() - words):
        raise InputError(f"suite {file.stem}: {strange[0]!r} is not known; there are {', '.join(sorted(words))}")
    for word in ("data", "split", "methods"):
        if not declared.get(word):
            raise InputError(f"suite {file.stem}: [{word}] is missing; a suite has data, split and methods")
    protocol = declared.get("protocol", {})
    if strange := sorted(protocol.keys() - {made.name for made in fields(OpenWorldProtocol)}):
        raise InputError(f"suite {file.stem}, [protocol]: {strange[0]!r} is not known")
    return OpenWorldSuite(
        name=file.stem,
        about=str(declared.get("about", "")),
        data=SetSpec("data", declared["data"]),
        split=declared["split"],
        methods=tuple(map(str, declared["methods"])),
        settings=declared.get("settings", {}),
        protocol=OpenWorldProtocol(**protocol),
        thesis=declared.get("thesis", {}),
        convention=declared.get("convention", "orca"),
        test=SetSpec("test", declared["test"]) if "test" in declared else None,
        thesis_test=declared.get("thesis_test", {}),
    )


def expand_open_world(methods: Sequence[str]) -> list[str]:
    """Fill in ``all`` and refuse names that are neither an objective nor a baseline.

    Parameters
    ----------
    methods : sequence of str
        Objectives and baselines.

    Returns
    -------
    list of str
        Each once, in order.

    Examples
    --------
    >>> expand_open_world(["gcd", "all"])[:2]
    ['gcd', 'k-means']
    """
    every = [*BASELINES, SPECTRAL, *registered()]
    named: list[str] = []
    for name in methods:
        named += [other for other in every if other not in methods] if name == ALL else [name]
    for name in named:
        if name not in BASELINES and name != SPECTRAL:
            objective(name)
    return list(dict.fromkeys(named))


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not readable as TOML ({error})") from error
