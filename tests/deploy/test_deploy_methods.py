"""Every registered method is either drawn as a graph that gives its scores, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import torch
from deploy_kit import CLASSES, agrees, run, world
from torch import nn

import offmap
from offmap.deploy.guards import GuardFormula
from offmap.deploy.tracing import trace_module
from offmap.deploy.verdicts import VerdictModule
from offmap.detection.calibration import Calibration
from offmap.detection.registry import example_specs
from offmap.errors import InputError
from offmap.extra_passes import Layer, Perturbed, Requirements

REFUSED = {
    "adascale_a|energy": "gradient",
    "adascale_l|energy": "gradient",
    "batchnorm_oracle": "depends on the others in the batch",
    "ensemble": "several networks",
    "godin_g('body.2')": "inner layers",
    "godin_h('body.2')": "inner layers",
    "gram(['body.0', 'body.2'])": "inner layers",
    "mahalanobis(epsilon=0.01)": "gradient",
    "mc_dropout": "dropout",
    "mos('body.2')": "inner layers",
    "odin": "gradient",
    "rankfeat('body.2')": "a second time",
    "react(90, layer='body.0')|energy": "a second time",
    "react(c=0.5, layer='body.0')|energy": "a second time",
}
COMPOSED = [
    "react(c=0.5)|energy",
    "react(90)|dice(0.7)|energy",
    "react(90)|mahalanobis(shrinkage=0.1)",
    "react(90)|knn(5)",
    "ash_s(90)|nnguide(3, alpha=0.2)",
    "react(90)|temperature_scaling|msp",
    "odin(epsilon=0)",
    "knn(5, average=true)",
    "knn(5, normalize=false)",
    "gmm(2, covariance='full')",
    "energy(temperature=3)",
    "knn(5) + react(90)|(energy + 0.5*msp) + vim",
    "0.5*energy",
    "fisher(knn(5) + energy)",
    "stouffer(mahalanobis + energy)",
    "cauchy(knn(5) + energy)",
    "harmonic(knn(5) + energy)",
]


FAMILIES = [
    "msp", "gen", "kl_matching", "react(90)|dice(0.7)|energy", "ash_p(60)|energy", "ash_b(65)|energy",
    "scale(85)|maxlogit", "mahalanobis", "vim", "knn(5)", "fdbd", "openmax", "iforest(trees=5)", "lof(5)",
    "slof(5)", "plda",
    "knn(5) + react(90)|(energy + 0.5*msp)", "stouffer(mahalanobis + energy)", "cauchy(knn(5) + energy)",
]  # fmt: skip


def exportable() -> list[str]:
    """The example of every method but those that ask for more than features and logits, and compositions."""
    names = {spec.split("(")[0].split("|")[0] for spec in REFUSED} - {"mahalanobis", "react"}
    return [spec for spec in example_specs() if spec.split("(")[0].split("|")[0] not in names] + COMPOSED


class Together(nn.Module):
    """Many guards over the same features and logits: drawing them at once is quicker than one by one."""

    def __init__(self, formulas: list[GuardFormula]) -> None:
        super().__init__()
        self.formulas = formulas

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(formula.score(*given) for formula in self.formulas)


def drawn_scores(guards: dict[str, offmap.Detector]) -> Callable[[offmap.Activations], dict[str, np.ndarray]]:
    """The scores of many guards from one graph in ONNX Runtime."""
    features, logits = (torch.from_numpy(np.array(array[:4])) for array in (world().acts.features, world().acts.logits))
    module = Together([GuardFormula(guard, True, CLASSES) for guard in guards.values()])
    names = [f"score{place}" for place in range(len(guards))]
    model = trace_module(module, {"features": features, "logits": logits}, names, None, str)
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString())
    assert [output.type for output in session.get_outputs()] == ["tensor(double)"] * len(guards)

    def run_on(acts: offmap.Activations) -> dict[str, np.ndarray]:
        fed = {"features": np.array(acts.features), "logits": np.array(acts.logits)}
        return dict(zip(guards, session.run(names, fed), strict=True))

    return run_on


def close(guard: offmap.Detector, found: np.ndarray, acts: offmap.Activations) -> bool:
    """Whether scores are the guard's, to a few of float32's digits."""
    expected = guard.score(acts)
    assert guard.calibration is not None
    size = np.maximum(np.abs(expected), guard.calibration.scores.std())
    return bool(np.all(np.abs(found - expected) <= 2e-5 * size))


@pytest.mark.parametrize("spec", exportable())
def test_every_method_has_a_formula_that_scores_as_it_does(spec: str) -> None:
    guard, acts = world().guard(spec), world().acts[500:]
    block = torch.from_numpy(np.array(acts.features)), torch.from_numpy(np.array(acts.logits))
    with torch.no_grad():
        assert close(guard, GuardFormula(guard, True, CLASSES).score(*block).numpy(), acts)


def test_methods_of_every_family_are_drawn_as_they_score() -> None:
    guards = {spec: world().guard(spec) for spec in FAMILIES}
    scores = drawn_scores(guards)
    for rows in (slice(500, 600), slice(0, 1)):
        for spec, found in scores(world().acts[rows]).items():
            assert close(guards[spec], found, world().acts[rows]), spec
    # where a float32 softmax says 1, log1p and expm1 must not be drawn as log(1 + x) and exp(x) - 1
    logits = np.zeros((6, CLASSES), np.float32)
    logits[:, 0] = [0.0, 5.0, 20.0, 40.0, 60.0, 90.0]
    confident = offmap.Activations(np.array(world().acts.features[:6]), world().acts.head, logits)
    found = scores(confident)
    for spec in ("msp", "gen"):
        np.testing.assert_allclose(found[spec], guards[spec].score(confident), rtol=1e-6, atol=0)


@pytest.mark.slow
def test_every_method_is_drawn_as_it_scores() -> None:
    guards = {spec: world().guard(spec) for spec in exportable()}
    assert len(guards) > 45
    for spec, found in drawn_scores(guards)(world().acts[500:]).items():
        assert close(guards[spec], found, world().acts[500:]), spec


@pytest.mark.parametrize(("spec", "reason"), REFUSED.items())
def test_what_needs_more_than_features_and_logits_is_refused_with_the_reason(
    spec: str, reason: str, tmp_path: Path
) -> None:
    guard = offmap.detector(spec)
    fitted_on = tuple(request for request in guard.requirements.extras if isinstance(request, Layer | Perturbed))
    acts = world().net(world().x[:200], requirements=Requirements(extras=fitted_on))
    labelled = offmap.Activations(acts.features, acts.head, np.asarray(acts.logits), acts.predictions, acts.extras)
    guard.fit(labelled)
    with pytest.raises(InputError, match="cannot be exported") as caught:
        offmap.export(world().model, guard, tmp_path / "g.onnx", world().x[:8])
    assert reason in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_p_value_of_exactly_alpha_is_not_above_it() -> None:
    """0.35 is 0.34999999 in float32: a graph that rounds it would call such an input known."""
    calibration = Calibration.of(np.arange(19.0), tpr=0.65)
    score, logits = torch.arange(20, dtype=torch.float64), torch.zeros(20, 2)
    model = trace_module(Judging(calibration), {"score": score, "logits": logits}, ["p_value", "known"], None, str)
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString())
    p_value, known = session.run(None, {"score": score.numpy(), "logits": logits.numpy()})
    expected = calibration.verdicts(score.numpy())
    assert 0.35 in expected.p_value
    np.testing.assert_array_equal(p_value, expected.p_value)
    np.testing.assert_array_equal(known, expected.known)


class Judging(nn.Module):
    """Verdicts alone, as `drawn` calls modules."""

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.verdicts = VerdictModule(calibration, 2)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.verdicts(*given)


@pytest.mark.slow
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("spec", exportable())
def test_every_method_exported_end_to_end(spec: str, by_class: bool, tmp_path: Path) -> None:
    here = world()
    counts = np.bincount(here.acts[300:500].predictions, minlength=CLASSES)
    if by_class and counts.min() < 9:
        pytest.skip("a class has too few calibration inputs for the promise")
    guard = here.guard(spec, by_class=by_class)
    exported = offmap.export(here.model, guard, tmp_path / "g.onnx", here.strange)
    assert exported.difference <= 1e-4
    agrees(exported.path, here.net, guard, here.x[500:])
    assert run(exported.path, here.strange[:1])["known"].shape == (1,)
