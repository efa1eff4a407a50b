"""What fine-tuning the sentence encoder gains, beside the frozen one on the same splits.

    OFFMAP_DATA=/path/to/data python benchmarks/text_finetune.py [discover|open|oos|speed …] [--sets …] [--ratios …]

`offmap.learning.fine_tune` trains MiniLM on the labelled queries; all queries are encoded anew, and then the protocol
is that of ``text.py``, with the same functions.

- ``discover``: a tenth of the known intents' training queries labelled, `learn` over the encoder's rows.
- ``open``: all training queries of known intents are labelled; head and detector of `offmap guard --texts`.
- ``oos``: CLINC150 against its out-of-scope queries, with all 100 training queries of each intent (``--variants full``)
  or 50 drawn of them (``small``); ``guard`` is the detector of `offmap guard --texts`, beside `auto`.
- ``speed``: what two more epochs over 320 queries of BANKING77 cost with ``--threads`` threads, by the clock and in CPU
  seconds, for each query and epoch. The seconds by the clock mean something on a machine without other work only.

Results go to ``results/text_finetune.json`` with the CPU seconds of training; runs that are there are left out.
Settings were tried on splits of seed 10 with validation queries (``--validate`` prints such and keeps nothing).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kept
from offmap.learning import fine_tune, learn
from offmap.learning.fine_tuning import SETTINGS
from text import (
    GUARD,
    RATIOS,
    SETS,
    Rows,
    choose,
    draw,
    held_out,
    load,
    measure_open,
    measure_scope,
    new_intent_labels,
    read,
    score_groups,
)

RESULTS = Path(__file__).parent / "results" / "text_finetune.json"
SIZES = {"small": 50, "full": 100}  # training queries of each intent
SCOPE_METHODS = (GUARD, "auto")
LARGEST = 20_000  # labelled queries times epochs, where --epochs says how many: more take too long on one core
TIMED = 320  # queries of the measurement of speed
SPEED = 1.0  # share of known intents


def tune(
    name: str,
    labels: np.ndarray,
    frozen: dict[str, Rows],
    splits: Sequence[str],
    options: argparse.Namespace,
    labelled_only: bool = False,
) -> tuple[dict[str, Rows], float]:
    """Rows of these splits by an encoder that was trained on the labelled training queries, and the seconds it took.

    With `labelled_only`, training queries without a label stay zeros, where nothing reads them.
    """
    start = time.process_time()
    settings = {} if options.epochs is None else {"epochs": limit_epochs(options.epochs, labels)}
    with tempfile.TemporaryDirectory() as made:
        encoder = fine_tune(read(name, "train"), labels, made, trained=options.trained, progress=False, **settings)
        seconds = time.process_time() - start
        found = {}
        for split in splits:
            texts, truth = read(name, split), frozen[split][1]
            wanted = labels >= 0 if labelled_only and split == "train" else np.ones(len(texts), bool)
            rows = np.zeros((len(texts), encoder.width), np.float32)
            rows[wanted] = encoder.encode([texts[place] for place in np.flatnonzero(wanted)], progress=False)
            found[split] = rows, truth
        return found, seconds


def describe(labels: np.ndarray, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """What a result says of its fine-tuning."""
    epochs = SETTINGS["epochs"] if options.epochs is None else limit_epochs(options.epochs, labels)
    return {"cpu_seconds": seconds, "labelled": int((labels >= 0).sum()), "epochs": epochs}


def limit_epochs(asked: int, labels: np.ndarray) -> int:
    """As many epochs as were asked for, or one where that would be more than `LARGEST` queries."""
    return asked if asked * int((labels >= 0).sum()) <= LARGEST else 1


def find_intents(name: str, ratio: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """`learn` on frozen and on tuned rows."""
    frozen = load(name)
    truth = frozen["train"][1]
    labels, classes = new_intent_labels(truth, ratio, seed)
    aside = held_out(frozen) if options.validate else "test"
    tuned, seconds = tune(name, labels, frozen, ("train", aside), options)
    found: dict[str, Any] = describe(labels, seconds, options)
    counts = {"given": int(truth.max()) + 1, "estimated": None}
    for kind, data in [("tuned", tuned)] + [("frozen", frozen)] * options.frozen:
        for given in options.counts:
            model = learn(data["train"][0], labels, counts[given], seed=seed, progress=False)
            found[f"{kind}, K {given}"] = score_groups(data[aside][1], model.predict(data[aside][0]), classes)
    return found


def detect_open(name: str, ratio: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Open intents with frozen and with tuned rows."""
    frozen = load(name)
    truth = frozen["train"][1]
    labels = np.where(np.isin(truth, choose(truth, ratio, seed)), truth, -1)
    tuned, seconds = tune(name, labels, frozen, list(frozen), options, labelled_only=True)
    found: dict[str, Any] = describe(labels, seconds, options)
    found["tuned"] = measure_open(tuned, ratio, seed, (GUARD,))
    if options.frozen:
        found["frozen"] = measure_open(frozen, ratio, seed, (GUARD,))
    return found


