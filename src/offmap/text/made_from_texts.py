"""What was made from the rows of a text encoder: it refers to that encoder, and takes no other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from offmap import store
from offmap.text.encoder import TextEncoder

_WHAT = "reference to a text encoder"


def read_text_reference(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a file says of its text encoder, `None` where it has none."""
    reference: Mapping[str, Any] | None = config.get("text_encoder")
    if reference is not None:
        store.check_fields(_WHAT, reference, {"kind": str, "sha256": str, "probe": list})
    return reference


class MadeFromTexts:
    """For dataclasses with a field `text_reference`: what `TextEncoder.reference` says of their encoder, or `None`."""

    text_reference: Mapping[str, Any] | None

    @cached_property
    def text_encoder(self) -> TextEncoder | None:
        """The encoder of the texts that this was made from; `None` where it was made from rows.

        Raises
        ------
        StoreError
            If the encoder is not where it was, is another one now, or is a Python object: give it to
            `with_text_encoder`.
        """
        if self.text_reference is None:
            return None
        with store.restoring(_WHAT):
            return TextEncoder.restore(self.text_reference)

    def with_text_encoder(self, encoder: TextEncoder) -> Self:
        """Return the same with a reference to its encoder, which files keep; another than it was made with is refused.

        Parameters
        ----------
        encoder : TextEncoder
            What the rows were made with.
        """
        if self.text_reference is not None:
            with store.restoring(_WHAT):
                TextEncoder.restore(self.text_reference, encoder)
        made: Self = replace(self, text_reference=encoder.reference())  # type: ignore[type-var]  # all are dataclasses
        made.__dict__["text_encoder"] = encoder
        return made
