"""Texts: sentence encoders that run them, and the checks and the cache around these."""

from offmap.text.checks import check_text, check_texts
from offmap.text.encoder import TextEncoder
from offmap.text.extraction import extract_texts, read_extracted_texts, read_extraction
from offmap.text.made_from_texts import MadeFromTexts, read_text_reference
from offmap.text.packaged import ENCODERS

__all__ = [
    "ENCODERS",
    "MadeFromTexts",
    "TextEncoder",
    "check_text",
    "check_texts",
    "extract_texts",
    "read_extracted_texts",
    "read_extraction",
    "read_text_reference",
]
