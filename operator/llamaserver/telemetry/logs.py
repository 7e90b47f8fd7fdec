"""Structured logs: one JSON object a line, with the LlamaServer it is about as fields of its own."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUIET: Final = {
    "kopf": logging.WARNING,
    "kopf._cogs.clients": logging.CRITICAL,  # one line a watch and try; what ends them is logged by us
    "kopf._core.reactor.running": logging.ERROR,  # warns that it runs in a thread, which is meant
    "kubernetes": logging.WARNING,
    "aiohttp": logging.WARNING,
}


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", ...extra}`; whatever was passed as `extra=` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (stderr). `form` is `json` or `text`, `level` a name such as `info`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


class KeyLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose every line carries `namespace` and `name` of one LlamaServer."""

    def __init__(self, logger: logging.Logger, namespace: str, name: str) -> None:
        super().__init__(logger, {"namespace": namespace, "server": name})
        self._prefix = f"{namespace}/{name}: "

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Add the fields, and the key to the text, which is what people read."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"{self._prefix}{msg}", kwargs
