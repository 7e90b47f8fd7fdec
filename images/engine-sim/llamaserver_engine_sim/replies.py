"""What a client gets: whole answers and the events of a stream, with text made of a few words.

The fixed parts of an event are put together once a stream: with many streams nothing else is done so often.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from llamaserver_engine_sim.protocol import Ask

WORDS = tuple(
    f" {word}"
    for word in (
        *("the", "river", "runs", "slowly", "past", "an", "old", "mill", "and", "nobody"),
        *("asks", "where", "it", "came", "from", "or", "goes", "to", "in", "spring"),
    )
)
"""One a token. Nothing in them needs an escape in JSON."""
DONE = b"data: [DONE]\n\n"


def words(start: int, end: int) -> str:
    """The text of the tokens from `start` up to `end` of an answer."""
    count = len(WORDS)
    return "".join(WORDS[at % count] for at in range(start, end))


@dataclass
class Reply(ABC):
    """The answer to one request. `created` is in Unix seconds."""

    ask: Ask
    identity: str
    created: int

    prefix: ClassVar[str]
    whole_kind: ClassVar[str]
    part_kind: ClassVar[str]

    def __post_init__(self) -> None:
        head = json.dumps({**self._head(self.part_kind), "choices": []}, separators=(",", ":"))
        self._opening = f"data: {head.removesuffix(']}')}"

    def whole(self, made: int, reason: str) -> dict[str, object]:
        """All of it at once."""
        choice = {"index": 0, **self._content(words(0, made)), "logprobs": None}
        choice |= {"finish_reason": reason, "stop_reason": None}
        return {**self._head(self.whole_kind), "choices": [choice], "usage": self._usage(made)}

    def opening(self) -> bytes:
        """What comes before the first token."""
        return b""

    def event(self, sent: int, made: int, reason: str) -> bytes:
        """The tokens from `sent` up to `made`; `reason` is empty but in the last one."""
        ended = f'"{reason}"' if reason else "null"
        usage = f',"usage":{json.dumps(self._usage(made))}' if self.ask.running_usage else ""
        return (
            f'{self._opening}{{"index":0,{self._delta(words(sent, made))},"logprobs":null,'
            f'"finish_reason":{ended},"stop_reason":null}}]{usage}}}\n\n'
        ).encode()

    def closing(self, made: int) -> bytes:
        """What comes after the last token."""
        if not self.ask.usage:
            return DONE
        said = {**self._head(self.part_kind), "choices": [], "usage": self._usage(made)}
        return f"data: {json.dumps(said, separators=(',', ':'))}\n\n".encode() + DONE

    def _head(self, kind: str) -> dict[str, object]:
        identity = f"{self.prefix}-{self.identity}"
        return {"id": identity, "object": kind, "created": self.created, "model": self.ask.model}

    def _usage(self, made: int) -> dict[str, object]:
        prompt = self.ask.prompt
        return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}

    @abstractmethod
    def _content(self, text: str) -> dict[str, object]:
        """The text in a whole answer."""

    @abstractmethod
    def _delta(self, text: str) -> str:
        """The text in an event, as a member of a JSON object."""


class Completion(Reply):
    """Of /v1/completions."""

    prefix, whole_kind, part_kind = "cmpl", "text_completion", "text_completion"

    def _content(self, text: str) -> dict[str, object]:
        return {"text": text}

    def _delta(self, text: str) -> str:
        return f'"text":"{text}"'


class Chat(Reply):
    """Of /v1/chat/completions."""

    prefix, whole_kind, part_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> bytes:
        """The role."""
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return f"{self._opening}{choice}]}}\n\n".encode()

    def _content(self, text: str) -> dict[str, object]:
        return {"message": {"role": "assistant", "content": text, "tool_calls": []}}

    def _delta(self, text: str) -> str:
        return f'"delta":{{"content":"{text}"}}'
