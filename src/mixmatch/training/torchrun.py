"""What torchrun says about the processes it has started, in environment variables."""

from __future__ import annotations

import os

STALE_ADDRESSES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set to 1 before torchrun starts on several machines, it makes processes that restart find each other at once."""


def started_processes() -> int:
    """How many processes were started for one run; 1 if it was not torchrun that started this one."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() else 1


def leads() -> bool:
    """Whether this process is the only one or the first. It alone writes and shows anything."""
    return started_processes() == 1 or os.environ["RANK"] == "0"


def attempt() -> str:
    """A name for this start of all processes, if they are on one machine: each machine counts for itself."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if _on_one_machine() else "0"


def restarts_may_fail() -> bool:
    """Whether processes that die are started again, but would look for the others at their old addresses."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    return restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not _on_one_machine()


def _on_one_machine() -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
