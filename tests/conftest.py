"""What every test needs."""

from __future__ import annotations

import signal

# A shell starts jobs in the background with Ctrl-C ignored, and a run leaves it so. Tests of stopping need it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
