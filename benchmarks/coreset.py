"""A small bank by random share or by k-centre: which one detects better?

Penultimate features of DenseNets trained on CIFAR-10 and CIFAR-100 and sentence embeddings of CLINC150, from the
folder that OFFMAP_DATA names. Each small bank answers with k scaled to its size (thesis, section 5.3.2); the AUROC of
the full bank stands beside. Random shares are drawn with five seeds, k-centre starts from five.

    OFFMAP_DATA=... python benchmarks/coreset.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from offmap.metrics.detection import auroc
from offmap.neighbors import Bank
from offmap.neighbors.coreset import k_center
from offmap.sampling import Sample

RESULTS = Path(__file__).parent / "results" / "coreset.json"
SHARES = (0.01, 0.05, 0.1)
SEEDS = range(5)
K = 100


def sets(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Bank rows, known test rows, unknown test rows."""

    def features(name: str) -> np.ndarray:
        with np.load(folder / "features" / f"{name}.npz") as file:
            return file["features"].astype(np.float32)

    found = {}
    for known in ("cifar10", "cifar100"):
        bank, test = (features(f"{known}-densenet__{known}_{part}") for part in ("train10k", "test"))
        for unknown in ("svhn_test10k", "dtd10"):
            found[f"{known} / {unknown}"] = (bank, test, features(f"{known}-densenet__{unknown}"))
    with np.load(folder / "text" / "clinc150_minilm.npz") as file:
        found["clinc150 / out of scope"] = (
            file["train_features"].astype(np.float32),
            file["test_features"].astype(np.float32),
            file["oos_test_features"].astype(np.float32),
        )
    return found


def score(bank: Bank, known: np.ndarray, unknown: np.ndarray, share: float) -> float:
    k = max(1, round(K * share))
    return auroc(-bank.kth_distance(known, k), -bank.kth_distance(unknown, k))


def main() -> None:
    table: list[dict[str, Any]] = []
    for name, (rows, known, unknown) in sets(Path(os.environ["OFFMAP_DATA"])).items():
        full = Bank().add(rows)
        table.append({"data": name, "bank": "all", "share": 1.0, "auroc": score(full, known, unknown, 1.0)})
        for share in SHARES:
            size = round(share * len(full))
            picks = {
                "random": [Sample(share, seed).update(full.vectors).rows for seed in SEEDS],
                "k-centre": [full.vectors[k_center(full.vectors, size, seed)[0]] for seed in SEEDS],
            }
            for kind, banks in picks.items():
                values = [score(Bank().add(bank), known, unknown, share) for bank in banks]
                table.append(
                    {
                        "data": name,
                        "bank": kind,
                        "share": share,
                        "auroc": round(float(np.mean(values)), 4),
                        "spread": round(float(np.std(values)), 4),
                    }
                )
    print("| data | bank | share | AUROC |\n|---|---|---|---|")
    for row in table:
        print(f"| {row['data']} | {row['bank']} | {row['share']:g} | {row['auroc']:.4f} ± {row.get('spread', 0):.4f} |")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"k": K, "table": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
