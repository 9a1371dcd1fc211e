"""Requests to stop are noted while a run is under way, and those that were ignored before stay so."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from mixmatch.training.stop import Stop


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def test_a_request_is_noted_once_and_handlers_come_back(number: int) -> None:
    seen: list[int] = []
    signal.signal(number, lambda number, frame: seen.append(number))
    stop = Stop()
    with stop.listening():
        stop.runs = 1
        signal.raise_signal(number)
        assert stop.signal == number
        assert seen == []
        signal.raise_signal(number)  # a second one has its usual effect
        assert seen == [number]
    signal.raise_signal(number)
    assert seen == [number, number]


def test_what_was_ignored_stays_ignored(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)
    stop = Stop()
    with stop.listening():
        stop.runs = 1
        signal.raise_signal(number)
        assert not stop()
        assert signal.getsignal(number) is signal.SIG_IGN
    assert signal.getsignal(number) is signal.SIG_IGN
