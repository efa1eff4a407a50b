"""A guard for a trained model in one call, and model and guard as one ONNX graph that runs without offmap."""

from offmap.deploy.build import GuardEvidence, build_guard, guard, write_guard
from offmap.deploy.exporter import Exported, export

__all__ = ["Exported", "GuardEvidence", "build_guard", "export", "guard", "write_guard"]
