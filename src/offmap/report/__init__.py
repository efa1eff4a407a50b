"""Self-contained HTML pages of text, tables, figures and pictures; they open from disk without a network."""

from offmap.report.page import Page, versions

__all__ = ["Page", "versions"]
