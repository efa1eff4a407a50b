"""Texts: sentence encoders that run them, and the checks and the cache around these."""

from offmap.text.checks import check_text, check_texts
from offmap.text.encoder import TextEncoder
from offmap.text.extraction import extract_texts, read_extracted_texts
from offmap.text.packaged import ENCODERS

__all__ = ["ENCODERS", "TextEncoder", "check_text", "check_texts", "extract_texts", "read_extracted_texts"]
