"""What fine-tuning the sentence encoder gains on BANKING77, beside the frozen one on the same split.

    OFFMAP_DATA=/path/to/data python benchmarks/text_finetune.py [open|discover …] [--ratios 0.5] [--epochs 3]

- ``open``: the last block is trained on labelled training queries of the known intents by `offmap.learn` (supervised
  contrast, or cross-entropy), then head and detector are made as for the frozen encoder; the protocol of ``text.py``.
- ``discover``: `offmap.learn` on the texts, a tenth of the known intents' queries labelled, answers for test queries.

Results go to ``results/text_finetune.json`` with the seconds that training took; runs that are there are left out.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import kept
from offmap.learning import learn
from offmap.models import load_bert
from text import Rows, choose, load, measure_open, new_intent_labels, score_groups

RESULTS = Path(__file__).parent / "results" / "text_finetune.json"
NAME = "banking77"


def read(split: str) -> list[str]:
    """The sentences, in the order of their embeddings."""
    file = Path(os.environ["OFFMAP_DATA"]) / "text" / f"{NAME}_{split}.tsv"
    with file.open(encoding="utf-8", newline="") as opened:
        return [row["text"] for row in csv.DictReader(opened, delimiter="\t")]


def fine_tune_open(frozen: dict[str, Rows], ratio: float, options: argparse.Namespace) -> dict[str, Any]:
    """Train on known intents, encode all queries anew, and measure as for the frozen encoder."""
    labels = frozen["train"][1]
    classes = choose(labels, ratio, options.seed)
    own = np.flatnonzero(np.isin(labels, classes))
    texts = {split: read(split) for split in frozen}
    start = time.process_time()
    model = learn(
        [texts["train"][i] for i in own],
        labels[own],
        len(classes),
        encoder=load_bert(trained=options.trained),
        objective=options.objective,
        epochs=options.epochs,
        seed=options.seed,
        progress=False,
    )
    seconds = time.process_time() - start
    tuned = {split: (np.asarray(model.transform(texts[split]), np.float32), frozen[split][1]) for split in frozen}
    return {
        "cpu_seconds": seconds,
        "frozen": measure_open(frozen, ratio, options.seed, options.detectors),
        "tuned": measure_open(tuned, ratio, options.seed, options.detectors),
    }


def fine_tune_discover(frozen: dict[str, Rows], ratio: float, options: argparse.Namespace) -> dict[str, Any]:
    """Self-training of the encoder's last block, all training queries seen and few of them labelled."""
    truth = frozen["train"][1]
    labels, classes = new_intent_labels(truth, ratio, options.seed)
    start = time.process_time()
    model = learn(
        read("train"),
        labels,
        int(truth.max()) + 1,
        encoder=load_bert(trained=options.trained),
        epochs=options.epochs,
        seed=options.seed,
        progress=False,
    )
    return {
        "cpu_seconds": time.process_time() - start,
        "tuned": score_groups(frozen["test"][1], model.predict(read("test")), classes),
    }


PARTS = {"open": fine_tune_open, "discover": fine_tune_discover}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--trained", type=int, default=1)
    parser.add_argument("--objective", default="supcon")
    parser.add_argument("--detectors", nargs="+", default=["guard", "energy"])
    options = parser.parse_args()
    frozen = load(NAME)
    for part in options.parts:
        for ratio in options.ratios:
            name = (
                f"{options.objective if part == 'open' else 'auto'}, {options.trained} blocks, {options.epochs} epochs"
            )
            keys = [part, NAME, str(ratio), str(options.seed), name]
            if kept.holds(RESULTS, keys):
                continue
            found = PARTS[part](frozen, ratio, options)
            kept.add(RESULTS, kept.nest(keys, found))
            print(" ".join(keys), found, flush=True)


if __name__ == "__main__":
    main()
