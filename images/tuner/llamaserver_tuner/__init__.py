"""vLLM plugins to read a running engine exactly and to move its sequence cap and token budget live.

Modules, from pure to thin: `digest`, `moments`, `setpoints`, `meter` hold arithmetic and state with the time
passed in; `scheduler` is the only file that knows vLLM's scheduler; `engine` runs in the engine core;
`signing`, `requests`, `access`, `service` and `metrics` run in the API server; `http` and `stats` are the
entry points there.
"""

__version__ = "0.1.0"

SCHEMA = 1
"""Of the snapshot's JSON. It changes only when a reader of the old one would misread the new one."""
