"""docs/learning-results.md holds the tables of the committed results, and its comparisons hold over all rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_committed_files_say() -> None:
    code = "import gen_learning as g; raise SystemExit(g.PAGE.read_text() != g.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"out of date: run python docs/gen_learning.py\n{done.stderr}"


LABELLED_ONLY = {"ce", "cgdl", "logitnorm", "supcon", "godin", "mos"}
BASELINES = {"k-means", "ss-k-means", "whitened ss-k-means", "discover"}


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, dict[int, list[float]]]]:
    """v2 accuracies by set, method and split, the number of classes given and nothing chosen."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for key, run in json.loads((DOCS.parent / "benchmarks/results/learn.json").read_text()).items():
        name, method, split, *more = key.split("|")
        if not more and "," not in method:  # variants of a method stand beside it, not among the others
            found.setdefault(name, {}).setdefault(method, {})[int(split)] = run["v2"]
    return found


def mean(by_split: dict[int, list[float]], part: int = 0) -> float:
    return fmean(run[part] for run in by_split.values())


def test_what_is_said_of_discovery_and_self_training(runs) -> None:
    banking, clinc = ({m: mean(by) for m, by in runs[name].items()} for name in ("banking77", "clinc150"))
    others = {m: value for m, value in banking.items() if m not in BASELINES | {"self-training"}}
    assert banking["discover"] > max(others.values())
    assert {m for m, value in others.items() if value > banking["discover"] - 1} == {"sorl-spectral", "gcd"}
    assert max(others, key=lambda m: others[m]) == "sorl-spectral"
    whole = {m for m, by in runs["clinc150"].items() if len(by) == 5} - BASELINES - {"self-training"}
    assert {m for m in whole if clinc[m] > clinc["discover"]} == {"gcd", "opencon"}
    shown = f"({clinc['discover']:.1f}; {clinc['gcd']:.1f} and {clinc['opencon']:.1f})"
    assert shown in (DOCS / "learning-results.md").read_text()
    few = set(clinc) - whole - BASELINES - {"self-training"}
    assert all(runs["clinc150"][m][2][0] < runs["clinc150"]["discover"][2][0] for m in few)
    for name, below in (("banking77", {6}), ("clinc150", {3})):
        own, start = runs[name]["self-training"], runs[name]["discover"]
        for part in (0, 1):
            assert all(own[split][part] > start[split][part] for split in own)
        assert {split for split in own if own[split][2] < start[split][2]} == below


def test_what_is_said_of_the_objectives(runs) -> None:
    banking = {m: mean(by) for m, by in runs["banking77"].items()}
    clinc = {m: mean(by) for m, by in runs["clinc150"].items()}
    text = " ".join((DOCS / "learning-results.md").read_text().split())
    gains = [f"{found['gcd'] - found['ss-k-means']:.1f}" for found in (banking, clinc)]
    assert f"`gcd` is {gains[0]} points above semi-supervised k-means on BANKING77 and {gains[1]} on CLINC150" in text
    assert f"above `sorl-spectral` ({clinc['sorl-spectral']:.1f})" in text
    assert clinc["sorl-spectral"] < clinc["discover"]
    near = {m for m in LABELLED_ONLY if banking[m] > banking["gcd"] - 1.5}
    assert near == {"ce", "cgdl", "logitnorm", "supcon"}
    assert max(banking[m] for m in ("sorl", "nscl", "uno")) < banking["simclr"]
    assert all(-2.1 < banking[m] - banking["ce"] < 0 for m in ("cgdl", "fixmatch", "ds3l"))
    assert {m for m in banking if banking[m] < banking["k-means"]} == {"joint", "kcl", "autonovel", "mcl", "dtc"}
    assert abs(banking["sorl-spectral"] - banking["gcd"]) < 0.5
    assert clinc["gcd"] - clinc["sorl-spectral"] == pytest.approx(1.4, abs=0.11)
    assert round(banking["sorl-spectral"] - banking["sorl"]) == 6
    assert round(runs["clinc150"]["sorl-spectral"][2][0] - runs["clinc150"]["sorl"][2][0]) == 2


def test_what_is_said_of_opencon(runs) -> None:
    gains = {name: [by["opencon"][split][0] - by["gcd"][split][0] for split in by["gcd"]] for name, by in runs.items()}
    assert sum(gain > 0 for gain in gains["clinc150"]) == 4
    assert fmean(gains["clinc150"]) == pytest.approx(0.5, abs=0.06)
    assert all(gain < 0 for gain in gains["banking77"])
    assert fmean(gains["banking77"]) == pytest.approx(-1.0, abs=0.05)
    assert (fmean(gains["banking77"]) + fmean(gains["clinc150"])) / 2 == pytest.approx(-0.3, abs=0.05)


