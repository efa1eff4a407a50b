"""The trainer's options: several processes, pre-training, frozen parts, mixed precision, logs, recipes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_blobs import blobs, pictures

from offmap import store
from offmap.errors import InputError
from offmap.learning import OpenWorldModel, learn, objective
from offmap.learning.mixed_precision import check_mixed_precision
from offmap.learning.settings import resolve
from offmap.learning.trainer import decay
from offmap.models.encoders import make_encoder

HERE = Path(__file__).parent
QUICK = {"epochs": 2, "batch_size": 64, "neighbours": 5}


def run_ranks(folder: Path, names: list[str], processes: int, size: int) -> list[OpenWorldModel]:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, str(HERE / "ranks_script.py"), str(folder), str(size), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [OpenWorldModel.restore(store.load(folder / name / "model.offmap")) for name in names]


def test_two_processes_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    names = ["opencon", "orca", "sorl"]  # with prototypes, with class vectors that learn, with neither
    together = zip(
        run_ranks(tmp_path / "alone", names, processes=1, size=64),
        run_ranks(tmp_path / "pair", names, processes=2, size=32),
        strict=True,
    )
    rows = blobs(size=50)[0]
    for alone, pair in together:
        assert pair.config["processes"] == 2
        for one, two in zip(alone.history, pair.history, strict=True):
            assert two == pytest.approx(one, abs=1e-5)
        assert pair.transform(rows) == pytest.approx(alone.transform(rows), abs=1e-4)


def test_pictures_are_learned_from_views_first() -> None:
    images, truth = pictures()
    labels = np.where((truth < 2) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    plain = learn(images, labels, 4, objective="gcd", epochs=0, batch_size=40, projection=8)
    for name in ("simclr", "scl"):
        first = learn(
            images, labels, 4, objective="gcd", epochs=0, batch_size=40, projection=8, pretrain=name, pretrain_epochs=1
        )
        assert not np.allclose(first.transform(images), plain.transform(images))
        assert first.history == []
    with pytest.raises(InputError, match="pretrain='nonsense'"):
        learn(images, labels, 4, objective="gcd", pretrain="nonsense")


def test_a_killed_pre_training_is_not_done_again(tmp_path: Path) -> None:
    images, truth = pictures()
    settings = {"epochs": 1, "batch_size": 40, "projection": 8, "pretrain": "simclr", "pretrain_epochs": 1}
    whole = learn(images, np.where(truth < 2, truth, -1), 4, objective="sorl", out=tmp_path, **settings)
    (tmp_path / "checkpoint.offmap").unlink()  # as if it was killed between the two
    again = learn(images, np.where(truth < 2, truth, -1), 4, objective="sorl", out=tmp_path, **settings)
    assert np.array_equal(whole.transform(images), again.transform(images))


def test_only_the_named_part_of_a_network_learns() -> None:
    images, truth = pictures()
    body = make_encoder("resnet18", (1, 16, 16), width=4)[0]
    before = {name: value.clone() for name, value in body.state_dict().items()}
    learn(
        images, np.where(truth < 2, truth, -1), 4, body, objective="opencon", epochs=1, batch_size=40, keep=("layer4",)
    )
    changed = {name.split(".")[0] for name, value in body.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"layer4"}
    with pytest.raises(InputError, match="no parameter has that name"):
        learn(images, np.where(truth < 2, truth, -1), 4, body, objective="opencon", epochs=1, keep=("layer9",))


def test_a_pre_trained_network_gets_pictures_scaled_as_it_wants_them(tmp_path: Path) -> None:
    images, truth = pictures()
    body = make_encoder("resnet18", (1, 16, 16), width=4)[0]
    labels = np.where(truth < 2, truth, -1)
    scale = {"mean": (0.4,), "std": (0.1,)}
    model = learn(images, labels, 4, copy.deepcopy(body), objective="gcd", epochs=0, projection=0, **scale)
    plain = torch.from_numpy(np.asarray(images, np.float32)[:, None])
    expected = body.eval()((plain / (255 if images.dtype == np.uint8 else 1) - 0.4) / 0.1)
    expected = torch.nn.functional.normalize(expected, dim=1).detach().numpy()
    assert np.allclose(model.transform(images), expected, atol=1e-5)
    model.save(tmp_path / "model.offmap")
    again = OpenWorldModel.restore(store.load(tmp_path / "model.offmap"), encoder=copy.deepcopy(body))
    assert np.allclose(again.transform(images), expected, atol=1e-5)
    with pytest.raises(InputError, match=r"mean=\(1, 2\): one number, or one for each of 1 channels"):
        learn(images, labels, 4, body, objective="gcd", epochs=0, mean=(1, 2))
    with pytest.raises(InputError, match="std="):
        learn(images, labels, 4, body, objective="gcd", epochs=0, std=(0.0,))


@pytest.mark.parametrize(
    ("name", "preset"),
    [(name, preset) for name in ("opencon", "sorl", "nscl", "supcon", "ce") for preset in objective(name).recipes],
)
def test_published_recipes_run(name: str, preset: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3)).astype(np.uint8)
    labels = np.array([0, 0, 1, 1] + 8 * [-1])
    few = {"epochs": 1, "pretrain_epochs": 1, "batch_size": 12}
    small = make_encoder("resnet18", (3, 16, 16), width=2)[0]
    model = learn(images, labels, 4, small, objective=name, preset=preset, **few)
    training = model.config["training"]
    assert training["optimizer"] == "sgd"
    assert training["pretrain"] == {"opencon": "simclr", "sorl": "scl"}.get(name)
    assert np.isfinite(model.transform(images)).all()


def test_the_thesis_starts_prototypes_at_random_and_the_default_does_not() -> None:
    kind = objective("opencon")
    starts = {preset: resolve(kind, "images", preset, {})[0]["start"] for preset in ("auto", "thesis", *kind.recipes)}
    assert starts.pop("auto") == "clusters"
    assert set(starts.values()) == {"random"}
    assert resolve(kind, "images", "authors", {})[0]["start"] == "random"
    assert resolve(kind, "images", "thesis", {"start": "clusters"})[0]["start"] == "clusters"


def test_the_gate_reads_both_views_but_in_the_authors_code() -> None:
    kind = objective("opencon")
    views = {
        preset: resolve(kind, "images", preset, {})[0]["gate_views"] for preset in ("auto", "thesis", *kind.recipes)
    }
    assert set(views.values()) == {"both"}
    assert resolve(kind, "embeddings", "auto", {})[0]["gate_views"] == "both"
    assert resolve(kind, "images", "authors", {})[0]["gate_views"] == "first"


def test_the_recipe_of_knn_plus_is_the_published_one() -> None:
    _, training = resolve(objective("supcon"), "images", "cifar10", {})
    assert (training.epochs, training.batch_size, training.learning_rate) == (500, 1024, 0.5)
    _, plain = resolve(objective("ce"), "images", "cifar10", {})
    rates = [plain.learning_rate * decay(plain, epoch / 100) for epoch in (0, 49, 50, 75, 90)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001])


def test_a_preset_without_a_recipe_for_the_objective_is_refused() -> None:
    images = np.zeros((6, 8, 8, 3), np.uint8)
    with pytest.raises(InputError, match="sorl has no recipe for it; its recipes: cifar10, cifar100"):
        learn(images, [0, 1, -1, -1, -1, -1], 3, objective="sorl", preset="imagenet100")
    with pytest.raises(InputError, match="gcd has no recipe for it; its recipes: none"):
        learn(images, [0, 1, -1, -1, -1, -1], 3, objective="gcd", preset="cifar10")


def test_a_recipe_names_its_network() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    model = learn(
        images, [0, 1, -1, -1, -1, -1], 3, objective="opencon", preset="cifar100", epochs=0, pretrain_epochs=0
    )
    assert model.net.encoder.config["name"] == "resnet18"
    assert model.transform(images).shape == (6, 128)


def test_mixed_precision_stays_near() -> None:
    rows, _, labels = blobs()
    full, half = (learn(rows, labels, 6, objective="opencon", amp=amp, **QUICK) for amp in (None, "bfloat16"))
    assert half.history[-1]["loss"] == pytest.approx(full.history[-1]["loss"], rel=0.02)
    assert half.history != full.history
    with pytest.raises(InputError, match="amp='float16'"):
        learn(rows, labels, 6, objective="opencon", amp="float16")


def test_mixed_precision_that_would_end_the_process_is_refused() -> None:
    illegal = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    with pytest.raises(InputError, match="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        check_mixed_precision("cpu", illegal)
    check_mixed_precision("cuda", illegal)  # only the processor is tried
    check_mixed_precision("cpu", "raise SystemExit(1)")  # no signal: whatever is wrong will be told when it is used


@pytest.mark.slow
def test_a_compiled_network_learns_the_same() -> None:
    rows, _, labels = blobs()
    plain, compiled = (learn(rows, labels, 6, objective="gcd", compile=compile, **QUICK) for compile in (False, True))
    for one, two in zip(plain.history, compiled.history, strict=True):
        assert two == pytest.approx(one, abs=1e-3)


def test_views_of_ones_own_are_used() -> None:
    from offmap.data.views import ImageViews

    images, truth = pictures()
    labels = np.where(truth < 2, truth, -1)
    settings = {"epochs": 1, "batch_size": 40, "projection": 8}
    usual = learn(images, labels, 4, objective="gcd", **settings).history
    plain = learn(
        images, labels, 4, objective="gcd", views=ImageViews(scale=(1.0, 1.0), flip=0.0, jitter_chance=0.0), **settings
    )
    assert plain.history[0]["unlabelled"] < usual[0]["unlabelled"]  # two equal views agree more


def test_smoothed_groups_have_centres_among_the_rows_themselves() -> None:
    from offmap.learning.grouping import group_rows

    rows, _, labels = blobs(spread=0.4, size=60)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    plain, smooth = (group_rows(unit, 6, labels, 3, seed=0, smoothing=n) for n in (0, 10))
    for found, centres in (plain, smooth):
        assert centres.shape == (6, 12)
        means = np.stack([unit[found == c].mean(axis=0) for c in range(6)])
        assert centres == pytest.approx(means / np.linalg.norm(means, axis=1, keepdims=True), abs=0.02)
    assert (smooth[0][labels >= 0] == labels[labels >= 0]).all()
