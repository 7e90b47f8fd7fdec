"""Run by the interpreter of an environment with vLLM: parse argument lists, given as JSON on stdin, as `vllm
serve`.

Prints one JSON object for each: what vLLM understood, or the parser's complaint. Also the names of all
options.
"""

import contextlib
import io
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

WANTED = (
    "model_tag",
    "revision",
    "served_model_name",
    "port",
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "shutdown_timeout",
    "disable_access_log_for_endpoints",
)


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    answers = []
    for arguments in json.load(sys.stdin):
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint):
                parsed = vars(parser.parse_args(arguments))
            answers.append({name: parsed.get(name) for name in WANTED})
        except SystemExit:
            answers.append({"error": complaint.getvalue()})
    options = sorted(option for action in parser._actions for option in action.option_strings)
    print(json.dumps({"answers": answers, "options": options}))


main()
