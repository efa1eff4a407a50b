"""Errors that are answered with an HTTP status and one sentence."""

from __future__ import annotations

import re

from offmap.errors import OffmapError

_ADDRESSES = re.compile(r" at 0x[0-9a-fA-F]+")
_FOLDERS = re.compile(r"(?<![\w/:.])/(?:[^\s/'\"]+/)+")


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
    r"""Put the message of an error on one line, without addresses in memory.

    Parameters
    ----------
    error : BaseException
        Any error; one without a message is named by its type.

    Returns
    -------
    str
        The message without line breaks; an address would tell a stranger where things lie in this process.

    Examples
    --------
    >>> to_sentence(ValueError("a\n  b"))
    'a b'
    >>> to_sentence(ValueError("malformed node: <ast.BinOp object at 0x7fda75eee3e0>"))
    'malformed node: <ast.BinOp object>'
    """
    return _ADDRESSES.sub("", " ".join(str(error).split())) or type(error).__name__


def hide_folders(sentence: str) -> str:
    """Leave out the folders of files that a message names: clients need not know them.

    Parameters
    ----------
    sentence : str
        Any message.

    Returns
    -------
    str
        With the names of files only; addresses such as ``http://…`` stay.

    Examples
    --------
    >>> hide_folders("/srv/app/guard.offmap: no such file: '/srv/app/guard.offmap'")
    "guard.offmap: no such file: 'guard.offmap'"
    """
    return _FOLDERS.sub("", sentence)
