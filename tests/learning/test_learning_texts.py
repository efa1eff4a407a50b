"""Fine-tuning a sentence encoder by the objectives of `learn`: a small one, on sentences made of topics' words."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import offmap
from offmap.errors import InputError
from offmap.learning import learn
from offmap.metrics.clustering import open_world_accuracy
from offmap.models.bert import BertEncoder
from offmap.models.tokenizer import Tokenizer

TOPICS = ("card pin atm chip", "rain sun wind cloud", "goal match team ball", "bread cake oven flour")
COMMON = ["the", "a", "my", "is", "where", "please", "how", "now"]


def sentences(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(TOPICS)), count)
    texts = [
        " ".join(rng.permutation([*rng.choice(TOPICS[topic].split(), 3), *rng.choice(COMMON, 3)])) for topic in truth
    ]
    return texts, truth


def make_tokenizer() -> Tokenizer:
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *COMMON, *" ".join(TOPICS).split()]
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


@pytest.fixture
def encoder() -> Callable[[int | None], BertEncoder]:
    def make(trained: int | None) -> BertEncoder:
        made = BertEncoder(40, 24, 2, 3, 48, 16, trained, make_tokenizer())
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
