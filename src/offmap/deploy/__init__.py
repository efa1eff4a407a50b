"""A model and its guard as one ONNX graph that runs where nothing of offmap is installed."""

from offmap.deploy.exporter import Exported, export

__all__ = ["Exported", "export"]
