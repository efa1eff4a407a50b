"""A score of one's own: the largest logit minus the second largest."""

from torch import Tensor

import offmap
from offmap.detection import Score


@offmap.register
class Margin(Score):
    """The largest logit minus the second largest."""

    name = "margin"
    paper = "an example"
    reads = ("logits",)
    invariant_to_shift = True

    def score(self, block, ready) -> Tensor:
        """Higher means known, as everywhere in offmap."""
        best = block.logits.topk(2, dim=1).values
        return best[:, 0] - best[:, 1]
