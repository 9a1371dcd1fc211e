"""The command line, which takes seconds to import: also then Ctrl-C is one line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    # Threads that spin for long while they wait make steps many times slower on a busy machine (benchmarks/threads.py).
    # The choice has to be made before PyTorch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        from mixmatch.training.stop import stop_at_once

        stop_at_once()
        from mixmatch.cli import main as run
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
