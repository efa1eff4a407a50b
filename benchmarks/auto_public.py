"""Networks for `auto.py` on public sets that are fetched: intents, news, fruits, sounds.

The folder that ``OFFMAP_PUBLIC`` names holds checkouts of github.com/xliuhw/NLU-Evaluation-Data (HWU64),
sonos/nlu-benchmark (SNIPS), mhjabreel/CharCnn_Keras (AG's news), Horea94/Fruit-Images-Dataset (Fruits-360) and
karolpiczak/ESC-50, and the ResNet-50 of `imagenet.py` as ``resnet50.onnx``. Texts go through the packaged sentence
encoder, pictures and spectrograms through the ResNet-50; each gets a linear head over some of its classes. Rows are
computed once and kept in the cache folder. HWU64 and news were looked at when the present rule was made.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import offmap
from auto_pairs import World, divided, from_classes, generator, resnet, sample, stored
from offmap.bench.cache import locate_cache
from sound import extract

FOLDER = Path(os.environ.get("OFFMAP_PUBLIC", "."))
INTENTS = "NLU-Evaluation-Data/CrossValidation/autoGeneFromRealAnno/*/CrossValidation/KFold_1/trainset/*.csv"
COMMANDS = "nlu-benchmark/2017-06-custom-intent-engines/*/train_*_full.json"
NEWS = "CharCnn_Keras/data/ag_news_csv/test.csv"
SOUNDS = 50  # kinds, 40 recordings of each
FRUITS, PICTURES = 60, 20  # classes, and pictures of each, spread over the angles that a fruit was taken from
SIDE, MEAN = 224, (103.939, 116.779, 123.68)

Array = Any
Labelled = tuple[Array, Array]


def kept(name: str, make: Callable[[], Labelled]) -> Labelled:
    """Rows and classes, computed once."""
    file = locate_cache() / f"auto-{name}.npz"
    if not file.exists():
        rows, labels = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, rows=rows, labels=labels)
    with np.load(file) as arrays:
        return arrays["rows"], arrays["labels"]


def encode(texts: list[str], names: list[str]) -> Labelled:
    """Sentence embeddings, and the number of each text's class."""
    return offmap.TextEncoder().encode(texts, progress=False), np.unique(names, return_inverse=True)[1]


def read_intents() -> Labelled:
    """HWU64: what people said to a home assistant, 64 intents, at most 80 queries of each."""
    texts, names = [], []
    for file in sorted(FOLDER.glob(INTENTS)):
        with file.open(encoding="utf-8", newline="") as opened:
            found = [row["answer_from_anno"] for row in csv.DictReader(opened, delimiter=";")][:80]
        texts += found
        names += [file.stem] * len(found)
    return encode(texts, names)


def read_commands() -> Labelled:
    """SNIPS: what people ask a voice assistant for, seven intents, 300 queries of each."""
    texts, names = [], []
    for file in sorted(FOLDER.glob(COMMANDS)):
        (name, queries), *_ = json.loads(file.read_text(encoding="latin-1")).items()
        texts += ["".join(part["text"] for part in query["data"]) for query in queries[:300]]
        names += [name] * len(queries[:300])
    return encode(texts, names)


def read_news() -> Labelled:
    """AG's news: titles of four topics, 2,000 of them."""
    with (FOLDER / NEWS).open(encoding="utf-8", newline="") as opened:
        rows = list(csv.reader(opened))
    some = sample(len(rows), 2000, 401)
    return encode([rows[at][1] for at in some], [rows[at][0] for at in some])


def read_fruits() -> Labelled:
    """Fruits-360: fruits on a white ground, every second class."""
    from PIL import Image

    net = offmap.Network.onnx(FOLDER / "resnet50.onnx", layer="features")
    found = sorted(path for path in (FOLDER / "Fruit-Images-Dataset/Training").iterdir() if path.is_dir())
    rows, labels = [], []
    for number, folder in enumerate(found[::2][:FRUITS]):
        files = sorted(folder.glob("*.jpg"))
        chosen = files[:: max(1, len(files) // PICTURES)][:PICTURES]
        pixels = [np.asarray(Image.open(file).convert("RGB").resize((SIDE, SIDE)), dtype=np.float32) for file in chosen]
        batch = np.stack([(each[..., ::-1] - MEAN).transpose(2, 0, 1) for each in pixels]).astype(np.float32)
        rows.append(net(batch).features)
        labels += [number] * len(chosen)
    return np.concatenate(rows), np.array(labels)


def intents(count: int, key: int) -> World:
    """Some intents of HWU64 against the others, news and CLINC150's out-of-scope queries."""
    rows, labels = kept("hwu64", read_intents)
    far = {"news": kept("news", read_news)[0], "CLINC150": stored("text/clinc150_minilm.npz")["oos_test_features"]}
    return from_classes(*divided(rows, labels, key), generator(key + 1).permutation(64)[:count], far)


def commands(count: int, key: int) -> World:
    """Some intents of SNIPS against the others, news and CLINC150's out-of-scope queries."""
    rows, labels = kept("snips", read_commands)
    far = {"news": kept("news", read_news)[0], "CLINC150": stored("text/clinc150_minilm.npz")["oos_test_features"]}
    return from_classes(*divided(rows, labels, key), generator(key + 1).permutation(7)[:count], far)


def news(count: int, key: int) -> World:
    """Some topics of news against the others and what people say to a home assistant."""
    rows, labels = kept("news", read_news)
    far = {"HWU64": kept("hwu64", read_intents)[0]}
    return from_classes(*divided(rows, labels, key), generator(key + 1).permutation(4)[:count], far)


def fruits(count: int, key: int) -> World:
    """Some fruits on ResNet-50 features against other fruits, textures and Caltech-101."""
    rows, labels = kept("fruits", read_fruits)
    far = {"textures": resnet("dtd10")["features"], "Caltech-101": resnet("caltech101")["features"]}
    return from_classes(*divided(rows, labels, key), generator(key + 1).permutation(FRUITS)[:count], far)


def sounds(count: int, key: int) -> World:
    """Some kinds of sounds as spectrograms on ResNet-50 features against other kinds, textures and photographs."""
    held = locate_cache() / "auto-sounds.npz"
    rows, labels = extract(FOLDER / "ESC-50", FOLDER / "resnet50.onnx", SOUNDS, 40, held)
    far = {"textures": resnet("dtd10")["features"], "Caltech-101": resnet("caltech101")["features"]}
    return from_classes(*divided(rows, labels, key), generator(key + 1).permutation(SOUNDS)[:count], far)


PUBLIC_DEVELOPMENT: dict[str, Callable[[], World]] = {
    "HWU64, 40 intents": partial(intents, 40, 411),
    "HWU64, 15 intents": partial(intents, 15, 413),
    "news, 3 topics": partial(news, 3, 415),
    "25 kinds of sounds on ResNet-50": partial(sounds, 25, 601),
    "35 kinds of sounds on ResNet-50": partial(sounds, 35, 603),
}
PUBLIC: dict[str, Callable[[], World]] = {
    "HWU64, 25 intents": partial(intents, 25, 509),
    "SNIPS, 4 intents": partial(commands, 4, 513),
    "40 fruits on ResNet-50": partial(fruits, 40, 417),
    "30 kinds of sounds on ResNet-50": partial(sounds, 30, 607),
}
