"""One round and many: detect the unknown, discover its classes, learn them, check for forgetting, calibrate anew."""

from offmap.openworld.box_guard import BoxGuard, boxes
from offmap.openworld.decisions import GroupDecision
from offmap.openworld.deployment import Deployment
from offmap.openworld.examples import KnownExamples
from offmap.openworld.extended_network import ClassifierUpdate
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.openworld_run import OpenWorldRun, run
from offmap.openworld.pictures import PictureSettings
from offmap.openworld.records import RoundRecord
from offmap.openworld.result import Evaluation, Round
from offmap.openworld.rounds import learn_classes, number_groups, propose, run_round
from offmap.openworld.state import LearningState, start

__all__ = [
    "BoxGuard",
    "ClassifierUpdate",
    "Deployment",
    "Evaluation",
    "GroupDecision",
    "KnownExamples",
    "KnownSplits",
    "LabeledInputs",
    "LearningState",
    "OpenWorldRun",
    "PictureSettings",
    "Round",
    "RoundRecord",
    "boxes",
    "learn_classes",
    "number_groups",
    "propose",
    "run",
    "run_round",
    "start",
]
