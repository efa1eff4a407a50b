"""The thesis' questions, toys and figures: experiments on offmap that are no part of the library.

The scripts beside this package run them: ``thesis_detection.py``, ``toy.py``, ``theory.py``.
"""
