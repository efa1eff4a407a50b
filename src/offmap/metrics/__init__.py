"""One home for every number: detection and clustering."""

from offmap.metrics.detection import (
    DetectionReport,
    aupr,
    auroc,
    detection_report,
    fpr_at_tpr,
    fpr_at_tpr_ood_positive,
    threshold_at_tpr,
)

__all__ = [
    "DetectionReport",
    "aupr",
    "auroc",
    "detection_report",
    "fpr_at_tpr",
    "fpr_at_tpr_ood_positive",
    "threshold_at_tpr",
]
