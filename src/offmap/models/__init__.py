"""Small, readable networks, a plain way to train one, and loading of users' own models by name."""

from offmap.models.bert_weights import load_bert, save_bert
from offmap.models.load import load_model, load_network

__all__ = ["load_bert", "load_model", "load_network", "save_bert"]
