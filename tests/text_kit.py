"""Small texts and an encoder of words, for tests that need no real sentences."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offmap.models.tokenizer import Tokenizer

TOPICS = {
    "card": ["lost card", "card stolen street", "card never arrived", "replace broken card", "card blocked machine"],
    "transfer": ["send money abroad", "transfer money friend", "money transfer failed", "cancel money transfer"],
    "loan": ["borrow cash house", "loan interest rate", "repay loan early", "loan request declined"],
}
FOREIGN = ["recipe for lemon cake", "tall mountains in asia", "football match result", "guitar chords song"]


def encode_words(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Hash words into 256 columns; rows have length 1."""
    rows = np.zeros((len(texts), 256), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row[zlib.crc32(word.encode()) % 256] += 1
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def known_texts(per_class: int = 40) -> tuple[list[str], list[str]]:
    """Texts of three topics, with their names."""
    words = ["please", "today", "quickly", "again", "why", "how", "help", "now"]
    texts, labels = [], []
    for label, starts in TOPICS.items():
        for n in range(per_class):
            texts.append(f"{starts[n % len(starts)]} {words[n % 8]} {words[n // 8 % 8]}")
            labels.append(label)
    return texts, labels


def unknown_texts(per_group: int = 20) -> list[str]:
    """Texts of two topics that are not known."""
    words = ["please", "today", "quickly", "again", "why", "how", "help", "now"]
    starts = ["bake chocolate cake", "lemon cake recipe"], ["football match result", "football player score"]
    return [f"{some[n % 2]} {words[n % 8]}" for some in starts for n in range(per_group)]


def write_known(path: Path, per_class: int = 40) -> None:
    """Write the known texts as CSV."""
    texts, labels = known_texts(per_class)
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)))


def make_tokenizer(known: Iterable[str]) -> Tokenizer:
    """A tokenizer of these words, for a small encoder."""
    words = list(dict.fromkeys(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *known]))
    vocabulary = {word: number for number, word in enumerate(words)}
    marks = [{"id": word, "ids": [vocabulary[word]], "tokens": [word]} for word in ("[CLS]", "[SEP]")]
    single = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single,
            "special_tokens": {mark["id"]: mark for mark in marks},
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    return Tokenizer(json.dumps(definition))
