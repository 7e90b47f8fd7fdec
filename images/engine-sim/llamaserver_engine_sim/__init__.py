"""vLLM's HTTP surface around the plant of `llamaserver.simulate`, in real time: a fleet without GPUs.

Modules, from pure to thin: `options` (flags), `protocol` (requests), `replies` (answers); `port`,
`statistics` and `metrics` are what the tuner and /metrics see of the plant; `core` moves the plant with the
machine's clock; `auth`, `tuner` and `server` are HTTP.
"""

__version__ = "0.1.0"

VLLM = "0.32.0"
"""The release whose surface this is: routes, errors, names and buckets on /metrics."""
