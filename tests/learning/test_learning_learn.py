"""`learn` on hard, small and wrong inputs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_blobs import blobs, thirty_intents

from offmap import store
from offmap.errors import InputError, StoreError
from offmap.learning import OpenWorldModel, learn, tune
from offmap.learning.grouping import hide_classes
from offmap.metrics.clustering import open_world_accuracy

QUICK = {"epochs": 1, "batch_size": 64, "neighbours": 3}


def test_the_number_of_classes_is_estimated() -> None:
    rows, truth, labels = blobs(n_classes=8, n_known=4, size=40, spread=0.1)
    model = learn(rows, labels, objective="opencon", **QUICK)
    assert 7 <= model.n_classes <= 9
    assert open_world_accuracy(truth, model.predict(rows), range(4)).all > 0.85


def test_names_stay_names_and_novel_classes_get_some() -> None:
    rows, _, labels = blobs(n_classes=4, n_known=2)
    names = np.array(["ants", "bees"], object)[np.clip(labels, 0, 1)]
    model = learn(rows, np.where(labels >= 0, names, None), 4, objective="gcd", **QUICK)
    assert model.class_names == ("ants", "bees", "novel 1", "novel 2")


def test_prototypes_that_nobody_chose_are_dropped_and_counted() -> None:
    rows, _, labels = blobs(n_classes=3, n_known=2, size=20, spread=0.01)
    model = learn(rows, labels, 12, objective="uno", **QUICK)
    assert model.n_classes + model.config["unused"] == 12
    assert len(np.unique(model.predict(rows))) >= model.n_classes - model.n_known
    assert model.net.classifier.weight.shape[0] == model.n_classes


@pytest.mark.parametrize("labels", ["none", "all", "one class", "one row"])
@pytest.mark.parametrize("name", ["opencon", "sorl", "orca", "self-training", "sorl-spectral"])
def test_few_or_many_labels(name: str, labels: str) -> None:
    rows, truth, _ = blobs(n_classes=4, size=15)
    given = {
        "none": np.full(len(truth), -1),
        "all": truth,
        "one class": np.where(truth == 2, truth, -1),
        "one row": np.where(np.arange(len(truth)) == 0, 5, -1),
    }[labels]
    settings = {"neighbours": 3} if name == "sorl-spectral" else QUICK
    model = learn(rows, given, 4, objective=name, **settings)
    assert np.isfinite(model.transform(rows)).all()
    assert model.n_known == len(set(given.tolist()) - {-1})


def test_what_makes_no_sense_is_refused() -> None:
    rows, _, labels = blobs(size=10)
    broken = rows.copy()
    broken[7, 0] = np.nan
    with pytest.raises(InputError, match="row 7 holds NaN"):
        learn(broken, labels, objective="gcd")
    with pytest.raises(InputError, match="at least 4"):
        learn(rows[:0], labels[:0], objective="gcd")
    with pytest.raises(InputError, match="2 inputs: at least 4"):
        learn(rows[:2], labels[:2], objective="gcd")
    with pytest.raises(InputError, match="n_classes=2: with 3 known classes"):
        learn(rows, labels, 2, objective="gcd")
    with pytest.raises(InputError, match="n_classes=2000"):
        learn(rows, labels, 2000, objective="opencon")
    with pytest.raises(InputError, match="learns from labels"):
        learn(rows, np.full(len(rows), -1), 3, objective="supcon")
    with pytest.raises(InputError, match="labels of shape"):
        learn(rows, labels[:-1], objective="gcd")
    with pytest.raises(InputError, match="reads embeddings"):
        learn(np.zeros((9, 8, 8)), np.full(9, -1), 2, objective="sorl-spectral")
    with pytest.raises(InputError, match="it takes pictures"):
        learn(rows, labels, 6, objective="gcd", encoder="cnn")
    with pytest.raises(InputError, match="1 or 3 channels"):
        learn(np.zeros((9, 8, 8, 7)), np.full(9, -1), 2, objective="gcd")


def test_exploding_training_says_so() -> None:
    rows, _, labels = blobs(size=10)
    with pytest.raises(InputError, match="no longer finite at step"):
        learn(
            rows,
            labels,
            6,
            objective="scl",
            epochs=30,
            learning_rate=1e30,
            clip=True,
            radius=1e9,
            optimizer="sgd",
            momentum=0,
        )


def test_a_users_own_encoder(tmp_path: Path) -> None:
    rows, _, labels = blobs()
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    model = learn(rows, labels, 6, objective="gcd", encoder=body, **QUICK)
    assert model.transform(rows).shape == (len(rows), 10)
    model.save(tmp_path / "m.offmap")
    stored = store.load(tmp_path / "m.offmap")
    with pytest.raises(StoreError, match="give the same module"):
        OpenWorldModel.restore(stored)
    fresh = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    assert np.array_equal(OpenWorldModel.restore(stored, fresh).predict(rows), model.predict(rows))
    with pytest.raises(InputError, match="rows × features"):
        learn(rows, labels, 6, objective="gcd", encoder=torch.nn.Unflatten(1, (3, 4)))


def test_unseen_rows_go_where_their_like_are() -> None:
    rows, truth, labels = blobs(size=40)
    half = np.arange(len(rows)) % 2 == 0
    for name in ("opencon", "sorl-spectral"):
        settings = {"neighbours": 5} if name == "sorl-spectral" else QUICK
        model = learn(rows[half], labels[half], 6, objective=name, **settings)
        assert open_world_accuracy(truth[~half], model.predict(rows[~half]), [0, 1, 2]).all > 0.95


def test_history_is_written_as_a_table(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=10)
    model = learn(rows, labels, 6, objective="opencon", out=tmp_path / "run", **{**QUICK, "epochs": 3})
    with (tmp_path / "run" / "history.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["loss"]) for row in table] == [row["loss"] for row in model.history]
    parts = {"novel", "labelled", "unlabelled", "divergence"}
    assert set(table[0]) == {"epoch", "loss"} | parts


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=10)
    learn(rows, labels, 6, objective="gcd", out=tmp_path, **QUICK)
    with pytest.raises(StoreError, match="other data or with other settings"):
        learn(rows, labels, 6, objective="gcd", out=tmp_path, balance=0.5, **QUICK)
    with pytest.raises(StoreError, match="other data or with other settings"):
        learn(rows + 1, labels, 6, objective="gcd", out=tmp_path, **QUICK)
    whole = store.load(tmp_path / "checkpoint.offmap")
    store.save(tmp_path / "checkpoint.offmap", whole.kind, {**whole.config, "layout": 99}, whole.tensors)
    with pytest.raises(StoreError, match="another version"):
        learn(rows, labels, 6, objective="gcd", out=tmp_path, **QUICK)


def test_half_of_the_known_classes_play_the_novel_ones() -> None:
    truth = np.repeat(np.arange(6), 10)
    given, shown = hide_classes(truth, 0)
    assert len(shown) == 3
    assert (given[~np.isin(truth, shown)] == -1).all()
    assert [(given == c).sum() for c in shown] == [5, 5, 5]


def test_tuning_prefers_what_finds_hidden_known_classes() -> None:
    rows, truth, _ = blobs(n_classes=8, size=24, spread=0.5)
    found = tune(
        rows, truth, objective="opencon", grid=[{"learning_rate": 10.0}, {"neighbours": 5}], trials=2, epochs=2
    )
    assert len(found.table) == 3
    assert found.settings != {"learning_rate": 10.0}
    with pytest.raises(InputError, match="at least 4"):
        tune(rows, np.where(truth < 3, truth, -1), objective="gcd")


def test_beats_plain_k_means_on_real_sentences(data_folder: Path) -> None:
    from offmap.discovery import KMeans

    rows, truth, labels = thirty_intents(data_folder)
    free = labels < 0
    plain = KMeans(30, random_state=0).fit(rows).labels_
    model = learn(rows, labels, 30, objective="opencon", epochs=2)
    learned = open_world_accuracy(truth[free], model.predict(rows[free]), range(15)).all
    assert learned > open_world_accuracy(truth[free], plain[free], range(15)).all + 0.03


@pytest.mark.parametrize("shape", [(0, 5), (0, 8, 8), (0, 3, 8, 8)])
def test_learning_from_nothing_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="0 inputs: at least 4 are needed"):
        learn(np.zeros(shape), np.zeros(0, int))
