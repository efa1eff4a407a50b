"""Fine-tune a sentence encoder on labelled texts, and hand it back as an encoder for everything else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.discovery.inputs import read_labels
from offmap.errors import InputError
from offmap.learning.learn import learn
from offmap.models import load_bert
from offmap.models.bert_weights import FILES, find_folder
from offmap.store import check_replaceable
from offmap.text import TextEncoder
from offmap.text.packaged import DEFAULT
from offmap.text.trained_texts import TRAINED_TEXTS, read_trained_texts, write_trained_texts
from offmap.typing import IntArray

FEWEST = 2  # classes, and texts of a class that can be compared with one another
SETTINGS: dict[str, Any] = {
    "epochs": 8,
    "batch_size": 64,
    "learning_rate": 5e-5,
    "dropout": 0.15,
    "span": 0.0,
    "classify": 1.0,
}
BLOCKS = ("0.blocks",)  # of an encoder whose whole network may be trained: all but the embeddings of tokens


def fine_tune(
    texts: Sequence[str],
    labels: Any,
    out: str | os.PathLike[str],
    source: str | os.PathLike[str] = DEFAULT,
    *,
    trained: int | None = None,
    aside: float = 0.0,
    seed: int = 0,
    progress: bool | None = None,
    **settings: Any,
) -> TextEncoder:
    """Fine-tune a sentence encoder on the texts that have labels.

    Texts of one class come closer to each other than to others (the objective ``"supcon"``; Khosla et al. 2020) and
    to the vector of their class, each seen twice with other tokens dropped. Classes without labels gain where they
    differ in what known classes differ in.

    Parameters
    ----------
    texts : sequence of str
        Texts; those without a label are not looked at.
    labels : array-like
        Class numbers with -1 where there is none, or names with `None`.
    out : path
        A folder for the encoder, as sentence-transformers writes it; one that was fine-tuned there before is replaced.
        Digests of the labelled texts are kept in it, so that `offmap.guard` sets no threshold on them.
    source : str or path, default "minilm"
        What to start from, as `offmap.models.load_bert` takes it.
    trained : int, optional
        How many of the last blocks are trained: fewer take less time. All when `None`; the embeddings of tokens
        always stay as they are.
    aside : float, default 0.0
        The share of each class's labelled texts that is not trained on, so that `offmap.guard` can set its threshold on
        them; two of each class are always trained on.
    seed : int, default 0
        The same seed gives the same encoder.
    progress : bool, optional
        False for no progress.
    **settings : Any
        Of training, as `learn` takes them: ``epochs``, ``learning_rate``, ``batch_size``, ``dropout``.

    Returns
    -------
    TextEncoder
        The encoder in `out`: ``offmap.TextEncoder(out)`` gives it again, and so does ``--encoder`` on the command line.

    Raises
    ------
    InputError
        If fewer than two classes have two labelled texts, `aside` is no share, or `out` holds files of something else.

    See Also
    --------
    learn : Known and novel classes together, the encoder trained with both when it is a `BertEncoder`.
    """
    if not 0 <= aside < 1:
        raise InputError(f"aside={aside}: a share of the labelled texts is needed, from 0 to below 1")
    known = read_labels(labels, len(texts))
    counts = np.bincount(known.codes[known.codes >= 0], minlength=len(known))
    usable = np.flatnonzero(counts >= FEWEST)
    if len(usable) < FEWEST:
        raise InputError(
            f"fine_tune: {len(usable)} classes with two labelled texts or more; at least two such classes are needed"
        )
    check_replaceable(out, (*FILES, TRAINED_TEXTS))  # before the training, not after it
    own = _choose_rows(known.codes, usable, aside, seed)
    model = learn(
        [texts[int(row)] for row in own],
        known.codes[own],
        len(usable),
        encoder=load_bert(source, trained=trained),
        objective="supcon",
        seed=seed,
        progress=progress,
        **{**SETTINGS, **({} if trained else {"keep": BLOCKS}), **settings},
    )
    trained_on = write_trained_texts((texts[int(row)] for row in own), read_trained_texts(find_folder(source)))
    return TextEncoder(model.save_encoder(out, {TRAINED_TEXTS: trained_on}))


def _choose_rows(codes: IntArray, classes: IntArray, aside: float, seed: int) -> IntArray:
    """Return the rows to train on: of each class all but a share."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros(len(codes), bool)
    for number in classes:
        rows = rng.permutation(np.flatnonzero(codes == number))
        chosen[rows[: max(FEWEST, round((1 - aside) * len(rows)))]] = True
    return np.flatnonzero(chosen)
