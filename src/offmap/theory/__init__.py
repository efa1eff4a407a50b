"""The theory of the thesis as diagnostics: does a method's assumption hold on this network and this data?

Every formula is a function on NumPy arrays; reports are small objects whose text is one honest sentence.
"""

from offmap.metrics.kmeans_measure import kmeans_measure
from offmap.theory.advice import Advice, label_advice
from offmap.theory.class_perturbation import class_perturbation, intuitive_bound
from offmap.theory.clipped_outputs import make_row_sums_positive, output_reduction_gap
from offmap.theory.clipping import clip_report
from offmap.theory.contrast import (
    alignment_identity,
    alignment_loss,
    evidence_bound,
    mean_classifier_bound,
    optimal_prototypes,
    simclr_loss,
    simclr_matrix,
    vmf_posterior,
)
from offmap.theory.convergence import density_convergence
from offmap.theory.density import (
    bayes_threshold,
    cap_area,
    id_posterior,
    intrinsic_dimension,
    knn_density,
    neighbour_report,
)
from offmap.theory.diagnose import explain
from offmap.theory.error_bounds import clustering_error, probe_error_bound, ratio_coverage
from offmap.theory.findings import Finding, Findings
from offmap.theory.normality import henze_zirkler, normality_by_class
from offmap.theory.perturbation import (
    kmeans_measure_change,
    kmeans_measure_derivative,
    measure_gradient,
    perturbation_report,
)
from offmap.theory.rectified import esn_excess, esn_mean, esn_pdf, esn_reduction, fit_esn, reduction_surface
from offmap.theory.residuals import (
    coverage,
    discovery_bound,
    ignorance_degree,
    linear_probe_error,
    residual,
    residual_identity,
)
from offmap.theory.sparsified import sparsity_profile, variance_reduction, variance_split

__all__ = [
    "Advice",
    "Finding",
    "Findings",
    "alignment_identity",
    "alignment_loss",
    "bayes_threshold",
    "cap_area",
    "class_perturbation",
    "clip_report",
    "clustering_error",
    "coverage",
    "density_convergence",
    "discovery_bound",
    "esn_excess",
    "esn_mean",
    "esn_pdf",
    "esn_reduction",
    "evidence_bound",
    "explain",
    "fit_esn",
    "henze_zirkler",
    "id_posterior",
    "ignorance_degree",
    "intrinsic_dimension",
    "intuitive_bound",
    "kmeans_measure",
    "kmeans_measure_change",
    "kmeans_measure_derivative",
    "knn_density",
    "label_advice",
    "linear_probe_error",
    "make_row_sums_positive",
    "mean_classifier_bound",
    "measure_gradient",
    "neighbour_report",
    "normality_by_class",
    "optimal_prototypes",
    "output_reduction_gap",
    "perturbation_report",
    "probe_error_bound",
    "ratio_coverage",
    "reduction_surface",
    "residual",
    "residual_identity",
    "simclr_loss",
    "simclr_matrix",
    "sparsity_profile",
    "variance_reduction",
    "variance_split",
    "vmf_posterior",
]