def test_what_is_said_of_the_views_that_the_gate_reads() -> None:
    held = json.loads((DOCS.parent / "benchmarks/results/learn.json").read_text())
    for name, mean, least, most in (("banking77", 0.2, -1.3, 2.1), ("clinc150", -0.1, -0.9, 1.1)):
        both, first = (
            [held[f"{name}|{method}|{split}"]["v2"][0] for split in range(2, 7)]
            for method in ("opencon", "opencon, first view")
        )
        gains = [one - other for one, other in zip(both, first, strict=True)]
        assert [round(value, 1) for value in (fmean(gains), min(gains), max(gains))] == [mean, least, most]
    parts = json.loads((DOCS.parent / "benchmarks/results/learn_ablations.json").read_text())
    both = parts["whose embeddings the gate reads (appendix B.3.2)"]["both views"]
    first = parts["all as it is"][""]
    assert [round(both[seed][0] - first[seed][0], 1) for seed in ("0", "1")] == [1.5, 0.7]


def test_what_is_said_of_parameters_and_the_gate() -> None:
    held = json.loads((DOCS.parent / "benchmarks/results/learn_sensitivity.json").read_text())
    means = {key: fmean(run[0] for run in by_seed.values()) for key, by_seed in held["runs"].items()}
    changes: dict[str, dict[str, list[float]]] = {}
    for key, value in means.items():
        name, _, change = key.partition("|")
        if "=" in change:
            changes.setdefault(name, {}).setdefault(change.partition("=")[0], []).append(
                value - means[f"{name}|as it is"]
            )
    assert max(abs(gain) for gains in changes["opencon"].values() for gain in gains) < 2.5
    assert max(abs(gain) for gains in changes["nscl"].values() for gain in gains) < 2.25
    assert [name for name, gains in changes["opencon"].items() if max(gains) < 0] == ["temperature_unlabelled"]
    assert max(gain for gains in changes["opencon"].values() for gain in gains) < 1.3
    assert min(changes["nscl"]["learning_rate"]) > 0
    assert min(changes["nscl"]["beta"][:2]) > 0
    (gate,) = held["gate"].values()
    ranked = sorted(gate["detectors"], key=lambda name: gate["detectors"][name]["fpr95"])
    assert ranked[-2:] == ["msp", "Mahalanobis"]
    best = [gate["detectors"][name]["auroc"] for name in ranked[:3]]
    assert max(best) - min(best) < 0.3
    assert round(gate["scores"]["novel above lambda"], 1) == 2.1
    assert round(gate["scores"]["known below lambda"], 1) == 34.2


def test_what_is_said_of_the_digits() -> None:
    rows = json.loads((DOCS.parent / "benchmarks/results/open_digits.json").read_text())["rows"]
    text = (DOCS / "learning-results.md").read_text()
    for row in rows:
        accuracy = row["accuracy"]["v2"]
        assert " / ".join(f"{accuracy[part]:.1f}" for part in ("all", "known", "novel")) in text, row["method"]
    assert [row["method"] for row in rows] == ["csi", "dualrank", "autonovel"]


def test_what_is_said_of_the_pictures() -> None:
    held = json.loads((DOCS.parent / "benchmarks/results/learn_images.json").read_text())
    for name, found in held.items():
        all_rows = {method: run["v2"] for method, run in found["results"].items()}
        pixels = all_rows.pop("pixels, ss-k-means")[0]
        gain = max(run[0] for run in all_rows.values()) - pixels
        assert gain < 0 if name.startswith("fashion") else 0 < gain < 3.5, name
        assert all_rows["opencon"][2] > all_rows["gcd"][2], name


def test_what_is_said_of_the_toys() -> None:
    (seed,) = json.loads((DOCS.parent / "benchmarks/results/toy.json").read_text())["seeds"].values()
    plain, shifted = seed["SimSiam's"], seed["hue shifted half the time"]
    assert all(run["2-means by colour"] == 100 for run in plain["nscl"].values())
    red, grey = (shifted["nscl"][f"{colour} cylinders labelled"] for colour in ("red", "grey"))
    assert max(red["2-means by colour"], grey["2-means by colour"]) < 60
    assert grey["residual of colour"] < red["residual of colour"]
    for by_labels in (plain["sorl"], shifted["sorl"]):
        free, labelled = by_labels["no labels"], by_labels["cubes labelled"]
        assert all(run[f"residual of {kind}"] > 0.8 for run in (free, labelled) for kind in ("cube", "sphere"))
        assert labelled["3-means sphere"] < free["3-means sphere"]


def test_what_is_said_of_the_cost_of_the_toys() -> None:
    held = json.loads((DOCS.parent / "benchmarks/results/toy_cost.json").read_text())
    text = " ".join((DOCS / "learning-results.md").read_text().split())
    took = held["processor seconds of a step"]
    assert f"takes {took['fast']:.1f} s of a core ({took['plain']:.1f} s before" in text
    assert held["trainings"] == 20
    assert f"makes {held['hours of two cores']:.1f} hours for all twenty on two cores" in text
