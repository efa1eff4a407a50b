"""Names for groups of texts: the words that are frequent in one group and rare in the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offmap.discovery.assign import Labels
from offmap.errors import InputError


def suggest_names(texts: Sequence[str], labels: Labels, words: int = 3) -> dict[int, str]:
    """Suggest names of classes by class-based TF-IDF (Grootendorst 2022).

    A word counts ``tf · log(1 + A / f)``, A the mean number of words per class.

    Parameters
    ----------
    texts, labels : sequence of str and ndarray of int64
        One text and one class per row; rows marked -1 are left out.
    words : int, default=3
        How many keywords make a name.

    Returns
    -------
    dict of int to str
        Names by class.

    Examples
    --------
    >>> suggest_names(["open an account", "open account", "lost card"], np.array([0, 0, 1]), words=2)
    {0: 'account open', 1: 'card lost'}
    """
    from sklearn.feature_extraction.text import CountVectorizer

    if len(texts) != len(labels):
        raise InputError(f"suggest_names: {len(texts)} texts for {len(labels)} rows; give one per row")
    ids = np.unique(labels[labels >= 0])
    if not len(ids):
        return {}
    joined = [" ".join(texts[int(i)] for i in np.flatnonzero(labels == one)) for one in ids]
    try:
        reader = CountVectorizer(stop_words="english", token_pattern=r"(?u)\b[^\W\d_]{2,}\b")
        counts = reader.fit_transform(joined).toarray().astype(np.float64)
    except ValueError:  # only stop words
        return {int(one): f"class {one}" for one in ids}
    vocabulary = reader.get_feature_names_out()
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    score = share * np.log1p(counts.sum() / len(ids) / counts.sum(axis=0))
    best = np.argsort(-score, axis=1, kind="stable")[:, :words]
    return {
        int(one): " ".join(vocabulary[j] for j in best[i] if score[i, j] > 0) or f"class {one}"
        for i, one in enumerate(ids)
    }
