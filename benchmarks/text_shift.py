"""Whether a guard's promise holds for validation and test queries, and for whom it was made: queries drawn alike.

    OFFMAP_DATA=/path/to/data python benchmarks/text_shift.py [few|all|tuned …] [--sets …] [--draws 20]

`offmap guard --texts` on the training queries of eight intents drawn at random, and of all intents; the share that it
flags, at a `tpr` of 0.95, of the training queries that it sets aside to check itself, of validation and of test
queries. Then the same after all queries of these intents were thrown together and dealt out anew: what is left of a
difference there would be a fault of the guard, what is gone was a difference of the data. Embeddings are those of
the data folder. Last, one draw of eight intents with an encoder that was fine-tuned before: on all of the training
queries for two epochs, so that the threshold is set on such, and on half of them, where the guard sets the others
aside. Results go to ``results/text_shift.json``: means over draws with their standard errors.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kept
import offmap
from offmap.deploy import build_guard
from offmap.errors import OffmapWarning
from offmap.learning import fine_tune
from text import SETS, held_out, load, percent, read

RESULTS = Path(__file__).parent / "results" / "text_shift.json"
INTENTS = 8
DRAWS_OF_ALL = 2  # of the division into fitted, calibrated and checked
EPOCHS = 2
PARTS = ("checked", "validation", "test")

Split = tuple[list[str], np.ndarray]


def flag(splits: Sequence[Split], encoder: offmap.TextEncoder, seed: int) -> list[float]:
    """The shares flagged of its own checked queries, and of the second and third split, by a guard of the first."""
    (texts, labels), *others = splits
    evidence = build_guard(encoder, (texts, labels.astype(str)), seed=seed)
    assert evidence.false_alarms is not None
    said = [~evidence.deployment.verdicts(list(other)).known for other, _ in others]
    return [evidence.false_alarms, *(float(each.mean()) for each in said)]


def deal(splits: Sequence[Split], rng: np.random.Generator) -> list[Split]:
    """Throw all queries together and deal them out again: as many of each intent to each split as before."""
    texts = [text for some, _ in splits for text in some]
    labels = np.concatenate([some for _, some in splits])
    origin = np.repeat(np.arange(len(splits)), [len(some) for some, _ in splits])
    for intent in np.unique(labels):
        own = np.flatnonzero(labels == intent)
        origin[own] = rng.permutation(origin[own])
    places = [np.flatnonzero(origin == split) for split in range(len(splits))]
    return [([texts[place] for place in some], labels[some]) for some in places]


def measure(name: str, n_intents: int | None, draws: int) -> dict[str, Any]:
    """Shares flagged over draws of intents, as the splits are and dealt out anew."""
    data = load(name)
    names = ("train", held_out(data), "test")
    texts = {split: read(name, split) for split in names}
    rows = {text: row for split in names for text, row in zip(texts[split], data[split][0], strict=True)}
    encoder = offmap.TextEncoder(lambda some: np.stack([rows[text] for text in some]))
    found: dict[str, list[list[float]]] = {"as they are": [], "dealt anew": []}
    total = int(data["train"][1].max()) + 1
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(total)[: n_intents or total]
        splits = []
        for split in names:
            own = np.flatnonzero(np.isin(data[split][1], chosen))
            splits.append(([texts[split][place] for place in own], data[split][1][own]))
        found["as they are"].append(flag(splits, encoder, seed))
        found["dealt anew"].append(flag(deal(splits, rng), encoder, seed))
    return {"draws": draws, **{kind: summarise(shares) for kind, shares in found.items()}}


def measure_tuned(name: str) -> dict[str, Any]:
    """Shares flagged with an encoder that was fine-tuned on all training queries, and on half of them."""
    data = load(name)
    chosen = np.random.default_rng(0).permutation(int(data["train"][1].max()) + 1)[:INTENTS]
    splits = []
    for split in ("train", held_out(data), "test"):
        texts, own = read(name, split), np.flatnonzero(np.isin(data[split][1], chosen))
        splits.append(([texts[place] for place in own], data[split][1][own]))
    texts, labels = splits[0]
    found = {}
    for kind, step in (("fine-tuned on all", 1), ("fine-tuned on half", 2)):
        given = np.where(np.arange(len(texts)) % step == 0, labels, -1)
        with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
            warnings.simplefilter("ignore", OffmapWarning)  # that the threshold is set on texts of the fine-tuning
            encoder = fine_tune(texts, given, made, progress=False, epochs=EPOCHS)
            found[kind] = dict(zip(PARTS, map(percent, flag(splits, encoder, 0)), strict=True))
    return found


def summarise(shares: list[list[float]]) -> dict[str, dict[str, float]]:
    """Mean, standard error and largest share, in percent."""
    columns = np.array(shares).T
    return {
        part: {
            "mean": percent(column.mean()),
            "error": percent(column.std(ddof=1) / np.sqrt(len(column))),
            "most": percent(column.max()),
        }
        for part, column in zip(PARTS, columns, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["few", "all", "tuned"])
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    parts: dict[str, Callable[[str], dict[str, Any]]] = {
        "few": lambda name: measure(name, INTENTS, options.draws),
        "all": lambda name: measure(name, None, DRAWS_OF_ALL),
        "tuned": measure_tuned,
    }
    for name, part in ((name, part) for name in options.sets for part in options.parts):
        if not kept.holds(RESULTS, [name, part]):
            found = parts[part](name)
            kept.add(RESULTS, {name: {part: found}})
            print(name, part, found, flush=True)


if __name__ == "__main__":
    main()