def detect_scope(name: str, variant: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Out-of-scope queries with a training set of this size."""
    frozen = load(name)
    truth = frozen["train"][1]
    n = int(truth.max()) + 1
    places = draw(truth, np.full(n, SIZES[variant]), np.random.default_rng(seed))
    labels = np.full(len(truth), -1)
    labels[places] = truth[places]
    pair = ("val", "oos_val") if options.validate else ("test", "oos_test")
    tuned, seconds = tune(name, labels, frozen, ("train", *pair), options, labelled_only=True)
    found: dict[str, Any] = describe(labels, seconds, options)
    measured = [("tuned", tuned)]
    if options.frozen and variant != "full":  # of which there is one, and text.json has it
        measured.append(("frozen", frozen))
    for kind, data in measured:
        sets = (data[split] for split in pair)
        found[kind] = measure_scope(data["train"][0][places], truth[places], *sets, SCOPE_METHODS)
    return found


def measure_speed(name: str, _: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of an epoch for each labelled query."""
    import torch

    torch.set_num_threads(options.threads)
    truth = load(name)["train"][1]
    labels = np.full(len(truth), -1)
    places = np.random.default_rng(seed).permutation(len(truth))[:TIMED]
    labels[places] = truth[places]
    took = []
    for epochs in (1, 1, 3):  # the first is not counted: whatever is loaded once is loaded there
        start = np.array([time.process_time(), time.perf_counter()])
        with tempfile.TemporaryDirectory() as made:
            fine_tune(read(name, "train"), labels, made, progress=False, epochs=epochs)
        took.append(np.array([time.process_time(), time.perf_counter()]) - start)
    cpu, wall = 1000 * (took[2] - took[1]) / 2 / int((labels >= 0).sum())
    return {"cpu_milliseconds": round(float(cpu), 2), "wall_milliseconds": round(float(wall), 2)}


PARTS = {"discover": find_intents, "open": detect_open, "oos": detect_scope, "speed": measure_speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["discover"])
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--counts", nargs="+", default=["given"])
    parser.add_argument("--variants", nargs="+", default=list(SIZES), choices=SIZES, help="of `oos`")
    parser.add_argument("--no-frozen", action="store_false", dest="frozen", help="leave out `learn` on frozen rows")
    parser.add_argument("--epochs", type=int, help=f"one where that would be more than {LARGEST} labelled queries")
    parser.add_argument("--trained", type=int)
    parser.add_argument("--threads", type=int, default=1, help="of `speed`")
    parser.add_argument("--validate", action="store_true")
    options = parser.parse_args()
    for part in options.parts:
        fixed = {"oos": (["clinc150"], options.variants), "speed": (["banking77"], [SPEED])}
        sets, kinds = fixed.get(part, (options.sets, options.ratios))
        for seed, name, kind in ((seed, name, kind) for seed in options.seeds for name in sets for kind in kinds):
            keys = [part, name, str(kind), str(options.threads if part == "speed" else seed)]
            if kept.holds(RESULTS, keys) and not options.validate:
                continue
            found = PARTS[part](name, kind, seed, options)
            if not options.validate:
                kept.add(RESULTS, kept.nest(keys, found))
            print(" ".join(keys), found, flush=True)


if __name__ == "__main__":
    main()
