"""One sentence at a time: a guard and a scope beside the bare encoder, as ratios of latencies within one run.

``python benchmarks/text_latency.py`` writes ``results/text_latency.json``. All three run in this process, in turns, one
sentence each; the guard answers with class, p-value and nearest known text, as the service does. Where OFFMAP_DATA
names the data folder the sentences are BANKING77's, which is what the committed figures are from.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import offmap
from offmap.deploy import fit_scope
from offmap.report.page import versions

RESULTS = Path(__file__).with_name("results") / "text_latency.json"
KNOWN, TURNS, WARM = 2000, 300, 20


def read(split: str) -> list[tuple[str, str]]:
    """Sentences and their intents."""
    file = Path(os.environ["OFFMAP_DATA"]) / "text" / f"banking77_{split}.tsv"
    with file.open(encoding="utf-8", newline="") as opened:
        return [(row["text"], row["label"]) for row in csv.DictReader(opened, delimiter="\t")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    known = [read("train")[place] for place in rng.permutation(len(read("train")))[:KNOWN]]
    encoder = offmap.TextEncoder()
    texts, labels = [text for text, _ in known], [label for _, label in known]
    guard = offmap.guard(encoder, (texts, labels))
    scope = fit_scope(texts, encoder=encoder)

    def answer(text: str) -> None:
        acts = guard.activations([text], "texts")
        guard.detector.verdicts(acts)
        assert guard.examples is not None
        guard.examples.find_nearest(acts.features)

    calls: dict[str, Callable[[str], object]] = {
        "encoder": lambda text: encoder.encode([text], progress=False),
        "guard": answer,
        "scope": scope.check,
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    asked = [text for text, _ in read("test")]
    for turn in range(WARM + options.turns):
        text = asked[int(rng.integers(len(asked)))]
        for name in rng.permutation(list(calls)):
            start = time.perf_counter()
            calls[name](text)
            if turn >= WARM:
                spent[name].append(time.perf_counter() - start)
    share = {name: np.percentile(times, [50, 99]) for name, times in spent.items()}
    found = {
        "versions": versions(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "sentences": options.turns,
        "detector": guard.detector.chosen,
        "milliseconds": {name: {"p50": 1e3 * p[0], "p99": 1e3 * p[1]} for name, p in share.items()},
        "ratio": {
            name: {q: share[name][i] / share["encoder"][i] for i, q in enumerate(("p50", "p99"))}
            for name in ("guard", "scope")
        },
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["ratio"], indent=1), json.dumps(found["milliseconds"]))


if __name__ == "__main__":
    main()
