"""Discovery on uneven problems: long tails, small or loose classes, few or no known ones, outliers, raw columns.

    OFFMAP_DATA=/path/to/data python benchmarks/uneven.py [--only digits …] [--seeds 2 3] [--methods auto kmeans]

`auto` is ``offmap.discover`` with every default, so it estimates the number of classes; `kmeans` is scikit-learn's
with the true number; `hdbscan` is scikit-learn's on at most 20 principal components. The library was developed on
seeds 0 to 3; what is reported comes from other seeds. Results go to ``benchmarks/results/uneven.json``; problems that
are there already are not run again unless ``--again`` is given. News needs ``OFFMAP_PUBLIC``; see `auto_public.py`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kept
from discover import load as load_whole
from offmap.metrics.clustering import class_count_error, open_world_accuracy

RESULTS = Path(__file__).parent / "results" / "uneven.json"
SEEDS = (4, 5)
FEATURES = {  # of networks, by set
    "cifar10": "cifar10-densenet__cifar10_test",
    "textures": "resnet50__dtd10",
    "caltech101": "resnet50__caltech101",
}
SMALL = 20  # rows of a class that counts as small


class Problem(NamedTuple):
    """Rows, the labels that are given (-1 where unknown) and the true classes (-1 for outliers)."""

    rows: np.ndarray
    labels: np.ndarray
    truth: np.ndarray


@cache
def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and true classes of a set; the texts keep 40 (BANKING77) or 30 (CLINC150) rows a class at most."""
    if name == "wine":
        from sklearn.datasets import load_wine

        return load_wine(return_X_y=True)
    if name == "news":
        from auto_public import read_news

        return read_news()
    if name in FEATURES:
        held = np.load(Path(os.environ["OFFMAP_DATA"]) / "features" / f"{FEATURES[name]}.npz")
        return held["features"][:6000].astype(np.float32), held["labels"][:6000].astype(np.int64)
    rows, truth = load_whole(name)
    if name == "fashion-mnist":
        return rows[:3000], truth[:3000]
    if name == "digits":
        return rows, truth
    order = np.random.default_rng(99).permutation(len(truth))
    few = keep_at_most(truth[order], dict.fromkeys(np.unique(truth).tolist(), 40 if name == "banking77" else 30))
    return rows[order][few], truth[order][few]


