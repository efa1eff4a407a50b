"""A guard for a trained model in one call, and model and guard as one ONNX graph that runs without offmap."""

from offmap.deploy.build import GuardEvidence, build_guard, guard, write_guard
from offmap.deploy.exporter import Exported, export
from offmap.deploy.mlflow_model import log_guard
from offmap.deploy.scope_adapters import make_litellm_hook, make_nemo_action, require_on_topic
from offmap.deploy.scopes import Scope, ScopeVerdict, fit_scope, scope

__all__ = [
    "Exported",
    "GuardEvidence",
    "Scope",
    "ScopeVerdict",
    "build_guard",
    "export",
    "fit_scope",
    "guard",
    "log_guard",
    "make_litellm_hook",
    "make_nemo_action",
    "require_on_topic",
    "scope",
    "write_guard",
]
