"""A scope inside other frameworks: a FastAPI dependency, a LiteLLM hook, a NeMo Guardrails action.

None of them is imported before it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from offmap.deploy.scopes import GuardScope, Scope, ScopeVerdict
from offmap.errors import DependencyError, InputError

UNJUDGED_CALLS = frozenset({"embedding", "embeddings", "aembedding", "moderation", "audio_transcription", "rerank"})
_TEXTS = ("text", "input_text")  # kinds of parts of a message
REFUSAL = "This is outside of what I can help with."
AnyScope = Scope | GuardScope


def require_on_topic(scope: AnyScope, field: str = "message", status: int = 422) -> Callable[..., Awaitable[Any]]:
    """Make a FastAPI dependency that refuses requests whose text is off topic.

    Parameters
    ----------
    scope : Scope
        Judges the text.
    field : str, default "message"
        The field of the JSON body that holds it.
    status : int, default 422
        The status of a refusal.

    Returns
    -------
    callable
        For ``Depends``; gives the `ScopeVerdict` to the endpoint.

    Examples
    --------
    A service that answers only what its examples are about::

        on_topic = Depends(require_on_topic(offmap.scope("scope.offmap")))

        @app.post("/chat")
        async def chat(body: Message, verdict=on_topic):
            ...
    """
    try:
        from fastapi import HTTPException, Request
    except ImportError as error:
        raise DependencyError("this adapter needs fastapi: pip install 'offmap[serve]'") from error

    async def check(request: Request) -> ScopeVerdict:
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            body = None
        text = body.get(field) if isinstance(body, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise HTTPException(422, f"the body has no text in {field!r}")
        try:
            verdict = await asyncio.to_thread(scope.check, text)
        except InputError as error:  # such as half of a character
            raise HTTPException(422, f"{field!r} cannot be read: {error}") from error
        if not verdict.on_topic:
            raise HTTPException(status, REFUSAL)
        return verdict

    check.__annotations__ = {"request": Request, "return": ScopeVerdict}  # FastAPI resolves names of the module
    return check


def make_litellm_hook(scope: AnyScope, refusal: str = REFUSAL) -> Any:
    """Make a hook for the LiteLLM proxy that answers off-topic questions without asking a model.

    Parameters
    ----------
    scope : Scope
        Judges the last message of the user, or the prompt where there are no messages. What holds no text that can be
        judged, such as an image alone, is refused.
    refusal : str, optional
        What is answered instead.

    Returns
    -------
    litellm.integrations.custom_logger.CustomLogger
        For ``litellm_settings: callbacks`` of the proxy's configuration.
    """
    try:
        from litellm.integrations.custom_logger import CustomLogger
    except ImportError as error:
        raise DependencyError("this adapter needs litellm: pip install litellm") from error

    class ScopeHook(CustomLogger):  # type: ignore[misc]  # litellm has no types here
        """Answers with a refusal, where a string is what the proxy takes for one."""

        async def async_pre_call_hook(
            self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
        ) -> dict[str, Any] | str:
            if call_type in UNJUDGED_CALLS:  # nothing is answered
                return data
            text = find_question(data)
            return data if text is not None and await _is_on_topic(scope, text) else refusal

    return ScopeHook()


def make_nemo_action(scope: AnyScope, name: str = "check_scope") -> Callable[..., Any]:
    """Make an action for NeMo Guardrails that says whether the user's message is on topic.

    Parameters
    ----------
    scope : Scope
        Judges the message.
    name : str, default "check_scope"
        What flows call it: ``$on_topic = execute check_scope``.

    Returns
    -------
    callable
        For ``LLMRails.register_action``.
    """
    try:
        from nemoguardrails.actions import action
    except ImportError as error:
        raise DependencyError("this adapter needs nemoguardrails: pip install nemoguardrails") from error

    @action(name=name)  # type: ignore[untyped-decorator]  # nemoguardrails has no types here
    async def check_scope(context: dict[str, Any] | None = None, text: str | None = None) -> bool:
        said = text or (context or {}).get("user_message")
        return not said or await _is_on_topic(scope, str(said))

    made: Callable[..., Any] = check_scope
    return made


async def _is_on_topic(scope: AnyScope, text: str) -> bool:
    """Judge a text; one that cannot be judged, such as a far too long one, is not on topic."""
    try:
        return bool(await asyncio.to_thread(scope.check, text))
    except InputError:
        return False


def find_question(data: dict[str, Any]) -> str | None:
    r"""Return what a call of a language model asks: the last message of the user, the input or the prompt.

    Examples
    --------
    >>> find_question({"prompt": ["hello", "there"]})
    'hello\nthere'
    >>> find_question({"messages": [], "prompt": "hello"}) is None
    True
    """
    messages = data.get("messages", data.get("input", data.get("prompt")))
    if isinstance(messages, str):
        messages = [messages]
    if not isinstance(messages, list):
        return None
    if messages and all(isinstance(message, str) for message in messages):
        return "\n".join(messages) if any(map(str.strip, messages)) else None
    return find_last_question(messages)


def find_last_question(messages: Sequence[Any]) -> str | None:
    """Return the text of the last message of a user in the form of OpenAI's chat; `None` where there is none.

    Examples
    --------
    >>> find_last_question([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}])
    'hello'
    >>> find_last_question([{"role": "user", "content": [{"type": "text", "text": "what is this?"}]}])
    'what is this?'
    """
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                parts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") in _TEXTS)
                content = "\n".join(str(part) for part in parts if part)
            return content if isinstance(content, str) and content.strip() else None
    return None
