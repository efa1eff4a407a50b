"""Errors that are answered with an HTTP status and one sentence."""

from __future__ import annotations

from offmap.errors import OffmapError


class RequestError(OffmapError):
    """A request that is not accepted.

    Parameters
    ----------
    status : int
        The HTTP status of the answer.
    sentence : str
        What is wrong, and what to do about it.

    Examples
    --------
    >>> error = RequestError(413, "the body has more than 100 bytes")
    >>> error.status, str(error)
    (413, 'the body has more than 100 bytes')
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def to_sentence(error: BaseException) -> str:
    r"""Put the message of an error on one line.

    Parameters
    ----------
    error : BaseException
        Any error; one without a message is named by its type.

    Returns
    -------
    str
        The message without line breaks.

    Examples
    --------
    >>> to_sentence(ValueError("a\n  b"))
    'a b'
    """
    return " ".join(str(error).split()) or type(error).__name__
