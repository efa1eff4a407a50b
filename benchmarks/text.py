"""Texts measured where the field measures: out-of-scope queries, open intents, new intents in TEXTOIR's protocol.

    OFFMAP_DATA=/path/to/data python benchmarks/text.py [oos|open|discover …] [--sets …] [--seeds …] [--ratios …]

Everything starts from the frozen embeddings of MiniLM; nothing of the encoder is trained. Each part adds its numbers to
``benchmarks/results/text.json`` and leaves out what is there already, so that a run that was cut short goes on.

- ``oos``: CLINC150, the linear head of `offmap guard --texts`, its detector ("guard") and others over it, fitted on the
  training queries, against the 1,000 out-of-scope test queries. The published files "small" and "imbalanced" are not at
  hand: as they are described, 50 training queries of each intent are drawn, and 25, 50, 75 or 100.
- ``rostd``: requests about alarms, reminders and weather against those of ROSTD, which crowd workers wrote to be of
  neither (Gangal et al. 2020). ``--rostd`` names the folder ``code/data/fbrelease/unsup`` of the GitHub repository
  vgtomahawk/LR_GC_OOD; at most 500 training queries of each of the 12 intents are drawn, all test queries are used.
- ``validate``: what the guard's detector was chosen on. Validation queries of known intents against those of hidden
  ones, and against CLINC150's out-of-scope training and validation queries; never a test query.
- ``open``: a share of the intents is known; all other intents, and for CLINC150 its 1,200 out-of-scope queries, are one
  class, "open". The guard is calibrated on validation queries of known intents, never on an open one.
- ``threshold``: what the share of known queries that the guard accepts was chosen on for ``open``: validation queries
  alone, half of the known ones to calibrate, the other half with those of hidden intents to measure. Splits of seed 10.
- ``discover``: a share of the intents is known and a tenth of their training queries labelled, all other training
  queries are not; accuracy on the test queries, intents matched one to one, K given and estimated. `discover` groups
  training queries; a linear head over its groups answers for test queries. `learn` answers itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kept
import offmap
from offmap.deploy.text_head import fit_strengths, train_head
from offmap.deploy.texts import DETECTOR
from offmap.discovery import discover
from offmap.learning import learn
from offmap.metrics.clustering import normalized_mutual_info, open_world_accuracy
from offmap.metrics.detection import auroc, fpr_at_tpr

RESULTS = Path(__file__).parent / "results" / "text.json"
SETS = ("banking77", "clinc150")
RATIOS = (0.25, 0.5, 0.75)
GUARD = "guard"  # what `offmap guard --texts` uses
OOS_METHODS = (GUARD, "auto", "energy", "msp", "knn(1)", "knn(10)", "rmds", "mahalanobis")
ROSTD_METHODS = (GUARD, "auto", "energy", "rmds", "knn(10)")
MOST = 500  # training queries of an intent
OPEN_METHODS = (GUARD, "energy")
CANDIDATES = (
    GUARD,
    "auto",
    "energy",
    "maxlogit",
    "rmds",
    "knn(1)",
    "energy + knn(1)",
    "energy + rmds + knn(1)",
    "maxlogit + knn(1)",
    "maxlogit + rmds + knn(1)",
    "maxlogit + rmds + 1.5*knn(1)",
    "energy + maxlogit + rmds + 2*knn(1)",
)
TPRS = (0.85, 0.9, 0.95)  # what `threshold` says is best, and two more
TPRS_TRIED = (0.8, 0.85, 0.9, 0.95, 0.975)
VALIDATION_SEED = 10  # of splits that settings are tried on and no result is reported for
LABELLED = 0.1
IMBALANCED = (25, 50, 75, 100)

Rows = tuple[np.ndarray, np.ndarray]


def load(name: str) -> dict[str, Rows]:
    """Features and labels of each split."""
    held = np.load(Path(os.environ["OFFMAP_DATA"]) / "text" / f"{name}_minilm.npz")
    splits = {key.removesuffix("_features") for key in held.files if key.endswith("_features")}
    return {
        split: (held[f"{split}_features"].astype(np.float32), held[f"{split}_labels"].astype(np.int64))
        for split in sorted(splits)
    }


def read(name: str, split: str) -> list[str]:
    """The sentences, in the order of their embeddings."""
    folder = Path(os.environ["OFFMAP_DATA"]) / "text"
    if name == "clinc150":
        return [text for text, _ in json.loads((folder / "clinc150_oos.json").read_text())[split]]
    with (folder / f"{name}_{split}.tsv").open(encoding="utf-8", newline="") as opened:
        return [row["text"] for row in csv.DictReader(opened, delimiter="\t")]


def draw(labels: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places of as many rows of each class as `sizes` says."""
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(sizes)]))


