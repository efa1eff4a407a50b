"""Texts into a folder: resumed where it stopped, refused when the texts or the encoder are others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offmap import Activations, TextEncoder
from offmap.errors import InputError, StoreError
from offmap.text import extract_texts, read_extracted_texts, read_extraction

TEXTS = [f"text number {n} ✓" for n in range(10)]


class Breaking:
    """Counts what it encodes, and fails at one text as a killed process would."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.stop_at: str | None = None

    def __call__(self, texts: list[str]) -> list[list[float]]:
        if self.stop_at in texts:
            raise KeyboardInterrupt
        self.seen += texts
        return [[len(text), sum(map(ord, text)) % 97] for text in texts]


def test_a_run_cut_short_is_resumed(tmp_path: Path) -> None:
    function = Breaking()
    encoder = TextEncoder(function)
    function.stop_at = TEXTS[7]
    labels = np.arange(10) % 3
    with pytest.raises(KeyboardInterrupt):
        extract_texts(encoder, TEXTS, tmp_path / "out", labels, batch_size=3)
    function.stop_at = None
    function.seen.clear()
    acts = extract_texts(encoder, TEXTS, tmp_path / "out", labels, batch_size=3)
    assert function.seen[-4:] == TEXTS[6:]
    assert TEXTS[0] not in function.seen
    assert np.array_equal(acts.features, encoder.encode(TEXTS))
    assert np.array_equal(acts.labels, labels)
    assert read_extracted_texts(tmp_path / "out") == TEXTS
    assert len(Activations.open(tmp_path / "out")) == 10
    assert read_extracted_texts(tmp_path) is None


def test_other_texts_labels_or_encoders_are_refused(tmp_path: Path) -> None:
    encoder = TextEncoder(Breaking())
    extract_texts(encoder, TEXTS, tmp_path / "out")
    with pytest.raises(StoreError, match="is not the one this folder was made from"):
        extract_texts(encoder, [*TEXTS[:-1], "another"], tmp_path / "out")
    with pytest.raises(StoreError, match="another network"):
        extract_texts(TextEncoder(lambda texts: [[1.0, 2.0]] * len(texts)), TEXTS, tmp_path / "out")
    assert np.array_equal(read_extraction(tmp_path / "out", encoder).features, encoder.encode(TEXTS))
    with pytest.raises(StoreError, match="rows of another encoder"):
        read_extraction(tmp_path / "out", TextEncoder(lambda texts: [[1.0, 2.0]] * len(texts)))
    with pytest.raises(StoreError, match="nothing that says which"):
        read_extraction(tmp_path, encoder)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "extraction.journal").write_bytes(b"3507a5c0 {\n")
    with pytest.raises(StoreError, match="damaged"):
        read_extraction(tmp_path / "torn", encoder)
    with pytest.raises(InputError, match="1 labels for 10 texts"):
        extract_texts(encoder, TEXTS, tmp_path / "new", [1])
