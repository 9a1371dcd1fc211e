"""The command line, which takes seconds to import: also then Ctrl-C is one line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    # Threads that spin for long while they wait make steps many times slower on a busy machine (benchmarks/threads.py).
    # The choice has to be made before PyTorch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    failed: BaseException | None = None
    try:
        from mixmatch.training.stop import stop_as_usual, stop_at_once
        from mixmatch.training.torchrun import started_processes

        stop_at_once()
        if sys.argv[1:2] == ["label"] and started_processes() == 1:
            from mixmatch.label.start import plain_folder, start

            try:
                if (plain := plain_folder(sys.argv[1:])) is not None:
                    folder, browser = plain
                    stop_as_usual()
                    start(folder, browser=browser)
                    return
            except BaseException as error:  # also Ctrl-C: told as the errors of all commands are
                failed = error
        from mixmatch.cli import main as run
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    run(failed)


if __name__ == "__main__":
    main()
