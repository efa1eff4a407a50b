"""CombOOD: the log density that neighbours estimate plus that of one Gaussian of reshaped features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.neighbors import KNN
from offmap.detection.statistics import Statistic
from offmap.errors import InputError

TINY = 1e-24  # a squared distance below it counts as it: a known input met again
LARGEST = 1e6  # a reshaped feature beyond it, in standard deviations, counts as it
HALF_EXPONENTS = (math.log(torch.finfo(torch.float64).max) + math.log(torch.finfo(torch.float64).eps)) / 2
COLUMNS = 64  # whose powers are sought at once, so that they stay in the cache
SECANTS = 60  # at most; about 20 are enough


def yeo_johnson(values: Tensor, powers: Tensor) -> Tensor:
    """Make columns more normal by a power of each (Yeo & Johnson 2000).

    Examples
    --------
    >>> yeo_johnson(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.tensor([1.0, 0.0]))
    tensor([[ 1.0000,  0.6931],
            [-1.0000, -1.5000]])
    """
    above, below = values.clamp(min=0), (-values).clamp(min=0)
    zero, two = powers.abs() < 1e-12, (powers - 2).abs() < 1e-12
    power, other = torch.where(zero, 1.0, powers), torch.where(two, 1.0, 2 - powers)
    raised = torch.where(zero, torch.log1p(above), ((1 + above) ** power - 1) / power)
    lowered = torch.where(two, torch.log1p(below), ((1 + below) ** other - 1) / other)
    return torch.where(values >= 0, raised, -lowered)


def likeliest_powers(values: Tensor) -> Tensor:
    """Find the power that makes each column the most normal, as SciPy's ``yeojohnson`` does one column at a time.

    The derivative of the likelihood falls through 0 at the best power. A secant within an interval that holds the zero,
    which shrinks from both sides (the Illinois rule), finds it in all columns at once.

    Parameters
    ----------
    values : Tensor of shape (n, d)
        Standardised columns, float64.

    Returns
    -------
    Tensor of shape (d,)
        The powers, within what float64 can raise the values to.

    Examples
    --------
    >>> skewed = torch.linspace(-1, 1, 201, dtype=torch.float64).exp()[:, None] - 1
    >>> round(likeliest_powers(skewed).item(), 2)
    0.01
    """
    return torch.cat([_powers(part) for part in torch.split(values, COLUMNS, dim=1)])


def _powers(values: Tensor) -> Tensor:
    logs, up = torch.log1p(values.abs()), values >= 0
    signed = torch.where(up, logs, -logs)
    most = torch.log1p(20 * values.abs().amax(dim=0)).clamp(min=1e-12)
    bound = HALF_EXPONENTS / most  # a power beyond it, or 2 less it, would overflow
    low, high = 2 - bound, bound

    def slope(powers: Tensor) -> Tensor:
        exponent = torch.where(up, powers, 2 - powers)
        flat = exponent.abs() < 1e-5
        divided = torch.where(flat, 1.0, exponent)
        size = torch.where(flat, logs, torch.expm1(exponent * logs) / divided)
        turn = torch.where(flat, logs.square() / 2, (logs * (1 + exponent * size) - size) / divided)
        raised = torch.where(up, size, -size)
        raised = raised - raised.mean(dim=0)
        return signed.mean(dim=0) - (raised * turn).mean(dim=0) / raised.square().mean(dim=0).clamp(min=1e-300)

    at_low, at_high = slope(low), slope(high)
    inside = (at_low > 0) & (at_high < 0)
    best = torch.where(at_low <= 0, low, high)
    side = torch.zeros_like(low)
    for _ in range(SECANTS):
        middle = (low * at_high - high * at_low) / torch.where(at_high == at_low, 1.0, at_high - at_low)
        found = slope(middle)
        best = torch.where(inside, middle, best)
        if bool((~inside | (high - low < 1e-9) | (found.abs() < 1e-13)).all()):
            break
        right = found > 0
        at_high = torch.where(right, torch.where(side > 0, at_high / 2, at_high), found)
        at_low = torch.where(right, found, torch.where(side < 0, at_low / 2, at_low))
        low, high = torch.where(right, middle, low), torch.where(right, high, middle)
        side = torch.where(right, 1.0, -1.0)
    return best


@register
class CombOOD(Score):
    """The sum of two log densities: from the k-th neighbour's distance, and of one Gaussian.

    −√d·log r² − m², with d the number of features, r the distance to the k-th nearest known input among normalised
    features, and m the Mahalanobis length of features that are standardised and made normal one by one. Both read the
    penultimate features, which is one of the variants of the paper; the authors' other one takes m from the extreme
    values of every layer.

    Parameters
    ----------
    k : int, default=50
        Which neighbour.
    ridge : float, default=1.0
        Added to the diagonal of the covariance.
    """

    name = "combood"
    paper = (
        "Rajasekaran et al., COMBOOD: A Semiparametric Approach for Detecting Out-of-distribution Data for Image "
        "Classification, SDM 2024"
    )
    reads = ("features",)
    fits = ("features",)
    shown = ("k",)
    keeps_rows = True

    k: int = 50
    ridge: float = 1.0

    def check(self) -> None:
        """Refuse a neighbour before the first, and a negative ridge."""
        self.require(isinstance(self.k, int) and self.k >= 1, "k", "k must be a whole number from 1")
        self.number("ridge", 0, float("inf"), "the ridge must be above 0", open_low=True)

    @property
    def _neighbours(self) -> KNN:
        return KNN(self.k)

    def statistics(self) -> Mapping[str, Statistic]:
        """Start the rows of the bank."""
        return self._neighbours.statistics()

    def statistics_key(self) -> tuple[str, float, int]:
        """Return that of k-NN, whose rows are the same."""
        return self._neighbours.statistics_key()

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        self._neighbours.observe(statistics, block)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Solve the bank, the powers that make each feature normal, and the whitening of what comes out."""
        count = len(statistics["bank"].rows)
        if self.k > count:
            raise InputError(f"{self}: the bank holds {count} inputs; choose k at most {count}, or fit on more")
        bank = self._neighbours.solve(statistics, context)["vectors"]
        rows = context.shape(ActivationBatch(statistics["bank"].rows, head=context.head)).features.double().cpu()
        mean, scale = rows.mean(dim=0), _scale(rows)
        standard = (rows - mean) / scale
        varies = standard.std(dim=0, correction=0) > 0
        powers = torch.ones(rows.shape[1], dtype=torch.float64)
        if varies.any():
            powers[varies] = likeliest_powers(standard[:, varies])
        normal = yeo_johnson(standard, powers)
        shift, stretch = normal.mean(dim=0), _scale(normal)
        whole = (normal - shift) / stretch
        covariance = whole.T @ whole / max(len(whole) - 1, 1)
        ridged = covariance + self.ridge * torch.eye(len(covariance), dtype=torch.float64)
        lower = torch.linalg.cholesky(ridged)
        root = torch.linalg.solve_triangular(lower, torch.eye(len(lower), dtype=torch.float64), upper=False).T
        found = {"mean": mean, "scale": scale, "powers": powers, "shift": shift, "stretch": stretch, "root": root}
        return {"vectors": bank} | {name: tensor.float().contiguous() for name, tensor in found.items()}

    def prepare(self, state: State) -> tuple[Any, State]:
        """Give what neighbours are searched with, and the Gaussian."""
        return self._neighbours.prepare({"vectors": state["vectors"]}), state

    def score(self, block: ActivationBatch, ready: tuple[Any, State]) -> Tensor:
        """Return the sum of both log densities."""
        neighbours, state = ready
        distance = -self._neighbours.score(block, neighbours).to(block.device)
        return _combine(distance, block.features, state)

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Give the same by one product with the whole bank."""
        search = self._neighbours.formula({"vectors": state["vectors"]})
        return lambda block: _combine(-search(block), block.features, state)


def _scale(rows: Tensor) -> Tensor:
    """Standard deviations; 1 for a column that is constant."""
    spread = rows.std(dim=0, correction=0)
    return torch.where(spread > 0, spread, torch.ones_like(spread))


def _combine(distance: Tensor, features: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    standard = (features - state["mean"]) / state["scale"]
    normal = (yeo_johnson(standard, state["powers"]) - state["shift"]) / state["stretch"]
    length = (normal.clamp(-LARGEST, LARGEST) @ state["root"]).double().square().sum(dim=1)
    density = math.sqrt(features.shape[1]) * distance.double().square().clamp(min=TINY).log()
    return -density - length
