"""Estimators for scikit-learn: pipelines, searches over parameters, data frames and cross-validation work as usual."""

from offmap.sklearn.classifier import OpenWorldClassifier
from offmap.sklearn.clusterer import ClassDiscovery
from offmap.sklearn.outliers import OutlierDetector

__all__ = ["ClassDiscovery", "OpenWorldClassifier", "OutlierDetector"]
