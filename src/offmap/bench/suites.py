"""Suites as declared: networks, known sets, unknown sets, methods and protocol, read from short TOML files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from offmap.errors import InputError

BUILT_IN = Path(__file__).with_name("declared")
ALL = "all"
SPECTRUM = ", full spectrum"  # of a group in [published]: shifted known inputs count as known


@dataclass(frozen=True)
class SetSpec:
    """One set of inputs: its name, where it comes from as `offmap.bench.sets` reads it, and its group if it has one."""

    name: str
    source: Mapping[str, Any]
    group: str = ""


@dataclass(frozen=True)
class NetworkSpec:
    """One network: its name, its kind, and the options of that kind as `offmap.bench.networks` reads them."""

    name: str
    kind: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class SuiteSources:
    """Where the sets and weights of a suite are published, for ``offmap bench SUITE --get``.

    Parameters
    ----------
    sets : tuple of str, default=()
        Names of `offmap.bench.downloads.SETS`.
    weights, sha256 : str, default=""
        The address of a network's published weights, and their checksum; none by default.
    accuracy : float, optional
        The share of the suite's test inputs that the network is to get right, in per cent.
    """

    sets: tuple[str, ...] = ()
    weights: str = ""
    sha256: str = ""
    accuracy: float | None = None


@dataclass(frozen=True)
class Protocol:
    """The settings of a measurement.

    Parameters
    ----------
    limit : int, optional
        At most so many inputs per set, drawn by a fixed seed; all by default. Networks are trained on all of [train].
    passes_limit : int, optional
        At most so many for methods that send every input through the network again (ODIN, Mahalanobis with a step, …).
    noise : int, default=500
        Inputs of Gaussian noise on which parameters given as ``auto`` are chosen (thesis, appendix A.2.2).
    held_out : int, default=2000
        Known inputs set aside for that choice when the suite declares no validation set.
    batch_size : int, default=32
        Inputs per pass.
    seeds : int, default=3
        Runs of methods that draw random numbers.
    """

    limit: int | None = None
    passes_limit: int | None = None
    noise: int = 500
    held_out: int = 2000
    batch_size: int = 32
    seeds: int = 3

    def __post_init__(self) -> None:
        for name in ("limit", "passes_limit"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise InputError(f"{name}={value}: a set needs at least 2 inputs to be measured")
        for name in ("noise", "held_out", "batch_size", "seeds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: at least 1 is needed")


@dataclass(frozen=True)
class Suite:
    """A benchmark: networks, sets, methods and protocol.

    Attributes
    ----------
    name, about : str
        As `offmap bench --list` prints them.
    networks : tuple of NetworkSpec
        Each is measured by itself.
    known, test, val : SetSpec
        Known inputs to fit on, to test on, and to choose parameters on; without `val` some of `known` are held out.
    ood : tuple of SetSpec
        The unknown sets.
    shifted : tuple of SetSpec
        Known inputs that look otherwise (a covariate shift, such as noise or blur): reported apart, and counted as
        known inputs in the full-spectrum figures.
    methods : tuple of str
        Text forms of detectors; ``all`` stands for every method in the registry that is not named otherwise.
    thesis : mapping
        Figures printed in the thesis, in per cent: by unknown set, then by method, FPR95 and, where it is printed,
        AUROC.
    published : mapping
        AUROCs published elsewhere for groups of unknown sets, in per cent: by group, then by method.
    train : SetSpec or None
        Inputs that networks trained here learn from.
    outliers : SetSpec or None
        Unknown inputs to choose parameters on, in place of noise; never those that are tested on.
    sources : SuiteSources
        Where its sets and weights can be fetched.
    """

    name: str
    about: str
    networks: tuple[NetworkSpec, ...]
    known: SetSpec
    test: SetSpec
    ood: tuple[SetSpec, ...]
    methods: tuple[str, ...]
    val: SetSpec | None = None
    train: SetSpec | None = None
    outliers: SetSpec | None = None
    shifted: tuple[SetSpec, ...] = ()
    protocol: Protocol = field(default_factory=Protocol)
    thesis: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    sources: SuiteSources = field(default_factory=SuiteSources)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def list_built_in() -> dict[str, Path]:
    """List the suites that come with offmap: their files by name.

    Examples
    --------
    >>> "digits" in list_built_in()
    True
    """
    return {file.stem: file for file in sorted(BUILT_IN.glob("*.toml"))}


def load_suite(name: str | os.PathLike[str]) -> Suite:
    """Load a suite by its name, or from a TOML file of one's own.

    Parameters
    ----------
    name : str or path
        A name that `list_built_in` gives, or a file.

    Returns
    -------
    Suite

    Examples
    --------
    >>> suite = load_suite("digits")
    >>> suite.name, [ood.name for ood in suite.ood][0]
    ('digits', 'unseen digits')
    """
    known = list_built_in()
    file = known.get(os.fspath(name), Path(name))
    if not file.is_file():
        raise InputError(f"{os.fspath(name)}: no such suite; there are {', '.join(known)}, or name a .toml file")
    try:
        declared = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not readable as TOML ({error})") from error
    return parse_suite(declared, file.stem)


def parse_suite(declared: Mapping[str, Any], name: str) -> Suite:
    """Build a suite from the content of its file; anything unknown or missing is refused by name.

    Parameters
    ----------
    declared : mapping
        The content of the TOML file.
    name : str
        Name of the suite.

    Returns
    -------
    Suite
    """
    words = {
        "about",
        "network",
        "known",
        "test",
        "val",
        "train",
        "outliers",
        "ood",
        "shifted",
        "methods",
        "protocol",
        "sources",
        "thesis",
        "published",
    }
    _only(declared, words, f"suite {name}")
    for word in ("network", "known", "test", "ood", "methods"):
        if not declared.get(word):
            raise InputError(f"suite {name}: [{word}] is missing; a suite has networks, known, test, ood and methods")
    protocol = declared.get("protocol", {})
    _only(protocol, {made.name for made in fields(Protocol)}, f"suite {name}, [protocol]")
    sources = dict(declared.get("sources", {}))
    _only(sources, {made.name for made in fields(SuiteSources)}, f"suite {name}, [sources]")
    unknown = tuple(_set(f"ood.{key}", key, source, name) for key, source in declared["ood"].items())
    shifted = tuple(_set(f"shifted.{key}", key, source, name) for key, source in declared.get("shifted", {}).items())
    if twice := {part.name for part in shifted} & {part.name for part in unknown}:
        raise InputError(f"suite {name}: {sorted(twice)[0]!r} is both among [ood] and among [shifted]")
    thesis = {ood: _printed(figures, name) for ood, figures in declared.get("thesis", {}).items()}
    if strange := thesis.keys() - {ood.name for ood in unknown}:
        raise InputError(f"suite {name}: [thesis] names {sorted(strange)[0]!r}, which is not among its unknown sets")
    published = {
        group: {method: float(value) for method, value in figures.items()}
        for group, figures in declared.get("published", {}).items()
    }
    if strange := {name.removesuffix(SPECTRUM) for name in published} - {ood.group for ood in unknown}:
        raise InputError(f"suite {name}: [published] names {sorted(strange)[0]!r}, which is no group of its sets")
    return Suite(
        name=name,
        about=str(declared.get("about", "")),
        networks=tuple(_network(key, options, name) for key, options in declared["network"].items()),
        known=_set("known", "known", declared["known"], name),
        test=_set("test", "test", declared["test"], name),
        **{word: _set(word, word, declared[word], name) for word in ("val", "train", "outliers") if word in declared},
        ood=unknown,
        shifted=shifted,
        methods=tuple(map(str, declared["methods"])),
        protocol=Protocol(**protocol),
        thesis=thesis,
        sources=SuiteSources(**{**sources, "sets": tuple(sources.get("sets", ()))}),
        published=published,
    )


def _printed(figures: Mapping[str, Any], name: str) -> dict[str, tuple[float, ...]]:
    """Read what the thesis prints of each method on one set."""
    for method, printed in figures.items():
        if len(printed) not in (1, 2):
            raise InputError(f"suite {name}: [thesis] has {printed} for {method}; FPR95, or FPR95 and AUROC")
    return {method: tuple(map(float, printed)) for method, printed in figures.items()}


def _set(place: str, key: str, source: Any, suite: str) -> SetSpec:
    if not isinstance(source, Mapping):
        raise InputError(f"suite {suite}: [{place}] is {source!r}; a table is needed, such as {{ path = 'set.npz' }}")
    rest = {word: value for word, value in source.items() if word not in ("name", "group")}
    return SetSpec(str(source.get("name", key)), rest, str(source.get("group", "")))


def _network(key: str, options: Any, suite: str) -> NetworkSpec:
    if not isinstance(options, Mapping) or "kind" not in options:
        raise InputError(f"suite {suite}: [network.{key}] needs a kind, such as kind = 'onnx'")
    rest = {word: value for word, value in options.items() if word != "kind"}
    return NetworkSpec(key, str(options["kind"]), rest)


def _only(given: Mapping[str, Any], words: set[str], where: str) -> None:
    if strange := sorted(given.keys() - words):
        raise InputError(f"{where}: {strange[0]!r} is not known; there are {', '.join(sorted(words))}")
