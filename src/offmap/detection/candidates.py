"""What ``auto`` can add up: the core that it always takes, and the families that it chooses from.

All lists were settled on the networks that `benchmarks/auto_pairs.py` calls development.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from offmap.activations import Activations
from offmap.columns import has_dominant_columns
from offmap.detection.checks import missing_input
from offmap.detection.evidence import WIDE, Evidence

Budget = Literal["full", "fast"]
SOME = 4096  # inputs that say what features are like

FAMILIES: dict[str, tuple[str, ...]] = {
    "logits": (
        "msp", "energy", "gen", "react(95)|energy", "react(99)|energy", "lts(95)|energy", "ash_s(90)|energy",
        "scale(85)|energy", "dice(0.7)|energy", "entropy",
    ),
    "gaussians": ("mahalanobis", "mahalanobis(0.1)", "mahalanobis_pp", "rmds", "rmds_pp", "plda", "ssd", "gmm(1)"),
    "neighbours": (
        "knn(1)", "knn(10)", "knn(50)", "knn(1, normalize=false)", "knn(10, normalize=false)",
        "knn(1, normalize=false, standardize=true)", "knn(10, normalize=false, standardize=true)",
        "nnguide(10, alpha=1.0)", "slof(20)", "slof(20, normalize=false, standardize=true)",
    ),
    "subspaces": ("vim", "residual", "pca", "pnml", "neco"),
    "geometry": ("she", "fdbd", "nci", "cadref"),
    "gradients": ("grood", "gradnorm"),
}  # fmt: skip
WITHOUT_LABELS = ("ssd", "gmm(1)")  # one Gaussian; with labels the others say more
DIRECTIONS = ("knn(1)", "knn(10)", "knn(50)", "slof(20)", "ssd", "mahalanobis_pp", "rmds_pp")  # blind to lengths
COSTLY = ("mahalanobis", "rmds", "residual", "pnml")  # where features are wide, a relative of each is enough

_STANDARDIZED = "knn(1, normalize=false, standardize=true)"
_LOCAL = ("slof(20)", "slof(20, normalize=false, standardize=true)")
# a rectified unit is near zero for most inputs and large for a few, which decide distances; its root is less skewed
ROOT = "power(0.5)|"
READING_ROOTS = ("plda", _STANDARDIZED, _LOCAL[1])
SEARCHING = (  # what auto(fast) does without
    *FAMILIES["neighbours"], *(ROOT + spec for spec in READING_ROOTS if spec in FAMILIES["neighbours"]), "grood",
)  # fmt: skip
CORES: dict[tuple[str, bool], tuple[str, ...]] = {  # by budget, and whether there are logits
    ("full", True): ("knn(1)", _STANDARDIZED, *_LOCAL, "pca", "lts(95)|energy", "mahalanobis_pp", "plda"),
    ("full", False): ("knn(1)", "knn(1, normalize=false)", _STANDARDIZED, *_LOCAL, "pca", "gmm(1)"),
    ("fast", True): (
        "pca", "lts(95)|energy", "vim", "mahalanobis_pp", "mahalanobis(0.1)", "plda", "cadref",
    ),
    ("fast", False): ("pca", "gmm(1)", "mahalanobis(0.1)"),
}  # fmt: skip
DISTANCES = ("plda", "mahalanobis(0.1)", "rmds_pp", "pca", _LOCAL[1])  # what counts where the network's answers do not
ENOUGH = 10  # inputs per class: with fewer, classes left out are hard to tell apart on any network
LOGITS_ALONE = ("energy", "gen", "msp")  # the core where there are no features


def list_candidates(budget: Budget, known: Activations) -> list[Evidence]:
    """List all candidates of the budget; those that cannot read these activations say what they lack.

    Parameters
    ----------
    budget : {"full", "fast"}
        ``fast`` leaves out methods that search neighbours.
    known : Activations
        Known inputs.

    Returns
    -------
    list of Evidence
        With a `why` where a candidate is not to be tried.

    Examples
    --------
    >>> lacking = {each.spec: each.why for each in list_candidates("full", Activations(np.eye(3)))}
    >>> lacking["msp"], lacking["knn(1)"]
    ('needs logits, which is not there', '')
    """
    wide = known.has_features and known.features.shape[1] > WIDE
    units = known.has_features and not known.has_logits and has_dominant_columns(known.features)
    rectified = has_rectified_features(known)
    found = []
    for family, specs in FAMILIES.items():
        roots = tuple(ROOT + spec for spec in specs if rectified and spec in READING_ROOTS)
        for spec in specs + roots:
            if spec in SEARCHING and budget == "fast":
                continue
            if spec in WITHOUT_LABELS and known.labels is not None and known.has_logits:
                continue
            why = ""
            if lacks := missing_input([components_of(spec)], known, fitting=True):
                why = f"needs {lacks}, which is not there"
            elif spec in DIRECTIONS and units:
                why = "columns have different units, so that the directions of rows mean nothing"
            elif spec in COSTLY and wide:
                why = f"with more than {WIDE} features a relative that costs less is tried"
            found.append(Evidence(spec, family, why=why))
    return found


def list_core(budget: Budget, known: Activations) -> tuple[str, ...]:
    """List the methods that are always added up, whatever the evidence, where they can be fitted.

    Parameters
    ----------
    budget : {"full", "fast"}
        ``fast`` leaves out methods that search neighbours.
    known : Activations
        Known inputs.

    Returns
    -------
    tuple of str
        Their text forms.

    Examples
    --------
    >>> list_core("fast", Activations(np.eye(3)))
    ('pca', 'gmm(1)', 'mahalanobis(0.1)')
    """
    if not known.has_features:
        return LOGITS_ALONE
    return _read_roots(CORES[budget, known.has_logits], has_rectified_features(known))


def list_distances(budget: Budget, known: Activations) -> tuple[str, ...]:
    """List the methods that take over where classes left out cannot be told from the others.

    Parameters
    ----------
    budget : {"full", "fast"}
        ``fast`` leaves out methods that search neighbours.
    known : Activations
        Known inputs.

    Returns
    -------
    tuple of str
        None without features and logits, with fewer than ten inputs per class, or with fewer inputs than features: what
        is weak there may be the evidence and not the network.

    Examples
    --------
    >>> from offmap import Head
    >>> few = Activations(-np.eye(3), head=Head(np.eye(3)))
    >>> list_distances("fast", few), list_distances("fast", few[[0, 1, 2] * 10])
    ((), ('plda', 'mahalanobis(0.1)', 'rmds_pp', 'pca'))
    """
    if not _has_enough(known) or len(known) < known.features.shape[1]:
        return ()
    distances = tuple(spec for spec in DISTANCES if budget == "full" or spec not in SEARCHING)
    return _read_roots(distances, has_rectified_features(known))


def has_rectified_features(known: Activations) -> bool:
    """Say whether features are those of rectified units: logits, at most 1,024 features, and none is negative.

    In wider features the root changes next to nothing, and there `auto` is as it is without it.

    Parameters
    ----------
    known : Activations
        Known inputs.

    Returns
    -------
    bool
        False without features.

    Examples
    --------
    >>> from offmap import Head
    >>> rows = np.random.default_rng(0).normal(size=(50, 4))
    >>> [has_rectified_features(Activations(each, head=Head(np.eye(4)))) for each in (rows, np.maximum(rows, 0))]
    [False, True]
    """
    narrow = known.has_features and known.has_logits and known.features.shape[1] <= WIDE
    return bool(narrow and (np.asarray(known.features[:SOME]) >= 0).all())


def _read_roots(specs: tuple[str, ...], rectified: bool) -> tuple[str, ...]:
    """Put the root before the methods that read it where features are rectified."""
    return tuple(ROOT + spec if rectified and spec in READING_ROOTS else spec for spec in specs)


def has_wide_features(known: Activations) -> bool:
    """Say whether there are more than 1,024 features, logits, and at least ten inputs per class.

    Parameters
    ----------
    known : Activations
        Known inputs.

    Returns
    -------
    bool
        False without features.

    Examples
    --------
    >>> from offmap import Head
    >>> known = Activations(np.ones((20, 2000)), head=Head(np.ones((2, 2000))))
    >>> has_wide_features(known), has_wide_features(known[:9])
    (True, False)
    """
    return _has_enough(known) and known.features.shape[1] > WIDE


def _has_enough(known: Activations) -> bool:
    """Say whether there are features, logits and ten inputs per class, so that evidence on classes left out counts."""
    return known.has_features and known.has_logits and len(known) >= ENOUGH * known.n_classes


def components_of(spec: str) -> Any:
    """Parse a candidate into its shapers and score."""
    from offmap.detection.spec import parse

    return parse(spec).chains[0]
