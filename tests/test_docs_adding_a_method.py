"""The page on adding a method, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mixmatch.training.run import RunFolder

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-method.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    assert "% test error" in capsys.readouterr().out
    method = blocks[0][blocks[0].index("@dataclass") :]
    assert len([line for line in method.splitlines() if line.strip()]) <= 35  # about thirty lines, as promised
    saved = RunFolder(tmp_path / "runs" / "longer").load_checkpoint()
    assert saved is not None
    times = saved.method["times"]
    assert saved.step == 80
    # Every row was counted each time it was seen; one at the end of an epoch and the start of the next counts once.
    assert 80 * 64 - 5 < times.sum() <= 80 * 64
    record = names["record"]
    assert record["method"] == "custom:TemporalEnsembling"
    assert record["settings"]["method_settings"]["weight"] == 10.0
