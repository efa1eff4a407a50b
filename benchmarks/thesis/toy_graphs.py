"""The toy graphs of the thesis, computed instead of printed: coloured shapes, one of them perhaps known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from offmap.errors import InputError
from offmap.theory.residuals import residual
from offmap.typing import FloatArray

NOVEL = np.array([1.0, 1.0, 0.0, 0.0])  # red cube, red sphere | blue cube, blue sphere


@dataclass(frozen=True)
class NsclToy:
    """One labelled object and four unlabelled ones, embedded by two eigenvectors.

    Attributes
    ----------
    residual
        ``R(U*, y)`` with y = (1, 1, 0, 0): 0 when the colour can be read off, 1 when only the shape can.
    embedding
        U*, the four unlabelled rows of the top two eigenvectors.
    vectors, values
        All five rows, and the eigenvalues of T (largest two).
    transition
        T.
    """

    residual: float
    embedding: FloatArray
    vectors: FloatArray
    values: FloatArray
    transition: FloatArray

    def __str__(self) -> str:
        word = "can" if self.residual < 1e-9 else "cannot"
        return f"the novel class {word} be read off the embedding (residual {self.residual:.3g})"


def nscl_toy(
    tau_s: float,
    tau_c: float,
    t: float,
    tau_1: float = 1.0,
    tau_0: float = 0.0,
    known: Literal["colour", "shape"] = "colour",
) -> NsclToy:
    """The five-node graph T(t) of the thesis, section 6.4.2, which asks if a known class helps to tell red from blue.

    Parameters
    ----------
    tau_s, tau_c
        The chance that an augmentation keeps the shape (and changes the colour), or keeps the colour.
    t
        The bond between the labelled object and the unlabelled ones it resembles.
    tau_1, tau_0
        The chance of keeping both, and neither.
    known
        ``"colour"``: the labelled object has the colour of the novel class (a red cylinder; cases 1, 2).
        ``"shape"``: it shares a shape instead (a grey cube, case 3, section 6.4.2, lemma 6.5), the label that can hurt.

    Examples
    --------
    >>> round(nscl_toy(tau_s=0.3, tau_c=0.25, t=0.0).residual, 9)
    1.0
    >>> round(abs(nscl_toy(tau_s=0.3, tau_c=0.25, t=0.25).residual), 9)
    0.0
    """
    if known not in ("colour", "shape"):
        raise InputError(f"nscl_toy(known={known!r}): 'colour' or 'shape'")
    inner = np.array(
        [
            [tau_1, tau_c, tau_s, tau_0],
            [tau_c, tau_1, tau_0, tau_s],
            [tau_s, tau_0, tau_1, tau_c],
            [tau_0, tau_s, tau_c, tau_1],
        ]
    )
    bond = np.array([t, t, tau_0, tau_0] if known == "colour" else [t, tau_0, t, tau_0])
    transition = np.block([[np.array([[tau_1]]), bond[None, :]], [bond[:, None], inner]])
    # A = T², so A's order is by |λ| of T; T is symmetric and shares the eigenvectors
    values, vectors = np.linalg.eigh(transition)
    order = np.argsort(-np.abs(values), kind="stable")[:2]
    top = vectors[:, order]
    return NsclToy(residual(top[1:], NOVEL), top[1:], top, values[order], transition)


def nscl_threshold(tau_s: float, tau_c: float) -> float:
    """t̄ of the thesis, section 6.4.2, theorem 6.4: above this bond the residual is 0, for τ_c < τ_s < 1.5 τ_c, τ_1 =
    1, τ_0 = 0.

    Examples
    --------
    >>> round(nscl_threshold(0.3, 0.25), 4)
    0.0791
    """
    if not tau_c < tau_s < 1.5 * tau_c:
        raise InputError(f"nscl_threshold(tau_s={tau_s}, tau_c={tau_c}): the theorem needs τ_c < τ_s < 1.5 τ_c")
    return float(np.sqrt(2 * (tau_s - tau_c) ** 2 * tau_c / (2 * tau_c - tau_s)))


def nscl_residual(tau_s: float, tau_c: float, t: float) -> float:
    """The closed form r(t) for 0 < t < t̄, 0 above and 1 at t = 0 (thesis, appendix B.1.2, theorem B.5; its proof
    prints 0 there).

    Examples
    --------
    >>> nscl_residual(0.3, 0.25, 0.0), nscl_residual(0.3, 0.25, 0.2)
    (1.0, 0.0)
    """
    if t == 0:
        return 1.0
    if t > nscl_threshold(tau_s, tau_c):
        return 0.0
    cubic = [1.0, -2 * tau_c, tau_c**2 - tau_s**2 - 2 * t**2, 2 * tau_c * t**2]
    z = float(np.roots(cubic).real.max())  # λ_1 − 1
    return float(2 * tau_s**2 / ((z - tau_c) ** 2 + tau_s**2))


@dataclass(frozen=True)
class SorlToy:
    """Six objects (two cubes, two spheres, two cylinders), before and after the cubes are labelled.

    Attributes
    ----------
    before, after
        The top three eigenvectors of the normalised adjacency, objects × 3.
    values_before, values_after
        Their eigenvalues.
    adjacency_before, adjacency_after
        ``η_u A_u`` and ``η_u A_u + η_l A_l``.
    """

    before: FloatArray
    after: FloatArray
    values_before: FloatArray
    values_after: FloatArray
    adjacency_before: FloatArray
    adjacency_after: FloatArray


def sorl_toy(tau_1: float, tau_c: float, tau_s: float, eta_u: float = 6.0, eta_l: float = 4.0) -> SorlToy:
    """The six-node graph of the thesis, appendix B.2.2, eq. B.25: labelling the cubes sets apart the spheres of the
    same colours.

    Examples
    --------
    >>> toy = sorl_toy(0.9, 0.06, 0.04)
    >>> shape = np.array([0, 0, 1, 1, 2, 2])  # cubes, spheres, cylinders
    >>> bool(np.allclose(toy.after[0], toy.after[1]) and not np.allclose(toy.before[0], toy.before[1]))
    True
    """
    from offmap.graph import augmentation_graph, spectral_embedding

    block = np.array(
        [
            [tau_1, tau_s, tau_c, 0.0],
            [tau_s, tau_1, 0.0, tau_c],
            [tau_c, 0.0, tau_1, tau_s],
            [0.0, tau_c, tau_s, tau_1],
        ]
    )
    transition = np.zeros((6, 6))
    transition[:4, :4] = block
    transition[4:, 4:] = tau_1
    labels = np.array([0, 0, -1, -1, -1, -1])
    free = augmentation_graph(transition, eta_u=eta_u)
    told = augmentation_graph(transition, labels, eta_u=eta_u, eta_l=eta_l)
    first, second = spectral_embedding(free, 3), spectral_embedding(told, 3)
    return SorlToy(first.vectors, second.vectors, first.values, second.values, free.toarray(), told.toarray())
