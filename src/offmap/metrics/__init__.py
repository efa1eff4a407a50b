"""Metrics of detection and of clustering."""

from offmap.metrics.clustering import (
    ClassRow,
    Contingency,
    OpenWorldAccuracy,
    adjusted_rand,
    class_count_error,
    class_table,
    match_clusters,
    normalized_mutual_info,
    open_world_accuracy,
    purity,
)
from offmap.metrics.detection import (
    METRICS,
    DetectionMetric,
    DetectionReport,
    aupr,
    auroc,
    detection_report,
    fpr_at_tpr,
    fpr_at_tpr_ood_positive,
    metric_names,
    register_metric,
    threshold_at_tpr,
)
from offmap.metrics.kmeans_measure import kmeans_measure
from offmap.metrics.linear_probe import linear_probe_accuracy

__all__ = [
    "METRICS",
    "ClassRow",
    "Contingency",
    "DetectionMetric",
    "DetectionReport",
    "OpenWorldAccuracy",
    "adjusted_rand",
    "aupr",
    "auroc",
    "class_count_error",
    "class_table",
    "detection_report",
    "fpr_at_tpr",
    "fpr_at_tpr_ood_positive",
    "kmeans_measure",
    "linear_probe_accuracy",
    "match_clusters",
    "metric_names",
    "normalized_mutual_info",
    "open_world_accuracy",
    "purity",
    "register_metric",
    "threshold_at_tpr",
]
