"""What the app runs on, and who goes first on it."""

from __future__ import annotations

import os
import sys
import threading

_STEP_BACK = 5


def step_back() -> None:
    """Give this thread, and those it starts, less of the processor than the ones that answer pages.

    On Linux, where threads have a priority of their own; elsewhere it would be the whole app's.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, now + _STEP_BACK)
