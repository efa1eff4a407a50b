"""From scores to p-values and verdicts in tensor operations: what `Calibration` says, inside a graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from offmap.detection.calibration import Calibration
from offmap.detection.formulas import count_at_most, fill_rows


class VerdictModule(nn.Module):
    """P-values and verdicts of float64 scores, as `Calibration.verdicts` gives them.

    A score that is not a number has no calibration score below it and is never known.

    Parameters
    ----------
    calibration : Calibration
        Calibration of the guard.
    n_classes : int
        How many logits the network has; for a calibration by class.

    Examples
    --------
    >>> calibration = Calibration.of(np.arange(100.0), tpr=0.95)
    >>> VerdictModule(calibration, 3)(torch.tensor([3.5, 50.0], dtype=torch.float64), torch.zeros(2, 3))
    (tensor([0.0495, 0.5149], dtype=torch.float64), tensor([False,  True]))
    """

    def __init__(self, calibration: Calibration, n_classes: int) -> None:
        super().__init__()
        # as in Calibration.verdicts; a tensor, since a plain number would be traced in float32
        classes = None if calibration.classes is None else np.arange(max(n_classes, int(calibration.classes.max()) + 1))
        self.alpha = torch.tensor(calibration.levels(classes), dtype=torch.float64)
        self.by_class = calibration.classes is not None
        scores = calibration.scores.astype(np.float64)
        if classes is None:
            groups, width = [scores], None
        else:
            # a class of which no calibration input was seen has no score to compare with: its p-values are 1
            groups = [scores[calibration.classes == label] for label in classes]
            width = max(map(len, groups))
        self.table = torch.cat([fill_rows(torch.from_numpy(group), width) for group in groups])
        self.sizes = torch.tensor([len(group) for group in groups])

    def forward(self, score: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Compute p-values in float64, and whether each input is known.

        Parameters
        ----------
        score : Tensor of shape (n,)
            Scores.
        logits : Tensor of shape (n, c)
            They name the predicted class.

        Returns
        -------
        tuple of 2 Tensor of shape (n,)
            P-values and verdicts.
        """
        alpha = self.alpha
        if self.by_class:
            predicted = logits.argmax(dim=1)
            alpha = alpha[predicted] if alpha.ndim else alpha
            counts, sizes = (self.table[predicted] <= score[:, None]).sum(dim=1), self.sizes[predicted]
        else:
            counts, sizes = count_at_most(self.table, self.table[:, 0], score), self.sizes
        counts = torch.minimum(counts, sizes)  # an infinite score is not above the filling of the last row
        values = (1 + counts).double() / (sizes + 1).double()
        return values, (values > alpha) & (score == score)
