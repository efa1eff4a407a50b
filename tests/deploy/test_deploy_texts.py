"""Guards from texts: with and without labels, saved with a reference to the encoder, wrong encoders refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import offmap
from offmap.activations import Head
from offmap.data import Texts
from offmap.deploy import build_guard, fit_scope, write_guard
from offmap.deploy.text_head import STRENGTHS, fit_strengths, train_head
from offmap.deploy.texts import DETECTOR, TextReader, prepare_texts
from offmap.errors import InputError, OffmapWarning, StoreError
from offmap.models.bert_weights import find_folder
from offmap.openworld import Deployment
from offmap.openworld.learners import linear_head
from offmap.text.trained_texts import TRAINED_TEXTS, write_trained_texts
from text_kit import FOREIGN, encode_words, known_texts

ENCODER = offmap.TextEncoder(encode_words)


def test_the_detector_of_texts_follows_from_their_labels() -> None:
    texts, labels = known_texts(8)  # fewer texts than columns: nothing warns of a covariance
    others = [text for text in known_texts(32)[0] if text not in texts]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guarded = offmap.guard(ENCODER, (texts, labels), held_out=(others, None), tpr=0.9)
    assert guarded.detector.chosen == str(offmap.detector(DETECTOR))
    assert not guarded.verdicts(FOREIGN, "texts").known.any()
    assert prepare_texts(ENCODER, texts).detector == "auto"
    assert prepare_texts(ENCODER, (texts, labels)).detector == DETECTOR


def trained_on(some: list[str], folder: Path) -> offmap.TextEncoder:
    """The packaged encoder in a folder that says, as one of `fine_tune` does, that it was trained on these texts."""
    folder.mkdir(exist_ok=True)
    for file in find_folder("minilm").iterdir():
        if file.is_file() and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    (folder / TRAINED_TEXTS).write_bytes(write_trained_texts(some))
    return offmap.TextEncoder(folder)


def test_no_threshold_is_set_on_texts_that_the_encoder_was_fine_tuned_on(tmp_path: Path) -> None:
    pairs = list(dict(zip(*known_texts(64), strict=True)).items())
    texts, labels = [text for text, _ in pairs], [label for _, label in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("error", OffmapWarning)
        for seen in (texts[::2], [text for place, text in enumerate(texts) if place % 3]):
            found = prepare_texts(trained_on(seen, tmp_path), (texts, labels))
            assert not set(found.held_out_texts) & set(seen)
            assert len(found.known) + len(found.held_out) == len(texts)
            assert len(found.held_out) == min(len(texts) - round(0.6 * len(texts)), len(texts) - len(seen))
    with pytest.warns(OffmapWarning, match="fine-tuned on.*--held-out"):
        found = prepare_texts(trained_on(texts[:-10], tmp_path), (texts, labels))
    assert len(found.held_out) == len(texts) - round(0.6 * len(texts))  # ten are too few to go by
    with pytest.warns(OffmapWarning, match="3 of the 20 texts that set and check"):
        prepare_texts(trained_on(texts[:23], tmp_path), (texts, labels), held_out=texts[20:40])
    with pytest.warns(OffmapWarning, match="fine-tuned on"):
        fit_scope(texts, tpr=0.9, encoder=trained_on(texts, tmp_path))


def test_labelled_texts_give_a_classifier_with_a_guard(tmp_path: Path) -> None:
    guarded = offmap.guard(ENCODER, known_texts(), detector="knn(3)", out=tmp_path)
    assert guarded.class_names == ("card", "loan", "transfer")
    assert guarded.predict(["repay loan early now", "money transfer failed today", *FOREIGN]).tolist() == [
        1, 2, -1, -1, -1, -1,
    ]  # fmt: skip
    with pytest.raises(StoreError, match="a Python object that no file holds; give it as encoder="):
        offmap.load(tmp_path / "guard.offmap")
    again = Deployment.load(tmp_path / "guard.offmap", encoder=ENCODER)
    texts = ["card never arrived", *FOREIGN]
    assert np.array_equal(again.verdicts(texts).score, guarded.verdicts(texts, "texts").score)
    assert again.examples is not None
    places, cosines = again.examples.find_nearest(encode_words(["repay loan early please"]), 2)
    assert "repay loan early" in again.examples.texts[places[0, 0]]
    assert cosines[0, 0] >= cosines[0, 1]
    other = offmap.TextEncoder(lambda some: -encode_words(some))
    with pytest.raises(StoreError, match="is not the encoder that this was made with"):
        Deployment.load(tmp_path / "guard.offmap", encoder=other)


def test_the_page_shows_the_known_texts_that_look_least_known(tmp_path: Path) -> None:
    evidence = build_guard(ENCODER, known_texts(), detector="knn(3)", tpr=0.9)
    assert evidence.checked is not None
    shown = [evidence.shown[place] for place in range(len(evidence.checked))]
    assert np.allclose(evidence.deployment.verdicts(shown, "texts").score, evidence.checked.score)
    write_guard(evidence, tmp_path)
    least = shown[int(np.argmin(evidence.checked.p_value))]
    assert least in (tmp_path / "report.html").read_text()


def test_texts_without_labels_are_judged_by_embeddings_alone() -> None:
    evidence = build_guard(ENCODER, known_texts()[0], detector="knn(3)", unknown=FOREIGN, tpr=0.9)
    assert evidence.deployment.class_names is None
    assert evidence.false_alarms is not None
    assert evidence.false_alarms <= 0.25
    (verdicts,) = evidence.unknown.values()
    assert not verdicts.known.any()
    assert verdicts.predicted is None


def test_the_packaged_encoder_guards_real_questions(tmp_path: Path) -> None:
    starts = ("I lost", "where is", "please block", "someone stole", "cancel", "how do I replace", "activate")
    cards = [f"{start} my {word} card" for start in starts for word in ("credit", "debit", "bank", "old", "new")]
    questions = ["my bank card is gone", "how tall is mount everest", "bake a chocolate cake"]
    guarded = offmap.guard(offmap.TextEncoder(), cards, detector="knn(1)", out=tmp_path, tpr=0.9)
    loaded = offmap.load(tmp_path / "guard.offmap")  # the encoder is found again by its name
    found = loaded.verdicts(questions)
    assert found.known.tolist()[1:] == [False, False]
    assert np.allclose(found.score, guarded.verdicts(questions).score)
    assert found.score[0] > found.score[1:].max()


def test_the_head_is_the_best_of_those_tried_in_cross_validation() -> None:
    texts, names = known_texts(12)
    labels = Texts(texts, list(names)).encode_labels()
    rng = np.random.default_rng(0)
    rows = encode_words(texts) + 0.3 * rng.normal(size=(len(texts), 256)).astype(np.float32)
    made = train_head(rows, labels, 3)
    tried = list(fit_strengths(rows, labels, STRENGTHS))
    assert any(np.array_equal(made.weight, one.weight) for one in tried)
    with pytest.raises(InputError, match="4 classes but texts of 3"):
        train_head(rows, labels, 4)
    assert isinstance(train_head(rows[[0, 12]], np.array([0, 1]), 2), Head)  # one text each: nothing to validate on


@pytest.mark.parametrize("standardised", [False, True])
def test_heads_of_many_classes_are_trained_to_the_end(standardised: bool) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(2000) % 100
    rows = rng.normal(size=(100, 32))[labels] + 1.2 * rng.normal(size=(2000, 32))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    head = linear_head(rows, labels, 100) if standardised else next(fit_strengths(rows, labels, (10.0,)))
    spread = rows.std(axis=0) * np.sqrt(32) if standardised else np.sqrt(rows.var(axis=0).sum())
    scaled = (rows - rows.mean(axis=0)) / spread
    end = LogisticRegression(C=10, tol=1e-7, max_iter=500).fit(scaled, labels)
    reached, best = (log_loss(labels, found) for found in (softmax(head(rows), axis=1), end.predict_proba(scaled)))
    assert reached < 1.02 * best  # the mean gradient of many classes is small from the start: not a reason to stop


def test_directions_that_hardly_vary_do_not_count_as_much_as_others() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    rows = np.concatenate([np.eye(3)[labels] + 0.3 * rng.normal(size=(120, 3)), 1e-3 * rng.normal(size=(120, 300))], 1)
    head = train_head(rows, labels, 3)
    assert np.abs(head.weight[:, 3:]).max() < 0.05 * np.abs(head.weight[:, :3]).max()


def test_every_class_is_fitted_and_held_out_texts_calibrate() -> None:
    texts, names = known_texts(20)
    rare = Texts([*texts, "crypto coins wallet"], [*names, "crypto"])
    data = prepare_texts(ENCODER, rare)
    assert data.classes == ("card", "crypto", "loan", "transfer")
    assert 1 in data.known.labels  # type: ignore[operator]
    aside = prepare_texts(ENCODER, (texts, names), held_out=(texts[:9], names[:9]), unknown=FOREIGN)
    assert (len(aside.known), len(aside.held_out)) == (60, 9)
    assert aside.unknown is not None
    assert len(aside.unknown) == 4
    with pytest.raises(InputError, match="the label 'gold' is not one of the 3 classes"):
        prepare_texts(ENCODER, (texts, names), held_out=(["x"], ["gold"]))
    with pytest.raises(InputError, match="1 of 61 known texts have no label"):
        prepare_texts(ENCODER, ([*texts, "hm"], [*names, None]))
    with pytest.raises(InputError, match="too few to set some aside"):
        prepare_texts(ENCODER, ["one"])
    with pytest.raises(InputError, match="known=int: give a list of texts"):
        prepare_texts(ENCODER, 3)


def test_files_of_one_command_share_classes_and_head(tmp_path: Path) -> None:
    texts, names = known_texts(10)
    (tmp_path / "known.csv").write_text(
        "text,label\n" + "\n".join(f"{a},{b}" for a, b in zip(texts, names, strict=True))
    )
    (tmp_path / "test.csv").write_text("text,label\nloan interest rate,loan\nlemon cake,\n")
    (tmp_path / "other.txt").write_text("\n".join(FOREIGN))
    reader = TextReader(ENCODER)
    known, test, other = (reader.read_activations(tmp_path / name) for name in ("known.csv", "test.csv", "other.txt"))
    assert known.head is test.head is other.head is not None
    assert test.labels is not None
    assert test.labels.tolist() == [1, -1]
    assert other.labels is None
    assert known.predictions.tolist() == known.labels.tolist()  # type: ignore[union-attr]
