"""Tests of the tests: each formula is mistyped once in a copy of the package, and its tests must notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import offmap

HERE = Path(__file__).parent
SOURCE = Path(offmap.__file__).parent

MUTATIONS = [
    ("theory/rectified.py", "1 + skew, 1 - skew)", "1 - skew, 1 + skew)", "rectified"),
    ("theory/rectified.py", "mean = centre - 4 * skew", "mean = centre - 2 * skew", "rectified"),
    ("theory/rectified.py", "mean - level + below", "mean + level + below", "rectified"),
    ("theory/rectified.py", "(1 - skew) * scale) * (1 - skew)", "(1 + skew) * scale) * (1 - skew)", "rectified"),
    ("theory/rectified.py", "scale * _phi(reach) - gap", "scale * _phi(reach) + gap", "rectified"),
    ("theory/rectified.py", "esn_mean(mu, sigma, epsilon) - level", "esn_mean(mu, sigma, epsilon)", "rectified"),
    ("theory/rectified.py", "np.sqrt((a + b) / n)", "np.sqrt((a + b) / (2 * n))", "rectified"),
    ("theory/rectified.py", "(ndtr(-far) + far * _phi(far))", "(ndtr(-far) - far * _phi(far))", "rectified"),
    ("theory/rectified.py", "- 0.5 - near * _phi(near)", "- 0.5 + near * _phi(near)", "rectified"),
    ("theory/sparsified.py", "variances[~mask].sum()", "variances[mask].sum()", "sparsified"),
    ("theory/sparsified.py", "pairs - kept_pairs", "pairs + kept_pairs", "sparsified"),
    ("theory/sparsified.py", "inner.var() + outer.var()", "inner.var() - outer.var()", "sparsified"),
    ("theory/density.py", "np.log(np.pi) - gammaln(dimension / 2 + 1)", "np.log(np.pi) - gammaln(dimension / 2)",
     "density"),
    ("theory/density.py", "(1 - distance**2 / 4)", "(1 - distance**2 / 2)", "density"),
    ("theory/density.py", "betainc((m - 1) / 2", "betainc(m / 2", "density"),
    ("theory/density.py", "np.log(k / n) - volume", "np.log(n / k) - volume", "density"),
    ("theory/density.py", "np.log1p(-beta) + np.log1p(-epsilon)", "np.log1p(-beta) - np.log1p(-epsilon)", "density"),
    ("theory/density.py", "known + epsilon * outside", "known + outside", "density"),
    ("theory/density.py", "/ (k - 2)", "/ (k + 2)", "density"),
    ("theory/normality.py", "- 2 * (1 + square)", "- (1 + square)", "density"),
    ("theory/normality.py", "n * (1 + 2 * square)", "n * (1 + square)", "density"),
    ("theory/normality.py", "n * (2 * d + 1) / 4", "n * (d + 1) / 4", "density"),
    ("theory/normality.py", "d * (d + 2) * square**2 / (2 * a**2)", "d * (d + 2) * square**2 / a**2", "density"),
    ("theory/normality.py", "2 * (1 + 4 * square)", "2 * (1 + 2 * square)", "density"),
    ("theory/residuals.py", "rest = target - span @", "rest = target + span @", "residuals"),
    ("theory/residuals.py", "norm(rows.T @ target) / np", "norm(rows.T @ target) ** 2 / np", "residuals"),
    ("theory/residuals.py", "ignorance**2 * (1 - kappa**2)", "ignorance * (1 - kappa**2)", "residuals"),
    ("theory/residuals.py", "/ (w.max() + w.min())", "/ (np.sqrt(w.max()) + np.sqrt(w.min()))", "residuals"),
    ("theory/residuals.py", "(ignorance - inside) ** 2", "ignorance ** 2", "residuals"),
    ("../thesis/toy_graphs.py", "[tau_1, tau_c, tau_s, tau_0]", "[tau_1, tau_s, tau_c, tau_0]", "toy_graphs"),
    ("../thesis/toy_graphs.py", "2 * (tau_s - tau_c) ** 2", "(tau_s - tau_c) ** 2", "toy_graphs"),
    ("../thesis/toy_graphs.py", "2 * tau_s**2 / ((z - tau_c)", "tau_s**2 / ((z - tau_c)", "toy_graphs"),
    ("metrics/kmeans_measure.py", "(sizes[:, None] * (means", "((means", "perturbation"),
    ("theory/perturbation.py", "pull[k:] = 2 * lead / gaps", "pull[k:] = lead / gaps", "perturbation"),
    ("theory/perturbation.py", "push[k:] = 2 * lead**2 / gaps", "push[k:] = 2 * lead / gaps", "perturbation"),
    ("theory/perturbation.py", "broadcast_to(2 * lead", "broadcast_to(lead", "perturbation"),
    ("theory/perturbation.py", "- part - ratio *", "- part + ratio *", "perturbation"),
    ("theory/class_perturbation.py", "tie - 2 * (1 - sizes / n)", "tie - (1 - sizes / n)", "perturbation"),
    ("theory/class_perturbation.py", "inside / between**2", "inside / between", "perturbation"),
    ("theory/contrast.py", "- n) / (n - 1)", "- n) / n", "contrast"),
    ("theory/contrast.py", "kappa * np.asarray(features", "np.asarray(features", "contrast"),
    ("theory/contrast.py", "- xlogy(weights, weights)", "+ xlogy(weights, weights)", "contrast"),
    ("theory/contrast.py", "(1 - gamma) / tau", "gamma / tau", "contrast"),
    ("theory/contrast.py", "degrees.sum() ** 2 - (degrees**2).sum()", "degrees.sum() ** 2", "contrast"),
    ("theory/advice.py", "np.sqrt(new.sum()))) - before", "np.sqrt(new.sum())))", "advice"),
    ("graph/build.py", "np.sqrt(eta_u / len(free))", "np.sqrt(eta_u)", "graph_build"),
    ("graph/build.py", "1.0 / sizes[inverse]", "1.0 + 0 * sizes[inverse]", "graph_build"),
    ("graph/spectral.py", "np.sqrt(np.clip(self.values, 0.0, None))", "np.clip(self.values, 0.0, None)",
     "graph_spectral"),
]  # fmt: skip


NO_SHRINKING = """
from hypothesis import Phase, settings

settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], deadline=None)
settings.load_profile("mutants")
"""


def test_file(name: str) -> Path:
    folder = "graph" if name.startswith("graph") else "thesis" if name == "toy_graphs" else "theory"
    stem = name if folder == "graph" else f"{folder}_{name}"
    return HERE.parent / folder / f"test_{stem}.py"


test_file.__test__ = False


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    target = tmp_path_factory.mktemp("mutants") / "offmap"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE.parents[1] / "benchmarks" / "thesis", target.parent / "thesis")
    (target.parent / "no_shrinking.py").write_text(NO_SHRINKING)
    return target


def run_tests(copy, tests):
    """Run a file of tests on the copy of the package."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no_shrinking",
            "-o",
            f"pythonpath={copy.parent}",
            str(test_file(tests)),
        ],
        env={**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=copy.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("file", "right"), [mutation[:2] for mutation in MUTATIONS])
def test_every_formula_is_where_the_list_says(copy, file, right):
    assert right in (copy / file).read_text(), f"{file} no longer holds {right!r}: update the list of mutations"


@pytest.mark.slow
@pytest.mark.parametrize("tests", sorted({mutation[3] for mutation in MUTATIONS}))
def test_the_copy_passes_as_long_as_nothing_is_mistyped(copy, tests):
    run = run_tests(copy, tests)
    assert run.returncode == 0, run.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{m[0]}:{m[2]}" for m in MUTATIONS])
def test_a_mistyped_formula_is_noticed(copy, mutation):
    file, right, wrong, tests = mutation
    target = copy / file
    text = target.read_text()
    target.write_text(text.replace(right, wrong, 1))
    try:
        run = run_tests(copy, tests)
    finally:
        target.write_text(text)
    assert run.returncode == 1, f"the tests did not notice {wrong!r}:\n{run.stdout[-2000:]}"
