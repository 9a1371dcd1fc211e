"""What every test needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

# A shell starts jobs in the background with Ctrl-C ignored, and a run leaves it so. Tests of stopping need it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests compile is kept for the whole session, headers above all, and has no vector instructions: both make it
    faster to compile."""
    import torch._inductor.config as inductor  # not at the top: most tests need no torch

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    # PyTorch's own patch: undone by pytest's, a setting of PyTorch's is gone, and this may run twice in a process.
    with pytest.MonkeyPatch.context() as patch, inductor.patch({"compile_threads": 1, "cpp.simdlen": 1}):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield
