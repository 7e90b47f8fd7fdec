"""Who uses the processor."""

from __future__ import annotations

import subprocess
import sys
import time

from harness import machine

BURN = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\ninput()"


def test_processor_time_is_told_by_session() -> None:
    busy, mine = machine.busy_s(), machine.used_s(())
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        deadline = time.monotonic() + 20
        while machine.used_s({child.pid}) - machine.used_s(()) < 0.35:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert machine.used_s(()) - mine < 0.35
        after = machine.busy_s()
        child.communicate(b"\n")
    assert busy is not None
    assert after is not None
    assert after - busy >= 0.35
