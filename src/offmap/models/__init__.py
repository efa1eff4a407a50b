"""Small, readable networks, a plain way to train one, and loading of users' own models by name."""

from offmap.models.load import load_model, load_network

__all__ = ["load_model", "load_network"]