def make(method: str) -> offmap.Detector:
    """The detector of that name."""
    return offmap.detector(DETECTOR if method == GUARD else method)


def oos(options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Out-of-scope queries of CLINC150 by the size of its training set."""
    data = load("clinc150")
    rows, labels = data["train"]
    n = int(labels.max()) + 1
    for variant in options.variants:
        for seed in options.seeds[:1] if variant == "full" else options.seeds:
            keys = ["oos", variant, str(seed)]
            wanted = options.anew or [method for method in OOS_METHODS if not kept.holds(RESULTS, [*keys, method])]
            if not wanted:
                continue
            rng = np.random.default_rng(seed)
            sizes = {"full": np.full(n, 100), "small": np.full(n, 50), "imbalanced": rng.choice(IMBALANCED, n)}
            places = draw(labels, sizes[variant], rng)
            scored = [data["test"], data["oos_test"]]
            yield keys, {"queries": len(places), **measure_scope(rows[places], labels[places], *scored, wanted)}


def measure_scope(
    rows: np.ndarray, labels: np.ndarray, test: Rows, outside: Rows, methods: Sequence[str]
) -> dict[str, Any]:
    """Accuracy of a head over these training rows, and FPR95 and AUROC of detectors over it."""
    head = train_head(rows, labels, int(labels.max()) + 1)
    known = offmap.Activations(rows, head, labels=labels)
    found: dict[str, Any] = {"accuracy": share(head, test)}
    for method in methods:
        detector = make(method).fit(known)
        inner, outer = (detector.score(offmap.Activations(some[0], head)) for some in (test, outside))
        found[method] = {"fpr95": percent(fpr_at_tpr(inner, outer)), "auroc": percent(auroc(inner, outer))}
    return found


def rostd(options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Requests that are of none of the known kinds, written as such."""
    if options.rostd is None:
        raise SystemExit("rostd: name the folder of its files with --rostd")
    if kept.holds(RESULTS, ["rostd"]):
        return
    read_rows = [read_tsv(options.rostd / f"{name}.tsv") for name in ("OODRemovedtrain", "test")]
    names = sorted({label for _, label in read_rows[0]})
    numbers = {name: number for number, name in enumerate(names)}
    labels, truth = (np.array([numbers.get(label, -1) for _, label in rows]) for rows in read_rows)
    places = draw(labels, np.full(len(names), MOST), np.random.default_rng(0))
    encoder = offmap.TextEncoder()
    train = encoder.encode([read_rows[0][place][0] for place in places], progress=False)
    test = encoder.encode([text for text, _ in read_rows[1]], progress=False)
    inside = truth >= 0
    found = measure_scope(
        train, labels[places], (test[inside], truth[inside]), (test[~inside], truth[~inside]), ROSTD_METHODS
    )
    yield ["rostd"], {"queries": len(places), "known": int(inside.sum()), "unknown": int((~inside).sum()), **found}


def read_tsv(file: Path) -> list[tuple[str, str]]:
    """Read texts and labels: the first column is the label, the third the text."""
    with file.open(encoding="utf-8", newline="") as opened:
        return [(row[2].strip(), row[0]) for row in csv.reader(opened, delimiter="\t", quoting=csv.QUOTE_NONE)]


def validate(options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """FPR95 and AUROC of candidates for the guard's detector on validation queries."""
    for name in options.sets:
        data = load(name)
        rows, labels = data["train"]
        held, truth = data[held_out(data)]
        if name == "clinc150":  # half of the training queries, as in the small set
            places = draw(labels, np.full(int(labels.max()) + 1, 50), np.random.default_rng(0))
            rows, labels = rows[places], labels[places]
        for ratio, seed in ((ratio, seed) for seed in options.seeds for ratio in (*options.ratios, 1.0)):
            keys = ["validate", name, str(ratio), str(seed)]
            numbers = np.full(int(labels.max()) + 1, -1)
            numbers[choose(labels, ratio, seed)] = np.arange(round(ratio * len(numbers)))
            hidden = held[numbers[truth] < 0]
            if ratio == 1:
                hidden = np.concatenate(
                    [data[split][0] for split in ("oos_train", "oos_val") if split in data] or [hidden]
                )
            if not len(hidden) or kept.holds(RESULTS, keys):
                continue
            own = numbers[labels] >= 0
            head = train_head(rows[own], numbers[labels[own]], round(ratio * len(numbers)))
            known = offmap.Activations(rows[own], head, labels=numbers[labels[own]])
            found = {}
            for method in CANDIDATES:
                detector = make(method).fit(known)
                sets = (held[numbers[truth] >= 0], hidden)
                inside, outside = (detector.score(offmap.Activations(some, head)) for some in sets)
                found[method] = {
                    "fpr95": percent(fpr_at_tpr(inside, outside)),
                    "auroc": percent(auroc(inside, outside)),
                }
            yield keys, found


def share(head: offmap.Head, rows: Rows) -> float:
    """How often the head is right, in percent."""
    return round(100 * float((head(rows[0]).argmax(axis=1) == rows[1]).mean()), 2)


def open_test(data: dict[str, Rows]) -> Rows:
    """Test queries; for CLINC150 with all of its out-of-scope queries, as TEXTOIR counts them."""
    parts = [data[split] for split in ("test", "oos_train", "oos_val", "oos_test") if split in data]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def open_intents(options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Accuracy, F1 of known classes and F1 of the open one."""
    for name in options.sets:
        data = load(name)
        for ratio, seed in ((ratio, seed) for seed in options.seeds for ratio in options.ratios):
            keys = ["open", name, str(ratio), str(seed)]
            if not kept.holds(RESULTS, [*keys, f"{GUARD} at {TPRS[0]}"]):
                yield keys, measure_open(data, ratio, seed, OPEN_METHODS)


def measure_open(data: dict[str, Rows], ratio: float, seed: int, methods: Sequence[str]) -> dict[str, Any]:
    """Measure detectors over a head for the known classes, each at the thresholds of `TPRS`."""
    numbers, known, head = fit_known(data, ratio, seed)
    held_rows, held_labels = data[held_out(data)]
    aside, (test, truth) = held_rows[numbers[held_labels] >= 0], open_test(data)
    found: dict[str, Any] = {}
    for method in methods:
        scored = judge_open(make(method).fit(known), head, aside, test, numbers[truth], TPRS)
        found |= {f"{method} at {tpr}": measures for tpr, measures in scored.items()}
    return found


def threshold(options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The guard at several thresholds on validation queries."""
    for name, ratio in ((name, ratio) for name in options.sets for ratio in options.ratios):
        keys = ["threshold", name, str(ratio), str(VALIDATION_SEED)]
        if kept.holds(RESULTS, keys):
            continue
        data = load(name)
        numbers, known, head = fit_known(data, ratio, VALIDATION_SEED)
        rows, labels = data[held_out(data)]
        if "oos_val" in data:
            rows, labels = (np.concatenate(pair) for pair in zip((rows, labels), data["oos_val"], strict=True))
        truth = numbers[labels]
        own = np.random.default_rng(VALIDATION_SEED).permutation(np.flatnonzero(truth >= 0))
        aside, tested = own[::2], np.concatenate([own[1::2], np.flatnonzero(truth < 0)])
        detector = make(GUARD).fit(known)
        scored = judge_open(detector, head, rows[aside], rows[tested], truth[tested], TPRS_TRIED)
        yield keys, {f"{GUARD} at {tpr}": measures for tpr, measures in scored.items()}


def fit_known(data: dict[str, Rows], ratio: float, seed: int) -> tuple[np.ndarray, offmap.Activations, offmap.Head]:
    """Number the known classes, -1 for all others, and train a head on their training queries."""
    rows, labels = data["train"]
    classes = choose(labels, ratio, seed)
    numbers = np.full(labels.max() + 2, -1)
    numbers[classes] = np.arange(len(classes))
    own = numbers[labels] >= 0
    head = train_head(rows[own], numbers[labels[own]], len(classes))
    return numbers, offmap.Activations(rows[own], head, labels=numbers[labels[own]]), head


def judge_open(
    detector: offmap.Detector,
    head: offmap.Head,
    aside: np.ndarray,
    test: np.ndarray,
    truth: np.ndarray,
    tprs: Sequence[float],
) -> dict[float, dict[str, float]]:
    """Measure answers to test rows, -1 below the score that these shares of the rows set aside exceed."""
    scores = detector.score(offmap.Activations(test, head))
    limits = np.quantile(detector.score(offmap.Activations(aside, head)), [1 - tpr for tpr in tprs])
    answers, n = head(test).argmax(axis=1), len(head.bias)
    return {
        tpr: score_open(truth, np.where(scores < limit, -1, answers), n)
        for tpr, limit in zip(tprs, limits, strict=True)
    }


def score_open(truth: np.ndarray, said: np.ndarray, n_known: int) -> dict[str, float]:
    """TEXTOIR's measures; -1 is the open class."""
    from sklearn.metrics import f1_score

    each = f1_score(truth, said, labels=np.arange(-1, n_known), average=None, zero_division=0)
    return {
        "accuracy": percent((truth == said).mean()),
        "f1_known": percent(each[1:].mean()),
        "f1_open": percent(each[0]),
        "f1": percent(each.mean()),
    }


def choose(labels: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """The known classes."""
    n = int(labels.max()) + 1
    return np.sort(np.random.default_rng(seed).permutation(n)[: round(ratio * n)])


def percent(value: Any) -> float:
    return round(100 * float(value), 2)


def new_intent_labels(truth: np.ndarray, ratio: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a tenth of the known classes' rows, -1 elsewhere, and the known classes."""
    classes = choose(truth, ratio, seed)
    sizes = np.zeros(int(truth.max()) + 1, int)
    sizes[classes] = np.maximum(1, np.round(LABELLED * np.bincount(truth)[classes]))
    labels = np.full(len(truth), -1)
    places = draw(truth, sizes, np.random.default_rng(seed))
    labels[places] = truth[places]
    return labels, classes


def score_groups(truth: np.ndarray, answers: np.ndarray, classes: np.ndarray) -> dict[str, Any]:
    """Accuracy after matching groups to classes one to one, and mutual information."""
    found = open_world_accuracy(truth, answers, classes)
    return {
        "accuracy": percent(found.all),
        "known": percent(found.known),
        "novel": percent(found.novel),
        "nmi": percent(normalized_mutual_info(truth, answers)),
        "n_classes": len(np.unique(answers)),
    }


def new_intents(options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Accuracy on the test queries of all intents, those without a label among them."""
    for name in options.sets:
        data = load(name)
        rows, truth = data["train"]
        for ratio, seed in ((ratio, seed) for seed in options.seeds for ratio in options.ratios):
            labels, classes = new_intent_labels(truth, ratio, seed)
            for method, given in ((method, given) for method in options.methods for given in options.counts):
                keys = ["discover", name, str(ratio), str(seed), f"{method}, K {given}"]
                if not kept.holds(RESULTS, keys):
                    k = int(truth.max()) + 1 if given == "given" else None
                    answers = answer_tests(method, rows, labels, k, seed, data["test"][0])
                    yield keys, score_groups(data["test"][1], answers, classes)


def answer_tests(
    method: str, rows: np.ndarray, labels: np.ndarray, k: int | None, seed: int, test: np.ndarray
) -> np.ndarray:
    """Groups of test rows."""
    if method == "learn":
        return learn(rows, labels, k, seed=seed, progress=False).predict(test)
    present, numbers = np.unique(discover(rows, labels, k or "auto", seed=seed).labels, return_inverse=True)
    (head,) = fit_strengths(rows, numbers, (10.0,))
    return present[head(test).argmax(axis=1)]


def held_out(data: dict[str, Rows]) -> str:
    """The validation split."""
    return "val" if "val" in data else "dev"


PARTS = {
    "validate": validate,
    "threshold": threshold,
    "oos": oos,
    "rostd": rostd,
    "open": open_intents,
    "discover": new_intents,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["oos", "open", "discover"])
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS)
    parser.add_argument("--methods", nargs="+", default=["discover", "learn"])
    parser.add_argument("--counts", nargs="+", default=["given", "estimated"])
    parser.add_argument("--rostd", type=Path)
    parser.add_argument("--variants", nargs="+", default=["full", "small", "imbalanced"])
    parser.add_argument("--anew", nargs="+", help="measure these detectors of oos again, such as auto after a change")
    options = parser.parse_args()
    for part in options.parts:
        for keys, found in PARTS[part](options):
            kept.add(RESULTS, kept.nest(keys, found))
            print(" ".join(keys), found, flush=True)


if __name__ == "__main__":
    main()
