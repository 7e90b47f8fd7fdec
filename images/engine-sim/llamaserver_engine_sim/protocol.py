"""What a client asks for: the bodies of completions and chat completions, or why they are refused.

Fields that would change the text and not its length (temperature, logit_bias, tools, ...) pass unread,
as the text is made up. Lengths are in tokens.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from llamaserver.simulate.profiles import Profile

CHARACTERS_PER_TOKEN = 4
"""Of a prompt that comes as text: there is no tokenizer here, and English has about so many."""
TOKENS_PER_MESSAGE = 4
"""What a chat template puts around a message."""
DEFAULT_MAX_TOKENS = 16
"""Of a completion that says nothing, in vLLM as in OpenAI's interface. A chat may fill the model's length."""


class ApiError(Exception):
    """An answer other than the one that was asked for, in the form that vLLM gives it."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.kind = kind or f"{status.phrase.replace(' ', '')}Error"

    def to_json(self) -> dict[str, object]:
        """The body of the answer."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status.value,
            }
        }


def bad(message: str, param: str | None = None) -> ApiError:
    """A request that cannot be served, and the field that is at fault."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that can be served. `least` to `most` is what it may generate."""

    model: str
    prompt: int
    most: int
    least: int = 1
    ignore_eos: bool = False
    stream: bool = False
    usage: bool = False
    """A last event with the counts of tokens."""
    running_usage: bool = False
    """The counts in every event."""


def completion(body: bytes, served: tuple[str, ...], profile: Profile) -> Ask:
    """Read the body of POST /v1/completions. Raises ApiError."""
    data = _object(body)
    model = _model(data, served)
    prompt = _prompt_tokens(data.get("prompt"))
    return _ask(data, model, prompt, _integer(data, "max_tokens", 1) or DEFAULT_MAX_TOKENS, profile)


def chat(body: bytes, served: tuple[str, ...], profile: Profile) -> Ask:
    """Read the body of POST /v1/chat/completions. Raises ApiError."""
    data = _object(body)
    model = _model(data, served)
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages: a list of at least one message is wanted", "messages")
    prompt = sum(map(_message_tokens, messages))
    most = _integer(data, "max_completion_tokens", 1) or _integer(data, "max_tokens", 1)
    return _ask(data, model, prompt, most, profile)


def output_tokens(ask: Ask, mean: float, rng: random.Random) -> int:
    """How much is generated: all that is allowed without an end of text, else a draw with this mean."""
    if ask.ignore_eos:
        return ask.most
    return min(ask.most, max(ask.least, 1 + int(rng.expovariate(1.0 / mean))))


def _ask(data: Mapping[str, Any], model: str, prompt: int, most: int | None, profile: Profile) -> Ask:
    longest = profile.longest
    if prompt >= longest:
        raise bad(
            f"the prompt has {prompt} tokens and leaves no room for an answer: the maximum context length of "
            f"this model is {longest} tokens; shorten the prompt",
            "input_tokens",
        )
    most = longest - prompt if most is None else most
    if not profile.takes(prompt, most):
        raise bad(
            f"{prompt} tokens of prompt and {most} of answer are more than the maximum context length of "
            f"this model, {longest} tokens; shorten the prompt or lower max_tokens",
            "input_tokens",
        )
    least = max(1, _integer(data, "min_tokens", 0) or 0)
    if least > most:
        raise bad(f"min_tokens: {least} is more than max_tokens, {most}", "min_tokens")
    if (choices := _integer(data, "n", 1)) not in (None, 1):
        raise bad(f"n: this simulator gives one choice a request, {choices} are asked for", "n")
    stream = _flag(data, "stream")
    options = _stream_options(data, stream)
    usage = _flag(options, "include_usage")
    return Ask(
        model=model,
        prompt=prompt,
        most=most,
        least=least,
        ignore_eos=_flag(data, "ignore_eos"),
        stream=stream,
        usage=usage,
        running_usage=usage and _flag(options, "continuous_usage_stats"),
    )


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        message = f"the body is not JSON: {str(error)[:120]}"
        raise ApiError(HTTPStatus.BAD_REQUEST, message, kind=HTTPStatus.BAD_REQUEST.phrase) from error
    if not isinstance(data, dict):
        message = "the body is not a JSON object"
        raise ApiError(HTTPStatus.BAD_REQUEST, message, kind=HTTPStatus.BAD_REQUEST.phrase)
    return data


def _model(data: Mapping[str, Any], served: tuple[str, ...]) -> str:
    """The name that was asked for; the first one served where none was."""
    name = data.get("model")
    if name is None:
        return served[0]
    if name not in served:
        message = f"The model `{str(name)[:200]}` does not exist; served here: {', '.join(served)}."
        raise ApiError(HTTPStatus.NOT_FOUND, message, "model")
    return str(name)


def _prompt_tokens(prompt: object) -> int:
    """Tokens of one prompt: a text, or the ids of its tokens; either may stand in a list of one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return _text_tokens(prompt)
    if isinstance(prompt, list) and prompt:
        if all(type(token) is int and token >= 0 for token in prompt):
            return len(prompt)
        if all(isinstance(one, str | list) for one in prompt):
            raise bad(f"prompt: this simulator takes one a request, {len(prompt)} are given", "prompt")
    raise bad("prompt: a text or a list of token ids is wanted, and not an empty one", "prompt")


def _message_tokens(message: object) -> int:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise bad("messages: each is an object with a role and a content", "messages")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str | None):
        raise bad("messages: the content of each is a text, or a list of parts", "messages")
    return TOKENS_PER_MESSAGE + _text_tokens(content or "")


def _text_tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _integer(data: Mapping[str, Any], name: str, least: int) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise bad(f"{name}: a whole number of at least {least} is wanted, not {str(value)[:40]}", name)
    return value


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if not isinstance(value, bool | None):
        raise bad(f"{name}: true or false is wanted, not {str(value)[:40]}", name)
    return bool(value)


def _stream_options(data: Mapping[str, Any], stream: bool) -> Mapping[str, Any]:
    options = data.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise bad("stream_options: an object is wanted", "stream_options")
    if not stream:
        raise bad("stream_options: allowed only with `stream` true", "stream_options")
    return options
