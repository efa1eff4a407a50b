"""Detection: which inputs was the network never taught?"""

from offmap.detection.base import Component, Score, Shaper
from offmap.detection.calibration import Calibration
from offmap.detection.detectors import Detector, detector
from offmap.detection.registry import method, methods, register
from offmap.detection.verdicts import Verdict, Verdicts

__all__ = [
    "Calibration",
    "Component",
    "Detector",
    "Score",
    "Shaper",
    "Verdict",
    "Verdicts",
    "detector",
    "method",
    "methods",
    "register",
]
