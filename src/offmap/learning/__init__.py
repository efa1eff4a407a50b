"""Learning known and novel classes from some labels and many unlabelled inputs."""

from offmap.learning.learn import learn
from offmap.learning.model import OpenWorldModel
from offmap.learning.objectives import Objective, objective, register, registered
from offmap.learning.settings import Training
from offmap.learning.tune import Tuning, tune

__all__ = ["Objective", "OpenWorldModel", "Training", "Tuning", "learn", "objective", "register", "registered", "tune"]
