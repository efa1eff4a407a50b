"""BERTopic on embeddings that were made elsewhere; run by ``text_topics.py`` in an environment with BERTopic.

``python text_topics_worker.py FOLDER`` reads ``rows.npy`` and ``task.json`` there and writes ``found.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from bertopic import BERTopic
from sklearn.cluster import KMeans
from umap import UMAP


def main() -> None:
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    rows = np.load(folder / "rows.npy")
    texts, method = task["texts"], task["method"]
    warm_up(rows)
    start = time.process_time()
    # BERTopic's own settings of UMAP, with a seed
    reducer = UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine", random_state=0)
    grouping = KMeans(task["k"], n_init=10, random_state=0) if "k-means" in method else None
    model = BERTopic(embedding_model=None, umap_model=reducer, hdbscan_model=grouping)
    labels, _ = model.fit_transform(texts, rows)
    if "reduced" in method:
        labels = model.reduce_outliers(texts, labels)
        model.update_topics(texts, topics=labels)
    seconds = time.process_time() - start
    found = {"labels": [int(label) for label in labels], "seconds": seconds}
    (folder / "found.json").write_text(json.dumps(found))


def warm_up(rows: np.ndarray) -> None:
    """Let numba compile before the clock runs."""
    UMAP(n_neighbors=5, n_components=2, metric="cosine", random_state=0).fit_transform(rows[:200])


if __name__ == "__main__":
    main()
