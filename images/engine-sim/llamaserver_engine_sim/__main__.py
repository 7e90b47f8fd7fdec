"""`llamaserver-engine-sim`: serve until SIGTERM, then end what was begun."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from llamaserver_engine_sim.options import Options, parse
from llamaserver_engine_sim.server import Server
from llamaserver_engine_sim.tuner import TunerRoutes
from llamaserver_tuner.engine import boot_id

logger = logging.getLogger("vllm.engine_sim")


async def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError where the port cannot be had."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({stopped}, timeout=options.startup_s)
    if stop.is_set():
        return
    developer = os.environ.get("VLLM_SERVER_DEV_MODE", "0") == "1"
    tuner = TunerRoutes(os.environ, boot_id(), loads=options.tuner)
    async with Server(options, tuner, developer=developer) as server:
        logger.info("serving %s at port %d", ", ".join(options.served), server.port)
        failed = asyncio.create_task(server.failed())
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        failed.cancel()
        await server.drain()


def main() -> None:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    options = parse(sys.argv[1:], os.environ)
    if options.ignored:
        logger.warning("these arguments do nothing here: %s", " ".join(options.ignored))
    try:
        asyncio.run(serve(options))
    except OSError as error:
        raise SystemExit(f"cannot listen at {options.host}:{options.port}: {error}") from error


if __name__ == "__main__":
    main()
