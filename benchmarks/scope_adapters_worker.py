"""What `scope_adapters.py` runs in the environment of LiteLLM and NeMo Guardrails: both asked on and off topic."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from typing import Any

sys.path.extend(sys.argv[1:])  # their packages first, then offmap and its own

from offmap.deploy import Scope, fit_scope, make_litellm_hook, make_nemo_action
from offmap.deploy.scope_adapters import REFUSAL

STARTS = ("how do I", "please help me", "I want to", "can you tell me how to", "is it possible to")
THINGS = (
    "replace my lost card",
    "block my stolen card",
    "order a second card",
    "send money abroad",
    "cancel a transfer",
)
ON, OFF = "how can I block a stolen card?", "what should I cook for dinner?"
COLANG = """
define bot refuse
  "no"

define subflow check scope
  $on_topic = execute check_scope
  if not $on_topic
    bot refuse
    stop
"""
YAML = """
models: []
rails:
  input:
    flows:
      - check scope
"""


async def ask_litellm(scope: Scope) -> dict[str, str]:
    """The proxy's own dispatch of hooks, before it would call a model."""
    import litellm
    from litellm.caching.caching import DualCache
    from litellm.proxy._types import UserAPIKeyAuth
    from litellm.proxy.utils import ProxyLogging

    litellm.callbacks = [make_litellm_hook(scope)]
    proxy = ProxyLogging(user_api_key_cache=DualCache())
    found = {}
    for name, text in (("on topic", ON), ("off topic", OFF)):
        data = {"model": "any", "messages": [{"role": "user", "content": text}]}
        try:
            passed = await proxy.pre_call_hook(user_api_key_dict=UserAPIKeyAuth(), data=data, call_type="completion")
            found[name] = "passed" if passed == data else str(passed)
        except litellm.BadRequestError as error:  # how the proxy hands on a refusal, which it then answers
            found[name] = "refused" if str(error).endswith(REFUSAL) else str(error)
    assert found == {"on topic": "passed", "off topic": "refused"}, found
    return found


def ask_nemo(scope: Scope) -> dict[str, str]:
    """An input rail of a flow that executes the action."""
    from nemoguardrails import LLMRails, RailsConfig

    rails = LLMRails(RailsConfig.from_content(colang_content=COLANG, yaml_content=YAML))
    rails.register_action(make_nemo_action(scope), name="check_scope")
    found: dict[str, str] = {}
    for name, text in (("on topic", ON), ("off topic", OFF)):
        answer: Any = rails.generate(messages=[{"role": "user", "content": text}], options={"rails": ["input"]})
        said = answer.response if isinstance(answer.response, str) else answer.response[-1]["content"]
        found[name] = "refused" if said == "no" else "passed"
    assert found == {"on topic": "passed", "off topic": "refused"}, found
    return found


def main() -> None:
    scope = fit_scope([f"{start} {thing}" for thing in THINGS for start in STARTS], tpr=0.8)
    found = {"versions": {name: importlib.metadata.version(name) for name in ("litellm", "nemoguardrails")}}
    found["litellm"] = asyncio.run(ask_litellm(scope))
    found["nemoguardrails"] = ask_nemo(scope)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
