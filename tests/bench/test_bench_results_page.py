"""docs/results.md holds what the committed results say: its tables, every number of its text, and its comparisons."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from statistics import fmean

import pytest

DOCS = Path(__file__).parents[2] / "docs"
C10, C100 = "cifar10-densenet", "cifar100-densenet"
NETWORKS = {C10: "CIFAR-10", C100: "CIFAR-100"}


@pytest.fixture(scope="module")
def gen():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("gen_results")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def rows(gen):
    return {name: {(row["method"], row["ood"]): row for row in gen.suite_rows(name)} for name in NETWORKS}


@pytest.fixture(scope="module")
def sweeps(gen):
    """FPR95 by sweep, series and place: means over the unknown sets."""
    found = {}
    for row in gen.thesis()["rows"]:
        places = found.setdefault(row["sweep"], {}).setdefault(row["series"], {})
        places.setdefault(str(row["x"]), []).append(row["fpr95"])
    return {
        sweep: {series: {x: fmean(values) for x, values in places.items()} for series, places in by.items()}
        for sweep, by in found.items()
    }


def off(row) -> float:
    return row["fpr95"] - row["thesis"]["fpr95"]


def test_the_page_of_results_is_what_the_committed_files_say(gen):
    assert gen.PAGE.read_text() == gen.page(), "docs/results.md is out of date: run python docs/gen_results.py"


def test_a_wrong_number_is_noticed(gen):
    from quotes import check_quotes

    text = gen.PAGE.read_text()
    assert check_quotes(text, gen.find) == []
    prose = re.sub(r"<!--.*?-->|^\|.*?$|^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for quote in ("30.13 / 94.58", "23.73 ± 2.8 / 94.53", "49.5 without", "8.07 on", "0.177 to"):
        assert quote in prose
        wrong = quote.replace(quote[:4], "99.9", 1)
        assert check_quotes(text.replace(quote, wrong), gen.find), quote
    assert check_quotes(text + "\n\nIt is 12.3 better.\n", gen.find)[0].startswith("12.3 has no source")
    moved = text.replace("cifar10-densenet > dice(0.9)|energy > svhn\n", "cifar10-densenet > dice(0.8)|energy > svhn\n")
    assert any("nothing stands there" in fault for fault in check_quotes(moved, gen.find))


def test_figures_of_the_thesis_that_are_found_again(rows):
    for name, found in rows.items():
        for method in ("msp", "energy", "weight_pruning(0.9)|energy"):
            assert abs(off(found[method, "svhn"])) < 1, (name, method)
    assert abs(off(rows[C10]["dice(0.9)|energy", "svhn"])) < 5.10
    assert 4.94 < abs(off(rows[C100]["dice(0.9)|energy", "svhn"])) < 5.1


def test_where_printed_figures_come_from(gen, rows):
    made = {name: gen.read(name)[0] for name in ("react_dice.json", "odin.json", "mahalanobis_layers.json")}
    for name, found in rows.items():
        printed = found["react(c=1.0)|energy", "svhn"]["thesis"]["fpr95"]
        by_percentile = {row["percentile"]: row for row in made["react_dice.json"][name]["react"]}
        assert abs(by_percentile[96]["svhn fpr95"] - printed) < 1
        assert found["react(auto)|energy", "svhn"]["chosen"] == "react(95)|energy"
        best = min(by_percentile.values(), key=lambda row: row["svhn fpr95"] + row["textures fpr95"])
        assert best["percentile"] == {C10: 98, C100: 96.5}[name]
        printed = found["unit_pruning(0.9)|energy", "svhn"]["thesis"]["fpr95"]
        tenth = next(row for row in made["react_dice.json"][name]["unit pruning"] if row["p"] == 0.1)
        assert abs(tenth["svhn fpr95"] - printed) < 0.6
        step = found["mahalanobis(epsilon=0.002)", "svhn"]["fpr95"]
        assert abs(step - found["mahalanobis", "svhn"]["fpr95"]) < 5
    assert off(rows[C10]["unit_pruning(0.9)|energy", "svhn"]) > 10
    odin = {name: rows[name]["odin(epsilon=0.02)", "svhn"] for name in rows}
    assert abs(off(odin[C10])) < 3 < off(rows[C10]["odin(epsilon=0.01)", "svhn"])
    assert abs(off(odin[C100])) < 2 * odin[C100]["error"]["fpr95"]
    long = rows[C100]["odin(epsilon=0.04)", "svhn"]
    assert off(long) > 4 * long["error"]["fpr95"]
    layers = made["mahalanobis_layers.json"]
    cut = {
        name: next(row for row in layers[name]["inverted"] if row["cut"] == layers["float32 cut"])["svhn fpr95"]
        for name in rows
    }
    assert abs(cut[C10] - rows[C10]["mahalanobis", "svhn"]["thesis"]["fpr95"]) < 3
    assert cut[C100] > rows[C100]["mahalanobis", "svhn"]["thesis"]["fpr95"] + 20
    weighed = layers[C100]["layers"]
    assert weighed["weighed"]["svhn fpr95"] < weighed["penultimate"]["svhn fpr95"] - 5


def test_which_method_is_best(gen, rows):
    for name, found in rows.items():
        on_svhn = {method: row["fpr95"] for (method, ood), row in found.items() if ood == "svhn"}
        others = {method: value for method, value in on_svhn.items() if not method.startswith("knn")}
        assert on_svhn["knn(auto)"] < min(others.values())
        assert min(others, key=lambda method: others[method]) == "lts(95)|energy", name
    textures = {name: {m: row["fpr95"] for (m, ood), row in rows[name].items() if ood == "textures"} for name in rows}
    assert min(textures[C10], key=lambda method: textures[C10][method]).startswith("knn")
    better = {m for m, value in textures[C100].items() if value < textures[C100]["knn(auto)"]}
    assert better == {"vim", "ssd(tied=True)"}
    thesis = {
        name: {m: row["fpr95"] for (m, ood), row in rows[name].items() if ood == "svhn" and row["thesis"]}
        for name in rows
    }
    assert min(thesis[C100], key=lambda method: thesis[C100][method]) == "odin(epsilon=0.02)"
    made = gen.read("mahalanobis_layers.json")[0]
    for name, best in ((C10, "block3"), (C100, "weighed")):
        forms = {layer: part["svhn fpr95"] for layer, part in made[name]["layers"].items()}
        cuts = [row["svhn fpr95"] for row in made[name]["inverted"]]
        assert min(forms, key=lambda layer: forms[layer]) == best
        assert forms[best] < min([*cuts, *thesis[name].values()])
    assert min(row["svhn fpr95"] for row in made[C10]["inverted"]) < min(thesis[C10].values())


def test_answers_of_the_thesis_that_are_found_again(sweeps):
    for known in NETWORKS.values():
        (by_p,) = sweeps[f"dice-sparsity-{known}"].values()
        middle = [by_p[p] for p in ("0.1", "0.3", "0.5", "0.7", "0.9")]
        assert max(middle) < by_p["0"]
        assert by_p["0.99"] > max(middle)
        (directed,) = sweeps[f"dice-sparsifiers-{known}"].values()
        assert directed["dice"] == min(directed.values())
        assert directed["dice"] < min(directed["weight_dropout"], directed["unit_dropout"]) - 20
    best = {series: min(found.values()) for series, found in sweeps["knn-grid"].items()}
    assert abs(best["10%"] - best["100%"]) < 3
    assert best["1%"] - best["100%"] > 5
    assert sweeps["knn-grid"]["10%"]["200"] == best["10%"]
    normal = {series: min(found.values()) for series, found in sweeps["knn-normalised"].items()}
    assert normal["normalised"] < 0.7 * normal["as they are"] == 0.7 * sweeps["knn-normalised"]["as they are"]["10"]
    average = {series: min(found.values()) for series, found in sweeps["knn-average"].items()}
    assert abs(average["k-th"] - average["average"]) < 2
    (others,) = sweeps["knn-others"].values()
    own = others.pop("knn(50)")
    assert own < min(others.values()) - 5
    assert min(others, key=lambda name: others[name]) == "pca(50)"


def test_answers_of_the_thesis_that_are_not(gen, sweeps):
    gaps = {row["p"]: row for row in gen.thesis()["dice mean gap"]}
    assert gaps[0.9]["gap"] < gaps[0]["gap"]
    assert gaps[0.9]["spread"] < gaps[0]["spread"]
    knn = sweeps["knn-react"]
    assert min(value for series, found in knn.items() if series != "knn" for value in found.values()) > min(
        knn["knn"].values()
    )
    noise = {}
    for trial in gen.thesis()["noise validation"]:
        noise.setdefault(trial["method"], []).append(trial["noise fpr95"])
    assert min(noise["dice(auto)|energy"]) == 100
    assert max(noise["knn(auto)"]) == 0
    assert noise["react(auto)|energy"].count(0) > 1


def test_the_small_networks(gen, sweeps):
    scores, norms = sweeps["react-scores"], sweeps["react-normalisation"]
    assert all(scores["with ReAct"][score] < scores["plain"][score] - 3 for score in ("msp", "energy", "odin"))
    layers = sweeps["react-layers"]["react(90)|energy"]
    last = layers.pop("penultimate")
    assert last < min(layers.values()) - 5
    for norm in ("GroupNorm", "WeightNorm"):
        assert abs(norms["energy"][norm] - norms["react(90)|energy"][norm]) < 3
    (oracle,) = sweeps["batchnorm-oracle"].values()
    assert oracle["batchnorm_oracle"] < scores["with ReAct"]["energy"] - 20
    (layer,), (objective,) = sweeps["knn-layer"].values(), sweeps["knn-objective"].values()
    assert layer["penultimate"] < layer["projection"]
    assert objective["cross-entropy"] < objective["SupCon"]
    right = [row["id_accuracy"] for row in gen.sweep_rows("react-normalisation")]
    assert [round(min(right)), round(max(right))] == [78, 84]


def test_small_pictures(gen):
    by_method = {}
    for row in gen.suite_rows("fashion-mnist"):
        by_method.setdefault(row["method"], []).append(row["fpr95"])
    means = {method: fmean(values) for method, values in by_method.items()}
    ranked = sorted(means, key=lambda method: means[method])
    assert {ranked[0], ranked[14]} == {"lof(50)", "ocsvm"}
    on_features = {"lof", "gram", "mahalanobis", "rmds", "gmm", "ssd", "pnml", "pca", "vim", "knn", "residual", "loda"}
    names = [re.match(r"\w+", method)[0] for method in ranked[:15]]
    assert set(names) == on_features | {"iforest", "ocsvm", "batchnorm_oracle"}
    of_logits = [m for m in ranked[15:] if m.partition("(")[0] not in ("fdbd", "nci", "nnguide", "rankfeat", "she")]
    assert of_logits[:2] == ["openmax", "ash_s(90)|energy"]
    assert "she" in ranked[-2:]
    digits = {row["method"]: row["fpr95"] for row in gen.suite_rows("digits")}
    assert min(digits, key=lambda method: digits[method]) == "ssd(tied=True)"
    assert min(digits[m] for m in ("mahalanobis", "vim")) > 3 * digits["msp"] > 3 * digits["maxlogit"]
    ranked = sorted(digits, key=lambda method: digits[method])
    assert [m.partition("(")[0] for m in ranked[:3]] == ["ssd", "pnml", "rmds"]
    assert ranked[-1] == "ocsvm"
    plain = (
        "maxlogit",
        "temperature_scaling|energy",
        "energy",
        "odin",
        "gen",
        "entropy",
        "msp",
        "kl_matching",
        "openmax",
    )
    inside = [m for m in plain if digits["maxlogit"] <= digits[m] <= digits["msp"]]
    assert set(plain) - set(inside) <= {"kl_matching", "openmax", "temperature_scaling|energy"}


def test_the_packaged_classifier_and_the_peers(gen):
    rows = {(row["method"], row["ood"]): row for row in gen.suite_rows("imagenet-efflite0")}
    assert rows["react(90)|energy", "ood"]["auroc"] > rows["energy", "ood"]["auroc"] + 5
    (case,) = gen.read("suite.json")[0]["suites"].values()
    assert sum(difference <= 1e-4 for difference in case["auroc_difference"].values()) == 7
    assert (case["at_least"], case["memory_at_least"], case["repeats"], len(case["methods"])) == (5, 3, 1, 12)
