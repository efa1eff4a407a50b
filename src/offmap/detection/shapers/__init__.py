"""Shapers: they change features (ReAct, ASH), head (DICE) or logits (temperature) before a score reads them."""