def mixture(sizes: np.ndarray, width: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes of these sizes; centres of variance 1, noise of standard deviation `spread`."""
    rng = np.random.default_rng([seed, 7])
    truth = np.repeat(np.arange(len(sizes)), sizes)
    shape = rng.uniform(0.5, 1.5, size=(len(sizes), 1))[truth]  # some classes are tighter than others
    rows = rng.normal(size=(len(sizes), width))[truth] + spread * shape * rng.normal(size=(len(truth), width))
    order = rng.permutation(len(truth))
    return rows[order].astype(np.float32), truth[order]


def keep_at_most(truth: np.ndarray, most: dict[int, int]) -> np.ndarray:
    """Row numbers that are left when classes keep at most so many rows, the first ones."""
    keep = np.ones(len(truth), bool)
    for label, size in most.items():
        keep[np.flatnonzero(truth == label)[size:]] = False
    return np.flatnonzero(keep)


def give_labels(truth: np.ndarray, known: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Label half of the rows of known classes, at least one of each."""
    labels = np.where(np.isin(truth, known) & (rng.random(len(truth)) < 0.5), truth, -1)
    for label in np.setdiff1d(known, labels):
        labels[np.flatnonzero(truth == label)[0]] = label
    return labels


def make(rows: np.ndarray, truth: np.ndarray, case: str, seed: int) -> Problem:
    """A set turned into an uneven problem; the seed draws which classes are known and which are small."""
    rng = np.random.default_rng([seed, 11])
    order = rng.permutation(len(truth))
    rows, truth = rows[order], truth[order]
    classes = rng.permutation(np.unique(truth))
    n = len(classes)
    known = {"one known": classes[:1], "none known": classes[:0], "all known": classes}.get(case, classes[: n // 2])
    largest = int(np.bincount(truth).max())
    most: dict[int, int] = {}
    if case == "novel small":
        most = {int(c): int(rng.integers(5, 21)) for c in np.setdiff1d(classes, known)}
    elif case == "known small":
        known = classes[: max(n // 4, 2)]
        most = {int(c): 10 for c in known}
    elif case.startswith("tail"):
        sizes = np.round(largest * np.geomspace(1, 1 / int(case[-2:]), n)).astype(int)
        most = dict(zip(rng.permutation(classes).tolist(), np.maximum(sizes, 3).tolist(), strict=True))
    elif case == "200 rows":
        most = dict.fromkeys(classes.tolist(), 200 // n)
    left = keep_at_most(truth, most)
    rows, truth = rows[left], truth[left]
    return Problem(rows, give_labels(truth, known, rng), truth)


def with_outliers(problem: Problem, strange: np.ndarray) -> Problem:
    """Rows of no class added without labels."""
    none = np.full(len(strange), -1)
    rows = np.concatenate([problem.rows, strange]).astype(np.float32)
    return Problem(rows, np.concatenate([problem.labels, none]), np.concatenate([problem.truth, none]))


def generated(case: str, seed: int) -> Problem:
    """A problem made of Gaussian classes."""
    if case == "500 classes":
        return make(*mixture(np.full(500, 16), 48, 0.45, seed), "half known", seed)
    if case == "200 rows, 5,000 columns":
        return make(*mixture(np.full(8, 25), 5000, 2.5, seed), "half known", seed)
    if case == "20 % outliers":
        problem = make(*mixture(np.full(20, 60), 24, 0.45, seed), "half known", seed)
        return with_outliers(problem, 1.1 * np.random.default_rng([seed, 5]).normal(size=(300, 24)))
    return make(*mixture(np.full(20, 150), 24, 0.45, seed), case, seed)


def scope(seed: int) -> Problem:
    """CLINC150 with a fifth of the rows out of scope."""
    problem = make(*load("clinc150"), "half known", seed)
    held = np.load(Path(os.environ["OFFMAP_DATA"]) / "text" / "clinc150_minilm.npz")
    oos = np.concatenate([held[f"oos_{part}_features"] for part in ("train", "val", "test")])
    return with_outliers(problem, np.random.default_rng([seed, 5]).permutation(oos)[: len(problem.truth) // 4])


def wine(case: str, seed: int, standardise: bool) -> Problem:
    """Thirteen columns whose spreads differ by a factor of 2,500."""
    rows, truth = load("wine")
    if standardise:
        rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    problem = make(rows, truth, "half known", seed)
    known = np.random.default_rng([seed, 3]).permutation(3)[: int(case[0])]
    return problem._replace(labels=give_labels(problem.truth, known, np.random.default_rng([seed, 4])))


CASES: dict[str, Callable[[int], Problem]] = {}
for _name, _cases in {
    "digits": "half known, novel small, known small, tail 1:10, tail 1:50, one known, all known, none known, 200 rows",
    "fashion-mnist": "half known, none known, tail 1:10",
    "banking77": "half known, novel small, known small, tail 1:10, tail 1:50, one known, all known, none known",
    "clinc150": "half known, novel small, tail 1:50, all known, none known",
    "cifar10": "half known, none known",
    "textures": "half known, one known, all known, none known",
    "caltech101": "half known, all known, none known",
    "news": "half known, one known, none known",
}.items():
    for _case in _cases.split(", "):
        CASES[f"{_name}, {_case}"] = lambda seed, name=_name, case=_case: make(*load(name), case, seed)
CASES["clinc150, 20 % out of scope"] = scope
for _name in ("banking77", "clinc150", "cifar100"):
    CASES[f"{_name} whole, none known"] = lambda seed, name=_name: make(*load_whole(name), "none known", seed)
for _case in ("half known", "novel small", "tail 1:50", "one known", "none known", "500 classes"):
    CASES[f"mixture, {_case}"] = lambda seed, case=_case: generated(case, seed)
for _case in ("200 rows, 5,000 columns", "20 % outliers"):
    CASES[f"mixture, {_case}"] = lambda seed, case=_case: generated(case, seed)
for _case in ("2 known", "1 known", "0 known"):
    CASES[f"wine raw, {_case}"] = lambda seed, case=_case: wine(case, seed, False)
    CASES[f"wine standardised, {_case}"] = lambda seed, case=_case: wine(case, seed, True)


def by_kmeans(problem: Problem, seed: int) -> np.ndarray:
    """k-means that is told the true number of classes."""
    from sklearn.cluster import KMeans

    k = len(np.unique(problem.truth[problem.truth >= 0]))
    return KMeans(k, n_init=3, random_state=seed).fit_predict(problem.rows)


def by_hdbscan(problem: Problem, seed: int) -> np.ndarray:
    """HDBSCAN with classes of at least five rows; wide rows are projected first."""
    from sklearn.cluster import HDBSCAN
    from sklearn.decomposition import PCA

    rows = problem.rows
    if min(rows.shape) > 20:
        rows = PCA(20, svd_solver="randomized", random_state=seed).fit_transform(rows)
    return HDBSCAN(min_cluster_size=5, copy=True).fit_predict(rows)


def by_discover(problem: Problem, seed: int) -> np.ndarray:
    """`offmap.discover` with every default."""
    from offmap.discovery import discover

    return discover(problem.rows, problem.labels, seed=seed).labels


METHODS: dict[str, Callable[[Problem, int], np.ndarray]] = {
    "auto": by_discover,
    "kmeans": by_kmeans,
    "hdbscan": by_hdbscan,
}


def measure(problem: Problem, found: np.ndarray) -> dict[str, Any]:
    """Score an answer on the unlabelled rows that have a class."""
    _, labels, truth = problem
    known = np.unique(labels[labels >= 0])
    true = len(np.unique(truth[truth >= 0]))
    pool = (labels < 0) & (truth >= 0)
    plain = open_world_accuracy(truth[pool], found[pool], known)
    even = open_world_accuracy(truth[pool], found[pool], known, "v2-balanced")
    groups = len(np.unique(found[found >= 0]))
    sizes = np.bincount(truth[truth >= 0])
    small = [c for c in np.unique(truth[truth >= 0]) if sizes[c] <= SMALL and c not in known]
    own = pool & np.isin(truth, known)
    return {
        "true": true,
        "found": groups,
        "error": round(class_count_error(groups, true), 4),
        "all": round(100 * plain.all, 2),
        "known": round(100 * plain.known, 2),
        "novel": round(100 * plain.novel, 2),
        "macro": round(100 * even.all, 2),
        "known by number": round(100 * float((found[own] == truth[own]).mean()), 2) if own.any() else None,
        "small": len(small),
        "small found": int(sum(_is_found(truth == c, found) for c in small)),
    }


def _is_found(members: np.ndarray, found: np.ndarray) -> bool:
    """At least half of the class is in one group that is at least half of this class."""
    inside = found[members & (found >= 0)]
    if not len(inside):
        return False
    group = np.bincount(inside).argmax()
    shared = int((inside == group).sum())
    return 2 * shared >= members.sum() and 2 * shared >= int((found == group).sum())


def separable(problem: Problem) -> float:
    """The accuracy of the nearest neighbour with all labels known, on standardised columns if that is better."""
    from sklearn.neighbors import KNeighborsClassifier

    rows, truth = problem.rows[problem.truth >= 0], problem.truth[problem.truth >= 0]
    views = (rows, (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9))
    best = 0.0
    for view in views:
        near = KNeighborsClassifier(1).fit(view, truth).kneighbors(n_neighbors=1, return_distance=False)[:, 0]
        best = max(best, float((truth[near] == truth).mean()))
    return round(best, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of problems")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="run what is in the file already too")
    asked = parser.parse_args()
    for name, make_problem in CASES.items():
        if not any(part in name for part in asked.only):
            continue
        if name.startswith("news") and "OFFMAP_PUBLIC" not in os.environ:
            print(f"{name}: left as it was; OFFMAP_PUBLIC does not name the folder of its sets")
            continue
        for seed in asked.seeds:
            done = kept.read(asked.out).get(name, {}).get(str(seed), {})
            methods = [method for method in asked.methods if asked.again or method not in done]
            if not methods:
                continue
            problem = make_problem(seed)
            cell: dict[str, Any] = {"rows": len(problem.truth), "separable": separable(problem)}
            for method in methods:
                begun = time.process_time()
                cell[method] = measure(problem, METHODS[method](problem, seed))
                cell[method]["seconds"] = round(time.process_time() - begun, 1)
                print(name, seed, cell["separable"], method, cell[method], flush=True)
            kept.add(asked.out, {name: {str(seed): cell}})


if __name__ == "__main__":
    main()
