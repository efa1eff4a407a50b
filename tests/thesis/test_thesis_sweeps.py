"""The thesis' sweeps: declared with their sources, measured and drawn; the networks they compare."""

from __future__ import annotations

import re

import numpy as np
import pytest

from offmap.bench.cache import Extractor
from offmap.bench.sets import load_set
from offmap.bench.suites import NetworkSpec, load_suite
from offmap.detection import detector
from offmap.errors import InputError
from thesis.ablations import build_page, run_sweeps
from thesis.networks import make_variant
from thesis.sweeps import SWEEPS


def test_every_declared_sweep_names_detectors():
    assert len({sweep.name for sweep in SWEEPS}) == len(SWEEPS) >= 18
    for sweep in SWEEPS:
        assert re.search(r"\((section|appendix) \w\.\d", sweep.says), "every sweep says where the thesis says it"
        for point in sweep.points:
            detector(point.method)
        assert len({(point.series, point.x, point.network) for point in sweep.points}) == len(sweep.points)


@pytest.mark.data
@pytest.mark.slow
def test_sweeps_are_measured_and_drawn(data_folder, tmp_path):
    names = ["react-percentile-CIFAR-10", "dice-subset-CIFAR-10"]
    found = run_sweeps(names, data=data_folder, cache=tmp_path, limit=100, seeds=1, noise=40)
    assert list(found.sweeps) == names
    accuracy = {point.x: point.id_accuracy for point in found.sweeps[names[0]]}
    assert accuracy[10] < accuracy[99], "cutting nearly everything loses the classes"
    assert [row["p"] for row in found.gaps] == [0, 0.1, 0.3, 0.5, 0.7, 0.9]
    assert {trial["method"] for trial in found.validation} == {"react(auto)|energy", "dice(auto)|energy", "knn(auto)"}
    assert build_page(found).html().count('class="plot"') >= 2 + 3 + 1 + 8


def test_supervised_contrastive_training_makes_features_that_tell_digits_apart(tmp_path):
    suite = load_suite("digits")
    assert suite.train is not None
    train, test = load_set(suite.train, None), load_set(suite.test, None)
    spec = NetworkSpec("cnn", "cnn", {"width": 8, "epochs": 3, "objective": "supcon"})
    acts = Extractor(make_variant(spec, train, None, tmp_path), tmp_path, batch_size=64).extract_plain(test)
    assert np.mean(acts.predictions == test.samples.labels) > 0.8
    tapped = NetworkSpec("cnn", "cnn", {**spec.options, "layer": "projection"})
    assert (
        Extractor(make_variant(tapped, train, None, tmp_path), tmp_path, batch_size=64)
        .extract_plain(test)
        .features.shape[1]
        == 32
    )
    assert len(list(tmp_path.glob("weights-*"))) == 1, "another tap is not another training"


def test_other_normalisations_are_other_networks(tmp_path):
    suite = load_suite("digits")
    assert suite.train is not None
    train = load_set(suite.train, None).part(60)
    options = {"width": 4, "epochs": 1}
    made = [
        make_variant(NetworkSpec("cnn", "cnn", {**options, **more}), train, None, tmp_path).net.fingerprint()
        for more in ({}, {"norm": "batch"}, {"norm": "group"}, {"norm": "weight"})
    ]
    assert made[0] == made[1]
    assert len(set(made)) == 3
    with pytest.raises(InputError, match="'batch', 'group' or 'weight'"):
        make_variant(NetworkSpec("cnn", "cnn", {**options, "norm": "layer"}), train, None, tmp_path)
    with pytest.raises(InputError, match="'ce'"):
        make_variant(NetworkSpec("cnn", "cnn", {**options, "objective": "mse"}), train, None, tmp_path)
