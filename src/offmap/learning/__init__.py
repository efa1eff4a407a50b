"""Learning known and novel classes from some labels and many unlabelled inputs."""

from offmap.learning.fine_tuning import fine_tune
from offmap.learning.learn import learn
from offmap.learning.loggers import MetricLogger, MLflowLogger, TensorBoardLogger, WandbLogger
from offmap.learning.model import OpenWorldModel
from offmap.learning.objectives import Objective, objective, register, registered
from offmap.learning.settings import Training
from offmap.learning.tune import Tuning, tune

__all__ = [
    "MLflowLogger",
    "MetricLogger",
    "Objective",
    "OpenWorldModel",
    "TensorBoardLogger",
    "Training",
    "Tuning",
    "WandbLogger",
    "fine_tune",
    "learn",
    "objective",
    "register",
    "registered",
    "tune",
]
