"""Which way imports go: privacy stands on training and data, and neither of them knows it."""

from __future__ import annotations

import subprocess
import sys


def test_opening_the_data_of_a_run_does_not_import_privacy():
    program = "import sys, mixmatch.api, mixmatch.data.pate; print([m for m in sys.modules if 'mixmatch.privacy' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
