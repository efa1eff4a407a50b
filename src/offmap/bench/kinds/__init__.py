"""Further kinds of sets and networks that a suite can declare, one family per module."""
