"""Kill a process that labels, many times at random moments, and look for every label it had said was saved.

    make soak-labels KILLS=200

Each process labels one picture after the other through the same book as the server, and says so on standard output
after the log has it. Whatever it said must be there when the next one starts. What a power cut does cannot be shown
this way.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "label"))

from test_label_log import kill_one_writer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    acknowledged, noted = 0, 0
    with tempfile.TemporaryDirectory() as place:
        for number in range(1, options.kills + 1):
            acknowledged += kill_one_writer(Path(place), random.uniform(0, 0.1))
            print(f"\r{number} of {options.kills} kills, {acknowledged:,} labels", end="", file=sys.stderr, flush=True)
        aside = Path(place) / "labels" / "set-aside.txt"
        noted = len(aside.read_bytes().splitlines()) if aside.exists() else 0
    print(file=sys.stderr)
    print(f"{options.kills} kills, {acknowledged:,} acknowledged labels, none lost, {noted} torn lines cut off")


if __name__ == "__main__":
    main()
