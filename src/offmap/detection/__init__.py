"""Detection: which inputs was the network never taught?"""

from offmap.detection.base import Component, Score, Shaper
from offmap.detection.calibration import Calibration, Verdict, Verdicts
from offmap.detection.detectors import Detector, detector
from offmap.detection.registry import method, methods, register

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
