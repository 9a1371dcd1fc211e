"""The record of a finished run: what was done, on what, with which outcome. Tables and reports are made from these."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixmatch import __version__
from mixmatch.data.split import Split
from mixmatch.settings import Settings
from mixmatch.text import duration, html_table
from mixmatch.training.evaluate import reported_error

Record = dict[str, Any]

NAMED_BY = ("data", "method", "labels", "seed", "steps")
"""The settings that a run is known by, also outside of its settings."""


class RunRecord(Record):
    """The record of a finished run: a dict that shows itself in a line, or as a table in a notebook."""

    def _shown(self) -> dict[str, str]:
        """The values worth showing. The error is that of the finished model, as in the verdict if there is one."""
        verdict = self.get("verdict_details")
        error = self.get("last_error") if verdict is None else verdict["error"]
        about = {
            "data": self.get("data"),
            "method": self.get("method"),
            "labels": self.get("split", {}).get("labeled", self.get("labels")),
            "seed": self.get("seed"),
            "error": "not known" if error is None else f"{error:.{2 if verdict is None else 1}f} %",
            "steps": f"{self.get('steps', 0):,} in {duration(self.get('seconds', 0))}",
        }
        return {name: str(value) for name, value in about.items()}

    def __repr__(self) -> str:
        return f"<run: {', '.join(f'{name} {value}' for name, value in self._shown().items())}>"

    def _repr_html_(self) -> str:
        verdict, report = self.get("verdict_details", {}), self.get("report")
        answers = {name: verdict[name] for name in ("how_good", "trust", "unlabeled") if name in verdict}
        steps = [("next", step) for step in verdict.get("next_steps", ())]
        more = [(name.replace("_", " "), text) for name, text in answers.items()]
        return html_table([*self._shown().items(), *more, *steps, *([("report", report)] if report else [])])


def make_record(
    settings: Settings,
    split: Split,
    metrics: list[Record],
    seconds: float,
    device: torch.device,
    engine: Record | None = None,
    machines: list[Record] | None = None,
    threads: int | None = None,
    began_with: Record | None = None,
) -> RunRecord:
    """`machines` are those the run was on, if not on one alone: see `on_machines`. `began_with` are the `versions` of
    the software that it began with, if it was resumed.

    `error` is the paper's number, in percent: the median of the last 20 evaluations, or of `median_of` if fewer.

    It is None where there was nothing to evaluate on.
    """
    errors = [m["test_error"] for m in metrics if "test_error" in m]
    error, median_of = reported_error(errors) if errors else (None, 0)
    now = versions()
    record = {
        **{name: getattr(settings, name) for name in NAMED_BY},
        "error": error,
        "median_of": median_of,
        "last_error": errors[-1] if errors else None,
        "seconds": round(seconds, 1),
        "settings": settings.to_dict(),
        "split": {"hash": split.hash, **split.counts()},
        "curve": [{"step": m["step"], "error": m["test_error"]} for m in metrics if "test_error" in m],
        "hardware": {
            "device": device.type,
            "name": machine_name(device),
            "threads": threads or torch.get_num_threads(),
            "cores": os.cpu_count(),
            **({"machines": machines} if machines and len(machines) > 1 else {}),
        },
        "engine": engine,
        "versions": now,
        **({"began_with": began_with} if began_with not in (None, now) else {}),
    }
    return RunRecord(record)


def machine_name(device: torch.device) -> str:
    """The name of the GPU, or else of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def on_machines(earlier: list[Record] | None, step: int, device: torch.device) -> list[Record]:
    """The machines a run has been on, each with the step it began there, now that it continues here."""
    before = earlier if earlier else [{"from_step": 0, "name": "unknown"}] if step else []
    name = machine_name(device)
    return before if before and before[-1]["name"] == name else [*before, {"from_step": step, "name": name}]


def versions() -> dict[str, str | None]:
    """What software made the numbers; outside a git checkout `commit` is MIXMATCH_COMMIT, if that is set."""
    commit, named = _commit(Path(__file__).parents[1]), os.environ.get("MIXMATCH_COMMIT")
    if commit is None and named:
        commit = f"{named} (from MIXMATCH_COMMIT, not verified)"
    return {
        "mixmatch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "commit": commit,
    }


def _commit(package: Path) -> str | None:
    """Of the checkout that a package lies in as ours does. An environment may lie in somebody else's repository."""
    root = package.parents[1]
    if package != root / "src" / "mixmatch" or not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
