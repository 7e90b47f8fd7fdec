"""The openai client against a server at the URL that is given: completions, chats, streams, errors."""

from __future__ import annotations

import sys

import openai


def check(url: str) -> None:
    """Raise AssertionError where an answer is not what the client makes of vLLM's."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]

    exactly = {"ignore_eos": True}
    done = client.completions.create(model="tiny", prompt="hello", max_tokens=7, extra_body=exactly)
    assert done.usage is not None
    assert (done.choices[0].finish_reason, done.usage.completion_tokens) == ("length", 7)

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    said = client.chat.completions.create(model="tiny", messages=messages, max_tokens=5, extra_body=exactly)
    text = said.choices[0].message.content
    assert len(text.split()) == 5

    events = list(
        client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=exactly,
        )
    )
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == text
    assert events[-1].usage.completion_tokens == 5

    for wrong, error in (
        ({"model": "other"}, openai.NotFoundError),
        ({"max_tokens": -1}, openai.BadRequestError),
    ):
        try:
            client.completions.create(**{"model": "tiny", "prompt": "hello", **wrong})
        except error:
            continue
        raise AssertionError(f"{wrong} is not refused by {error.__name__}")


if __name__ == "__main__":
    check(sys.argv[1])
