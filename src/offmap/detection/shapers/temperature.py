"""Temperature scaling: logits divided by the number that makes their probabilities fit the labels best."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Shaper, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import RowSample, Statistic
from offmap.errors import OffmapWarning

FEW = 10  # known inputs below which nothing says what the temperature is


def no_temperature(logits: Tensor, labels: Tensor) -> str | None:
    """Say why no temperature fits best: the slope of the likelihood has one sign from 1/T = 0 to infinity.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of known inputs.
    labels : Tensor of shape (n,)
        Their classes.

    Returns
    -------
    str or None
        The reason in words, `None` where one temperature is best.

    Examples
    --------
    >>> right = torch.eye(2, dtype=torch.float64).repeat(10, 1)
    >>> no_temperature(right, torch.tensor([0, 1] * 10))
    'all 20 inputs are classified rightly, so the smaller the temperature the better'
    >>> no_temperature(right, torch.tensor([0, 1] * 9 + [0, 0]))
    """
    count = len(logits)
    if count < FEW:
        return f"{count} inputs are too few for a temperature (at least {FEW})"
    own = logits.gather(1, labels[:, None])[:, 0]
    if bool((own >= logits.amax(dim=1)).all()):
        return f"all {count} inputs are classified rightly, so the smaller the temperature the better"
    if float((own - logits.mean(dim=1)).mean()) <= 0:
        return "the logits say no more about the labels than chance, so the larger the temperature the better"
    return None


@register
class TemperatureScaling(Shaper):
    """Divides the logits by the temperature that makes the probabilities of known inputs fit their labels best.

    There is no such temperature when every known input is classified rightly (the smaller, the better, until all
    probabilities are 1 and nothing is left to order inputs by) or when the logits say no more about the labels than
    chance, and none worth the name from fewer than 10 inputs. Then it is 1, with a warning.

    Parameters
    ----------
    rows : int, default=20000
        How many known inputs, chosen by a seeded hash, the temperature is fitted on at most.
    """

    name = "temperature_scaling"
    paper = "Guo et al., On Calibration of Modern Neural Networks, ICML 2017"
    reads = ("logits",)
    fits = ("logits", "labels")
    shapes = "logits"

    rows: int = 20_000

    def check(self) -> None:
        """Require at least one input."""
        self.require(self.rows >= 1, "rows", "the temperature is fitted on at least one input")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return a sample of logits with labels."""
        return {"logits": RowSample(size=self.rows)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add logits and labels."""
        statistics["logits"].update(block.logits, labels=block.labels)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the temperature of the smallest negative log-likelihood, within e^±5; it is convex in 1/T."""
        from scipy.optimize import minimize_scalar

        logits = statistics["logits"].rows.double()
        labels = statistics["logits"].companion("labels")
        if reason := no_temperature(logits, labels):
            warnings.warn(
                f"temperature_scaling: {reason}; the logits are left as they are. Fit on labelled inputs that the "
                "network was not trained on",
                OffmapWarning,
                stacklevel=2,
            )
            return {"temperature": torch.ones((), dtype=torch.float64)}

        def loss(log_temperature: float) -> float:
            scaled = logits * torch.tensor(-log_temperature, dtype=torch.float64).exp()
            return float(torch.nn.functional.cross_entropy(scaled, labels))

        found = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-6})
        return {"temperature": torch.tensor(float(found.x), dtype=torch.float64).exp()}

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """Divide the logits by the temperature."""
        return block.with_logits(block.logits / ready["temperature"].to(block.logits.dtype))
