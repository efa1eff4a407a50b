"""One home for every number: detection and clustering."""

from offmap.metrics.clustering import (
    ClassRow,
    Contingency,
    OpenWorldAccuracy,
    adjusted_rand,
    class_count_error,
    class_table,
    linear_probe_accuracy,
    match_clusters,
    normalized_mutual_info,
    open_world_accuracy,
    purity,
)
from offmap.metrics.detection import (
    DetectionReport,
    aupr,
    auroc,
    detection_report,
    fpr_at_tpr,
    fpr_at_tpr_ood_positive,
    threshold_at_tpr,
)
from offmap.metrics.kmeans_measure import kmeans_measure

__all__ = [
    "ClassRow",
    "Contingency",
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
    "normalized_mutual_info",
    "open_world_accuracy",
    "purity",
    "threshold_at_tpr",
]
