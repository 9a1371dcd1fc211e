"""The command line, which takes seconds to import: also then Ctrl-C is one line."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from mixmatch.cli import main as run
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
