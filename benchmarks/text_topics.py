"""Groups of texts beside BERTopic on the same embeddings: documents left out, accuracy, mutual information, time.

    OFFMAP_DATA=/path/to/data python benchmarks/text_topics.py [--sets banking77 clinc150]

All training queries, no label given. Both get the same MiniLM embeddings; BERTopic (UMAP, HDBSCAN, c-TF-IDF) runs in an
environment of its own with its defaults, then with its own ways out: `reduce_outliers`, and k-means with the true
number of topics in HDBSCAN's place. offmap runs `discover` with K estimated and given. A document that is left out
counts as wrong, and for the mutual information as one group. Seconds are CPU time of grouping and naming on one thread,
without imports and encoding. Results go to ``results/text_topics.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import kept
from offmap.discovery import discover
from offmap.metrics.clustering import normalized_mutual_info, open_world_accuracy
from peers import make_environment
from text import SETS, load, read

RESULTS = Path(__file__).parent / "results" / "text_topics.json"
WORKER = Path(__file__).with_name("text_topics_worker.py")
PLAIN = ("hdbscan==0.8.44", "umap-learn==0.5.12", "scikit-learn", "pandas", "plotly", "pyyaml", "tqdm")
BARE = ("bertopic==0.17.4",)  # its sentence-transformers is not needed where embeddings are given
PEER = ("BERTopic", "BERTopic, outliers reduced", "BERTopic, k-means with K given")
METHODS = (*PEER, "discover", "discover, K given")


def group_here(method: str, rows: np.ndarray, texts: list[str], k: int) -> tuple[np.ndarray, float]:
    """Groups by offmap, with their keywords, and the seconds that took."""
    start = time.process_time()
    found = discover(rows, None, k if method.endswith("K given") else "auto", texts=texts)
    return np.asarray(found.labels), time.process_time() - start


def group_there(method: str, rows: np.ndarray, texts: list[str], k: int) -> tuple[np.ndarray, float]:
    """Groups by BERTopic, -1 where a document is left out, and the seconds that took."""
    python = os.environ.get("TOPICS_PYTHON") or str(make_environment("topics", PLAIN, BARE))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        np.save(folder / "rows.npy", rows)
        (folder / "task.json").write_text(json.dumps({"method": method, "texts": texts, "k": k}))
        done = subprocess.run([python, str(WORKER), made], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        found = json.loads((folder / "found.json").read_text())
    return np.array(found["labels"]), found["seconds"]


def score(truth: np.ndarray, groups: np.ndarray, seconds: float) -> dict[str, Any]:
    """What is left out, how many of all documents are right, and the rest."""
    left = groups < 0
    return {
        "left_out": round(100 * float(left.mean()), 1),
        "accuracy": round(100 * open_world_accuracy(truth, groups).all, 1),
        "nmi": round(100 * float(normalized_mutual_info(truth, groups)), 1),
        "groups": len(np.unique(groups[~left])),
        "cpu_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    options = parser.parse_args()
    for name in options.sets:
        rows, truth = load(name)["train"]
        texts, k = read(name, "train"), int(truth.max()) + 1
        for method in options.methods:
            if kept.holds(RESULTS, [name, method]):
                continue
            group = group_there if method in PEER else group_here
            found = score(truth, *group(method, rows, texts, k))
            kept.add(RESULTS, {name: {method: found}})
            print(name, method, found, flush=True)


if __name__ == "__main__":
    main()
