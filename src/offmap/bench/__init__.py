"""Whole jobs on known data: the demonstration, and later the suites that measure every method."""
