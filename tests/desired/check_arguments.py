"""Run by the interpreter of an environment with vLLM: parse argument lists, given as JSON on stdin, as `vllm
serve`.

Prints one JSON object for each: what vLLM understood, or the parser's complaint. Also the names of all
options, of the fields of a speculation, and of vLLM's environment variables; and the connector that the first
list's offloading comes to.
"""

import contextlib
import dataclasses
import io
import json
import sys
from types import SimpleNamespace

from vllm import envs
from vllm.config import CacheConfig, VllmConfig
from vllm.config.observability import ObservabilityConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

WANTED = (
    "model_tag",
    "revision",
    "served_model_name",
    "port",
    "ssl_certfile",
    "ssl_keyfile",
    "enable_ssl_refresh",
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "kv_offloading_size",
    "kv_offloading_backend",
    "shutdown_timeout",
    "disable_access_log_for_endpoints",
    "quantization",
    "enable_auto_tool_choice",
    "tool_call_parser",
    "reasoning_parser",
    "speculative_config",
    "chat_template",
    "enable_lora",
    "lora_modules",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "enforce_eager",
    "custom_histogram_buckets",
)


def plain(value: object) -> object:
    """Adapters as vLLM has them, without what was not given; other values as they are."""
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return [{"name": one.name, "path": one.path} for one in value]
    return value


def connector(answer: dict[str, object]) -> dict[str, object]:
    """What vLLM itself makes of the two flags, before it has a model."""
    cache = CacheConfig(
        kv_offloading_size=answer["kv_offloading_size"], kv_offloading_backend=answer["kv_offloading_backend"]
    )
    config = SimpleNamespace(cache_config=cache, kv_transfer_config=None)
    VllmConfig._post_init_kv_transfer_config(config)
    made = config.kv_transfer_config
    return {"kv_connector": made.kv_connector, "kv_role": made.kv_role, **made.kv_connector_extra_config}


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    answers = []
    for arguments in json.load(sys.stdin):
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint):
                parsed = vars(parser.parse_args(arguments))
            ObservabilityConfig(custom_histogram_buckets=parsed["custom_histogram_buckets"])
            answers.append({name: plain(parsed.get(name)) for name in WANTED})
        except SystemExit:
            answers.append({"error": complaint.getvalue()})
    options = sorted(option for action in parser._actions for option in action.option_strings)
    speculative = sorted(field.name for field in dataclasses.fields(SpeculativeConfig))
    variables = sorted(envs.environment_variables)
    found = {"answers": answers, "options": options, "speculative": speculative, "variables": variables}
    print(json.dumps({**found, "offloading": connector(answers[0])}))


main()
