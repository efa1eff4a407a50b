"""A request that is refused: a status and one sentence."""

from __future__ import annotations

from offmap.errors import OffmapError


class RequestError(OffmapError):
    """What is wrong with a request, and which status of HTTP says so.

    Examples
    --------
    >>> error = RequestError(413, "the body has more than 100 bytes")
    >>> error.status, str(error)
    (413, 'the body has more than 100 bytes')
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def one_sentence(error: BaseException) -> str:
    r"""The message of an error on one line.

    Examples
    --------
    >>> one_sentence(ValueError("a\n  b"))
    'a b'
    """
    return " ".join(str(error).split()) or type(error).__name__
