"""A trained network, run once: what goes into its last linear layer, what comes out, and what methods ask."""

from offmap.network.backend import Backend
from offmap.network.network import Network

__all__ = ["Backend", "Network"]
