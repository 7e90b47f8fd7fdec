"""What a client of vLLM sees: answers, streams, refusals, and what becomes of a request that is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from engine_sim.sim import SLOWED, Sim, body, simulated
from workbench import eventually

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What is new?"}], "max_tokens": 4}
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with simulated() as made:
        yield made


async def test_a_completion(sim: Sim) -> None:
    status, answer = await sim.complete()
    assert (status, answer["object"], answer["model"]) == (200, "text_completion", "tiny")
    (choice,) = answer["choices"]
    assert len(choice["text"].split()) == 5
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == USAGE


async def test_a_streamed_completion_has_an_event_a_token_and_the_same_text(sim: Sim) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await sim.stream("/v1/completions", body(stream=True, stream_options=options))
    *tokens, last = events
    _, whole = await sim.complete()
    assert "".join(event["choices"][0]["text"] for event in tokens) == whole["choices"][0]["text"]
    assert tokens[-1]["choices"][0]["finish_reason"] == "length"
    assert all(event["choices"][0]["finish_reason"] is None for event in tokens[:-1])
    counts = [event["usage"]["completion_tokens"] for event in tokens]
    assert counts == sorted(set(counts))
    assert counts[-1] == 5
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert len({event["id"] for event in events}) == 1


async def test_usage_is_told_only_when_it_is_asked_for(sim: Sim) -> None:
    events = await sim.stream("/v1/completions", body(stream=True))
    assert all("usage" not in event and event["choices"] for event in events)


async def test_a_chat(sim: Sim) -> None:
    status, answer = await sim.post("/v1/chat/completions", {**CHAT, "ignore_eos": True})
    assert (status, answer["object"]) == (200, "chat.completion")
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert len(message["content"].split()) == answer["usage"]["completion_tokens"] == 4


async def test_a_streamed_chat_begins_with_the_role(sim: Sim) -> None:
    first, *rest = await sim.stream("/v1/chat/completions", {**CHAT, "stream": True, "ignore_eos": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    assert len("".join(event["choices"][0]["delta"]["content"] for event in rest).split()) == 4


async def test_an_answer_ends_by_itself_where_the_end_of_text_is_not_ignored(sim: Sim) -> None:
    """The mean is 200 tokens: of some requests that may have 900 one at least stops before."""
    answers = await asyncio.gather(*(sim.complete(max_tokens=900, ignore_eos=False) for _ in range(8)))
    reasons = {answer["choices"][0]["finish_reason"] for _, answer in answers}
    assert "stop" in reasons
    _, least = await sim.complete(max_tokens=6, min_tokens=6, ignore_eos=False)
    assert least["usage"]["completion_tokens"] == 6


async def test_one_token_is_an_answer(sim: Sim) -> None:
    _, answer = await sim.complete(max_tokens=1)
    assert answer["usage"]["completion_tokens"] == 1
    events = await sim.stream("/v1/completions", body(stream=True, max_tokens=1))
    assert [event["choices"][0]["finish_reason"] for event in events] == ["length"]


async def test_a_prompt_is_a_text_or_tokens_or_a_list_of_one(sim: Sim) -> None:
    for prompt, tokens in (("x" * 40, 10), ([7] * 9, 9), (["y" * 8], 2), ([[1, 2]], 2)):
        _, answer = await sim.complete(prompt=prompt)
        assert answer["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1] * 1000}, "input_tokens"),
        ({"max_tokens": 998}, "input_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"min_tokens": 6}, "min_tokens"),
        ({"n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_a_request_that_cannot_be_served_names_its_field(
    sim: Sim, changes: dict[str, Any], param: str
) -> None:
    status, answer = await sim.complete(**changes)
    error = answer["error"]
    assert (status, error["code"], error["type"], error["param"]) == (400, 400, "BadRequestError", param)
    assert await sim.counted("vllm:num_requests_") == 0


async def test_what_is_no_json_no_model_or_no_route(sim: Sim) -> None:
    assert (await sim.post("/v1/completions", b"{"))[0] == 400
    assert (await sim.post("/v1/completions", b"[]"))[0] == 400
    assert (await sim.post("/v1/chat/completions", {**CHAT, "messages": []}))[0] == 400
    assert (await sim.post("/v1/chat/completions", {**CHAT, "messages": [{"content": "x"}]}))[0] == 400
    status, answer = await sim.complete(model="other")
    assert (status, answer["error"]["type"]) == (404, "NotFoundError")
    status, answer = await sim.post("/v1/nowhere", {})
    assert (status, answer["error"]["code"]) == (404, 404)


async def test_it_says_who_it_is() -> None:
    async with simulated("--served-model-name", "a", "b", "--max-model-len", "500") as sim:
        async with sim.session.get(f"{sim.url}/v1/models") as response:
            cards = (await response.json())["data"]
        assert [(card["id"], card["root"], card["max_model_len"]) for card in cards] == [
            ("a", "tiny", 500),
            ("b", "tiny", 500),
        ]
        assert '"0.32.0"' in await sim.get("/version")
        assert await sim.get("/health") == await sim.get("/ping") == ""


@pytest.mark.parametrize(("key", "status"), [("", 401), ("Bearer no", 401), ("Bearer k2", 200)])
async def test_a_key_guards_the_interface_and_not_the_probes(key: str, status: int) -> None:
    async with simulated("--api-key", "k1", "k2") as sim:
        got, _ = await sim.post("/v1/completions", body(), {"Authorization": key})
        assert got == status
        for path in ("/health", "/metrics", "/llamaserver/v1/snapshot"):
            await sim.get(path)


async def test_an_engine_without_the_tuner_serves_and_has_figures() -> None:
    async with simulated("--no-tuner") as sim:
        assert (await sim.complete())[0] == 200
        assert await sim.counted("vllm:generation_tokens_total") == 5
        async with sim.session.get(f"{sim.url}/llamaserver/v1/snapshot") as answer:
            assert answer.status == 404


async def test_the_key_may_come_from_the_environment() -> None:
    async with simulated(environment={"VLLM_API_KEY": "k"}) as sim:
        assert (await sim.complete())[0] == 401


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_makes_room(stream: bool) -> None:
    """Nine requests for eight places: the ninth is served when one of the others is left."""
    async with simulated("--speed", SLOWED, "--max-num-seqs", "1") as sim:
        plant = sim.server.core.plant
        leaver = asyncio.create_task(sim.complete(max_tokens=900, stream=stream))
        await eventually(lambda: len(plant.running) == 1)
        stays = asyncio.create_task(sim.complete(max_tokens=1))
        await eventually(lambda: len(plant.waiting) == 1)
        leaver.cancel()
        status, _ = await stays
        assert status == 200
        await eventually(lambda: plant.idle and plant.kv == 0)
        assert await sim.counted('vllm:request_success_total{engine="0",finished_reason="abort"') == 1


async def test_more_requests_than_places_wait_and_all_are_served(sim: Sim) -> None:
    answers = await asyncio.gather(*(sim.complete(max_tokens=20) for _ in range(30)))
    assert {(status, answer["usage"]["completion_tokens"]) for status, answer in answers} == {(200, 20)}
    assert await sim.counted("vllm:request_success_total") == 30
    assert await sim.counted("vllm:generation_tokens_total") == 600


async def test_who_drains_ends_what_it_has_and_takes_nothing_new() -> None:
    async with simulated("--speed", SLOWED) as sim:
        running = asyncio.create_task(sim.complete(max_tokens=3))
        await eventually(lambda: len(sim.server.core.plant.running) == 1)
        drained = asyncio.create_task(sim.server.drain())
        await asyncio.sleep(0)
        status, answer = await sim.complete()
        assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableError")
        assert not drained.done()
        await sim.get("/metrics")
        assert (await running)[1]["usage"]["completion_tokens"] == 3
        await drained


async def test_what_does_not_end_in_the_time_to_drain_is_cut() -> None:
    async with simulated("--speed", SLOWED, "--shutdown-timeout=0") as sim:
        request = sim.session.post(f"{sim.url}/v1/completions", json=body(max_tokens=900, stream=True))
        async with request as response:
            await response.content.readline()
            await sim.server.drain()
            sim.server.core.leave_all()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_a_sleeping_engine_serves_when_it_wakes() -> None:
    async with simulated(developer=True) as sim:
        assert await sim.post("/sleep?level=2", {}) == (200, {"status": "sleeping", "level": 2})
        assert await sim.get("/is_sleeping") == '{"is_sleeping": true}'
        assert (
            await sim.counted('vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"') == 0
        )
        waits = asyncio.create_task(sim.complete())
        await eventually(lambda: len(sim.server.core.plant.waiting) == 1)
        await sim.post("/wake_up", {})
        assert (await waits)[0] == 200


async def test_sleep_is_there_for_developers_alone(sim: Sim) -> None:
    assert (await sim.post("/sleep", {}))[0] == 404
