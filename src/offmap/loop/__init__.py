"""One round and many: detect the unknown, discover its classes, learn them, check for forgetting, calibrate anew."""

from offmap.loop.learned import Learned
from offmap.loop.parts import Known, Part
from offmap.loop.result import Evaluation, Round
from offmap.loop.rounds import learn_classes, pile_labels, propose, run_round
from offmap.loop.state import State, start

__all__ = [
    "Evaluation",
    "Known",
    "Learned",
    "Part",
    "Round",
    "State",
    "learn_classes",
    "pile_labels",
    "propose",
    "run_round",
    "start",
]
