"""`mixmatch data list` starts at once: what takes long to import is imported where it is used."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """if True:
    import sys
    import mixmatch.errors
    before = set(sys.modules)
    import mixmatch.measure, mixmatch.label.check, mixmatch.label.features, mixmatch.label.suggest
    import mixmatch.data, mixmatch.data.opened, mixmatch.data.split, mixmatch.data.user.check
    print(*{"torch", "scipy", "sklearn", "requests"} & (set(sys.modules) - before))
"""


def test_data_imports_nothing_slow() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == []
