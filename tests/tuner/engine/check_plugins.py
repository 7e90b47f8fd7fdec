"""vLLM's own plugin loader, engine core and API server taking the tuner in."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from argparse import Namespace
from typing import Any
from unittest import mock

from fastapi import FastAPI
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
from vllm.plugins import load_endpoint_plugins, load_plugins_by_group
from vllm.plugins.endpoint_plugins.interface import (
    EndpointPlugin,
    attach_endpoint_plugins,
    init_endpoint_plugins_state,
)
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState
from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from harness import Loop, make_request, make_scheduler
from llamaserver_tuner import engine
from llamaserver_tuner.http import SCHEDULER_PATH, SNAPSHOT_PATH, TunerEndpoint
from llamaserver_tuner.stats import TunerStatLogger

OURS = "llamaserver_tuner_engine,llamaserver_tuner_http,llamaserver_tuner_stats"


def plugins(value: str | None) -> Any:
    """VLLM_PLUGINS set to `value`, or not set."""
    environment = {name: text for name, text in os.environ.items() if name != "VLLM_PLUGINS"}
    if value is not None:
        environment["VLLM_PLUGINS"] = value
    return mock.patch.dict(os.environ, environment, clear=True)


class Loading(unittest.TestCase):
    def test_all_three_are_found_by_their_names(self) -> None:
        with plugins(OURS):
            general = load_plugins_by_group("vllm.general_plugins")
            self.assertIs(general["llamaserver_tuner_engine"], engine.register)
            self.assertIn(TunerStatLogger, load_stat_logger_plugin_factories())
            (endpoint,) = load_endpoint_plugins(("generate",))
        self.assertIsInstance(endpoint, TunerEndpoint)
        self.assertIsInstance(endpoint, EndpointPlugin)
        self.assertEqual(endpoint.name, "llamaserver_tuner_http")

    def test_they_live_with_the_users_plugins_in_one_list(self) -> None:
        with plugins(f"lora_filesystem_resolver,{OURS}"):
            general = load_plugins_by_group("vllm.general_plugins")
            self.assertEqual(set(general), {"lora_filesystem_resolver", "llamaserver_tuner_engine"})
            self.assertEqual(len(load_endpoint_plugins(("generate",))), 1)

    def test_the_routes_are_only_there_when_named(self) -> None:
        for value in (None, "", "somebody_else"):
            with self.subTest(value), plugins(value):
                self.assertEqual(load_endpoint_plugins(("generate",)), [])

    def test_registering_again_changes_nothing(self) -> None:
        engine.register()
        first = getattr(EngineCoreProc, engine.READ)
        engine.register()
        self.assertIs(getattr(EngineCoreProc, engine.READ), first)

    def test_all_processes_of_one_start_have_one_boot_id(self) -> None:
        with mock.patch.dict(os.environ):
            os.environ.pop(engine.BOOT_ID_VARIABLE, None)
            engine.register()
            inherited = os.environ[engine.BOOT_ID_VARIABLE]
            self.assertEqual((engine.boot_id(), len(inherited)), (inherited, 32))


class Core(unittest.TestCase):
    """A real EngineCoreProc without a model: its dispatch of utility calls and its serialisation."""

    def setUp(self) -> None:
        engine.register()
        self.core = object.__new__(EngineCoreProc)
        self.core.scheduler = make_scheduler()
        self.core.engine_index = 3
        self.core.shutdown_state = EngineShutdownState.RUNNING
        self.core.output_queue = mock.Mock()

    def call(self, method: str, *args: Any) -> Any:
        """Send a utility call as AsyncMPClient does and take its answer off the wire."""
        self.core._handle_client_request(EngineCoreRequestType.UTILITY, (0, 1, method, args))
        ((_, outputs),) = self.core.output_queue.put_nowait.call_args.args
        wire = MsgpackEncoder().encode(outputs)
        answer = MsgpackDecoder(EngineCoreOutputs).decode(wire).utility_output
        if answer.failure_message is not None:
            raise RuntimeError(answer.failure_message)
        return json.loads(answer.result.result)

    def body(self, cap: int, generation: int = 1) -> str:
        wanted = {"max_num_active_seqs": cap, "max_num_scheduled_tokens": None}
        return json.dumps({**wanted, "generation": generation, "lease_seconds": 60})

    def test_a_change_goes_in_and_is_read_back_from_the_scheduler(self) -> None:
        state = self.call(engine.READ)
        self.assertEqual((state["engine"], state["max_num_active_seqs"]), (3, 16))
        state = self.call(engine.APPLY, self.body(5), 1e12)
        self.assertEqual((state["max_num_active_seqs"], self.core.scheduler.max_num_active_reqs), (5, 5))
        self.assertEqual(self.call(engine.APPLY, self.body(6), 1e12)["error"]["reason"], "StaleGeneration")
        self.assertEqual(self.call(engine.READ)["max_num_active_seqs"], 5)

    def test_sums_beyond_64_bits_cross_the_wire(self) -> None:
        self.call(engine.READ)
        tuner = self.core._llamaserver_tuner
        tuner.meter.decode.add(1, 10**12, 0, 10**9)
        self.assertEqual(self.call(engine.READ)["steps"]["decode"]["KK"], 10**24)

    def test_asking_twice_wraps_once(self) -> None:
        self.call(engine.READ)
        wrapped = self.core.scheduler.schedule
        self.call(engine.READ)
        self.assertIs(self.core.scheduler.schedule, wrapped)
        self.core.scheduler.add_request(make_request("r", 20, 5))
        Loop(self.core.scheduler).drain()
        self.assertEqual(self.call(engine.READ)["arrived"], 1)

    def test_a_core_that_is_not_understood_is_reported_and_left_alone(self) -> None:
        self.core.scheduler = object()
        with mock.patch.object(engine.logger, "exception") as logged:
            for _ in range(3):
                state = self.call(engine.READ)
                self.assertEqual(state["engine"], 3)
                self.assertIn("AttributeError", state["failed"])
        self.assertEqual(logged.call_count, 1)

    def test_a_reading_that_fails_switches_the_tuner_off_and_is_said_once(self) -> None:
        self.call(engine.APPLY, self.body(5), 1e12)
        tuner, scheduler = self.core._llamaserver_tuner, self.core.scheduler
        with (
            mock.patch.object(tuner.port, "gauges", side_effect=KeyError("gone")),
            mock.patch.object(engine.logger, "error") as logged,
        ):
            for _ in range(3):
                self.assertEqual(self.call(engine.READ)["failed"], "KeyError: 'gone'")
        self.assertEqual(logged.call_count, 1)
        self.assertEqual((scheduler.max_num_active_reqs, tuner.active), (16, False))
        self.assertEqual(self.call(engine.READ)["live"]["max_num_active_seqs"], "TunerFailed")

    def test_a_core_without_the_plugin_and_one_that_ends_say_what_the_api_server_looks_for(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "no attribute 'llamaserver_tuner_gone'"):
            self.call("llamaserver_tuner_gone")
        self.core.shutdown_state = EngineShutdownState.SHUTTING_DOWN
        with self.assertRaisesRegex(RuntimeError, "shutting down"):
            self.call(engine.READ)


async def ask(app: Any, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """One request to an ASGI application; return the status and the JSON."""
    sent: list[dict[str, Any]] = []
    messages = iter([{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(text)


class Routes(unittest.TestCase):
    """The routes in a FastAPI application behind vLLM's own guard for `--api-key`."""

    def run_with(self, *requests: tuple[str, str, bytes]) -> list[tuple[int, Any]]:
        async def run() -> list[tuple[int, Any]]:
            app = FastAPI()

            @app.get("/v1/models")
            async def models() -> dict[str, str]:
                return {}

            attach_endpoint_plugins(app, ("generate",))
            await init_endpoint_plugins_state(None, app.state, Namespace())
            guarded = AuthenticationMiddleware(app, ["the-users-key"])
            answers = [await ask(guarded, *request) for request in requests]
            app.state.llamaserver_tuner_refresh.cancel()
            return answers

        with plugins(OURS):
            return asyncio.run(run())

    def test_the_users_api_key_guards_the_models_and_not_the_tuner(self) -> None:
        models, snapshot, change = self.run_with(
            ("GET", "/v1/models", b""), ("GET", SNAPSHOT_PATH, b""), ("PUT", SCHEDULER_PATH, b"{}")
        )
        self.assertEqual(models[0], 401)
        self.assertEqual((snapshot[0], snapshot[1]["schema"]), (200, 1))
        # No key is mounted here: the tuner refuses by itself, in its own words.
        self.assertEqual((change[0], change[1]["error"]["reason"]), (503, "NotWritable"))

    def test_a_server_without_an_engine_says_so(self) -> None:
        ((status, snapshot),) = self.run_with(("GET", SNAPSHOT_PATH, b""))
        self.assertEqual((status, snapshot["reason"], snapshot["engines"]), (200, "NoEngine", None))
        self.assertEqual((snapshot["vllm"].startswith("0."), snapshot["writable"]), (True, False))

    def test_a_body_without_end_is_cut_off(self) -> None:
        ((status, answer),) = self.run_with(("PUT", SCHEDULER_PATH, b"x" * 5000))
        self.assertEqual((status, answer["error"]["reason"]), (400, "InvalidBody"))


if __name__ == "__main__":
    unittest.main()
