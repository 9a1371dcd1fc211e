"""What every test needs."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# As `make` has it, where pytest is called by itself: only with the same number of threads are models bit-identical.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A shell starts jobs in the background with Ctrl-C ignored, and a run leaves it so. Tests of stopping need it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def what_stays() -> None:
    """What is imported by now stays: it need not be looked at whenever runs that end give back their memory, which
    would take a third of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests compile is kept for the whole session and has no vector instructions, for which PyTorch would compile
    several programs to see which there are: both make it faster."""
    import torch._inductor.config as inductor  # not at the top: most tests need no torch

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    # PyTorch's own patch: undone by pytest's, a setting of PyTorch's is gone, and this may run twice in a process.
    with pytest.MonkeyPatch.context() as patch, inductor.patch({"compile_threads": 1, "cpp.vec_isa_ok": False}):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling without its last part, which writes C++ and takes most of the time: the graph is run as it is."""
    import torch

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.fixture
def lock_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lets nobody look into a folder. `chmod` would not stop the superuser, as whom tests may run."""

    def locked(folder: Path) -> None:
        for name in ("stat", "lstat", "open", "scandir"):
            monkeypatch.setattr(os, name, partial(refusing, folder, getattr(os, name)))

    def refusing(folder: Path, plain: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, str | Path) and folder in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path, *args, **options)

    return locked


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of one node with a core, in a home of its own; `add_node` adds more. Never `ray stop`, which ends
    every Ray process of the machine: the cluster ends its own."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mixmatch[ray]'")
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    home = tempfile.mkdtemp(prefix="ray-")  # names of sockets must be short
    os.environ.update(HOME=home, RAY_TMPDIR=home, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    # A lost node is noticed after a few seconds, not 15.
    checks = {"initial_delay_ms": 0, "period_ms": 1000, "failure_threshold": 3}
    node["_system_config"] = {f"health_check_{name}": value for name, value in checks.items()}
    made = None
    try:
        made = Cluster(True, head_node_args=node)
        yield made
    finally:
        ray.shutdown()
        if made is not None:
            made.shutdown()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home, ignore_errors=True)
