"""Fine-tuning a sentence encoder by the objectives of `learn`: a small one, on sentences made of topics' words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import offmap
from offmap.errors import InputError, StoreError
from offmap.learning import fine_tune, learn
from offmap.metrics.clustering import open_world_accuracy
from offmap.models import load_bert, save_bert
from offmap.models.bert import BertEncoder
from offmap.models.bert_weights import read_bert_weights
from text_kit import make_tokenizer

TOPICS = ("card pin atm chip", "rain sun wind cloud", "goal match team ball", "bread cake oven flour")
COMMON = ["the", "a", "my", "is", "where", "please", "how", "now"]


def sentences(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(TOPICS)), count)
    texts = [
        " ".join(rng.permutation([*rng.choice(TOPICS[topic].split(), 3), *rng.choice(COMMON, 3)])) for topic in truth
    ]
    return texts, truth


@pytest.fixture
def encoder() -> Callable[[int | None], BertEncoder]:
    def make(trained: int | None) -> BertEncoder:
        made = BertEncoder(40, 24, 2, 3, 48, 16, trained, make_tokenizer([*COMMON, *" ".join(TOPICS).split()]))
        words = (made.front if trained else made.body[0]).words.weight.data
        words.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
        for topic in range(len(TOPICS)):  # as if pre-trained: words of a topic are alike
            words[12 + 4 * topic : 16 + 4 * topic, topic] += 3
        return made

    return make


@pytest.mark.parametrize("objective", ["self-training", "gcd", "uno"])
def test_objectives_fine_tune_the_encoder_and_the_file_gives_it_back(encoder, objective, tmp_path: Path) -> None:
    texts, truth = sentences(30, seed=0)
    labels = np.where((truth < 2) & (np.random.default_rng(1).random(len(truth)) < 0.5), truth, -1)
    module = encoder(trained=1)
    before = copy.deepcopy(module.state_dict())
    settings = {"epochs": 4, "batch_size": 32, "learning_rate": 1e-3}
    model = learn(texts, labels, 4, encoder=module, objective=objective, **settings)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())  # a copy was trained
    new, fresh = sentences(20, seed=2)
    found = model.predict(new)
    assert open_world_accuracy(fresh, found, [0, 1]).all > 0.8
    rows = model.transform(new)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert np.abs(rows - module(torch.from_numpy(module.tokenize(new))).detach().numpy()).max() > 1e-3  # it was trained
    model.save(tmp_path / "model.offmap")
    again = offmap.load(tmp_path / "model.offmap")
    assert np.array_equal(again.predict(new), found)
    assert np.array_equal(again.transform(new), rows)


def test_the_front_stays_as_it_was_and_the_whole_can_be_trained(encoder) -> None:
    texts, truth = sentences(20, seed=0)
    labels = np.where(truth < 2, truth, -1)
    settings = {"epochs": 1, "batch_size": 32, "objective": "supcon"}
    partly, first = learn(texts, labels, 4, encoder=encoder(1), **settings), encoder(1)
    own = {name.removeprefix("0."): value for name, value in partly.net.encoder.front.state_dict().items()}
    assert all(torch.equal(own[name], value) for name, value in first.front.state_dict().items())
    whole = learn(texts, labels, 4, encoder=encoder(None), **settings)
    words = whole.net.encoder.body.state_dict()["0.words.weight"]
    assert not torch.equal(words, encoder(None).state_dict()["body.0.words.weight"])


def test_a_run_on_texts_resumes_to_the_same_numbers(encoder, tmp_path: Path) -> None:
    texts, truth = sentences(15, seed=0)
    labels = np.where(truth < 2, truth, -1)
    settings = {"objective": "gcd", "batch_size": 20, "pretrain": "supcon", "pretrain_epochs": 2}
    straight = learn(texts, labels, 4, encoder=encoder(1), epochs=3, **settings)
    learn(texts, labels, 4, encoder=encoder(1), epochs=3, out=tmp_path, **settings)
    resumed = learn(texts, labels, 4, encoder=encoder(1), epochs=3, out=tmp_path, **settings)
    assert np.array_equal(straight.transform(texts), resumed.transform(texts))


def test_token_numbers_are_taken_too_and_other_inputs_are_refused(encoder) -> None:
    texts, truth = sentences(10, seed=0)
    module = encoder(1)
    ids = module.tokenize(texts)
    labels = np.where(truth < 2, truth, -1)
    settings = {"epochs": 1, "batch_size": 20, "objective": "ce"}
    model = learn(ids, labels, 4, encoder=module, **settings)
    assert np.array_equal(model.predict(ids), model.predict(texts))
    with pytest.raises(InputError, match="a list of strings"):
        learn([1, 2, 3, 4], [0, 0, -1, -1], 2, encoder=module)
    with pytest.raises(InputError, match="no tokenizer"):
        learn(texts, labels, 4, encoder=BertEncoder(40, 24, 2, 3, 48, 16))
    with pytest.raises(InputError, match="reads embeddings"):
        learn(texts, labels, 4, encoder=module, objective="sorl-spectral")


@pytest.mark.parametrize("trained", [1, None])
def test_a_trained_encoder_becomes_a_folder_for_everything_else(encoder, trained, tmp_path: Path) -> None:
    texts, truth = sentences(10, seed=0)
    model = learn(
        texts,
        np.where(truth < 2, truth, -1),
        4,
        encoder=encoder(trained),
        objective="supcon",
        epochs=2,
        batch_size=20,
        learning_rate=1e-2,
    )
    folder = model.save_encoder(tmp_path / "encoder")
    rows = offmap.TextEncoder(folder).encode(texts)
    again = load_bert(folder, trained=1)
    assert np.allclose(rows, model.transform(texts), atol=5e-3)  # states before the trained blocks are kept in 16 bits
    assert np.allclose(rows, again(torch.from_numpy(again.tokenize(texts))).detach().numpy(), atol=1e-4)
    untrained = encoder(trained)
    assert not np.allclose(rows, untrained(torch.from_numpy(again.tokenize(texts))).detach().numpy(), atol=1e-2)
    untrained.tokenizer = None
    with pytest.raises(InputError, match="no tokenizer"):
        save_bert(untrained, tmp_path)
    embedded = learn(rows, np.where(truth < 2, truth, -1), 4, epochs=1)
    with pytest.raises(InputError, match="reads no texts"):
        embedded.save_encoder(tmp_path)


def test_fine_tune_reads_labelled_texts_and_brings_classes_together(encoder, tmp_path: Path) -> None:
    texts, truth = sentences(12, seed=0)
    names = [None if topic > 2 or place % 2 else f"topic {topic}" for place, topic in enumerate(truth)]
    start = save_bert(encoder(None), tmp_path / "start")
    settings = {"epochs": 6, "learning_rate": 3e-3, "progress": False}
    tuned = fine_tune(texts, names, tmp_path / "tuned", start, **settings)
    again = fine_tune(texts, names, tmp_path / "again", start, **settings)
    assert tuned.fingerprint() == again.fingerprint()  # the same seed, the same bits
    assert offmap.TextEncoder(tmp_path / "tuned").fingerprint() == tuned.fingerprint()
    words = "embeddings.word_embeddings.weight"
    before, after = (read_bert_weights(tmp_path / name / "model.safetensors") for name in ("start", "tuned"))
    assert np.array_equal(before[words], after[words])
    assert not np.array_equal(
        before["encoder.layer.0.output.dense.weight"], after["encoder.layer.0.output.dense.weight"]
    )
    new, fresh = sentences(10, seed=3)
    same = fresh[:, None] == fresh
    first, last = (rows @ rows.T for rows in (offmap.TextEncoder(start).encode(new), tuned.encode(new)))
    assert (last[same].mean() - last[~same].mean()) > (first[same].mean() - first[~same].mean())
    partly = fine_tune(texts, names, tmp_path / "partly", start, trained=1, **settings)
    kept = read_bert_weights(tmp_path / "partly" / "model.safetensors")["encoder.layer.0.output.dense.weight"]
    assert np.array_equal(kept, before["encoder.layer.0.output.dense.weight"])
    assert partly.fingerprint() != tuned.fingerprint()
    with pytest.raises(InputError, match="at least two such classes"):
        fine_tune(texts, ["a", "b", "b", *[None] * 45], tmp_path, start)


def test_an_encoder_knows_what_it_was_fine_tuned_on(encoder, tmp_path: Path) -> None:
    texts, truth = sentences(12, seed=0)
    start = save_bert(encoder(None), tmp_path / "start")
    assert not offmap.TextEncoder(start).was_trained_on(texts).any()
    parts = [[str(topic) if place % 4 == part else None for place, topic in enumerate(truth)] for part in (0, 1)]
    settings = {"epochs": 1, "progress": False}
    first = fine_tune(texts, parts[0], tmp_path / "first", start, **settings)
    twice = {text for text, label in zip(texts, parts[0], strict=True) if label}
    assert first.was_trained_on(texts).tolist() == [text in twice for text in texts]
    assert texts[0] not in (tmp_path / "first" / "fine_tuned_on.json").read_text()
    second = fine_tune(texts, parts[1], tmp_path / "second", tmp_path / "first", **settings)
    twice |= {text for text, label in zip(texts, parts[1], strict=True) if label}
    assert second.was_trained_on(texts).tolist() == [text in twice for text in texts]
    fine_tune(texts, parts[1], tmp_path / "first", start, **settings)  # takes the place of the one before, file and all
    save_bert(encoder(None), tmp_path / "first")
    assert not offmap.TextEncoder(tmp_path / "first").was_trained_on(texts).any()
    third = fine_tune(texts, truth, tmp_path / "third", start, aside=0.4, **settings)
    assert np.bincount(truth[third.was_trained_on(texts)]).tolist() == [7] * (max(truth) + 1)  # of twelve
    with pytest.raises(InputError, match="aside=1"):
        fine_tune(texts, truth, tmp_path / "third", start, aside=1)
    for damage in ("[", "{}", "[1]"):
        (tmp_path / "second" / "fine_tuned_on.json").write_text(damage)
        with pytest.raises(StoreError, match="fine-tune the encoder again, or remove this file"):
            second.was_trained_on(texts)
