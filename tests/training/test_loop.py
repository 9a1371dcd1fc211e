"""What is due when: the loop's decisions, over all small cases, against definitions that enumerate."""

from __future__ import annotations

from itertools import product

import pytest

from mixmatch.training.loop import evaluation_due, next_pause, save_due, steps_until_pause
from mixmatch.training.trainer import CHUNK

TOTALS = range(1, 8)
EVERY = range(1, 10)


def multiples(every: int, total: int) -> set[int]:
    return {every * n for n in range(1, total + 1)}


@pytest.mark.parametrize("total", TOTALS)
def test_evaluations_are_at_multiples_and_at_the_end_once(total: int) -> None:
    for every in EVERY:
        wanted = {step for step in range(1, total + 1) if step in multiples(every, total) or step == total}
        for step in range(total + 1):
            for evaluated_at in [-1, *range(1, step + 1)]:
                still = {s for s in wanted if s > evaluated_at}
                assert evaluation_due(step, total, every, evaluated_at) == (step in still), (step, every, evaluated_at)


@pytest.mark.parametrize("total", TOTALS)
@pytest.mark.parametrize("seconds", [0.0, 59.9, 60.0, 1e6])
def test_saves_are_at_multiples_or_by_the_clock_and_at_the_end_once(total: int, seconds: float) -> None:
    for every in [None, *EVERY]:
        for step in range(total + 1):
            for saved_at in range(-1, step + 1):
                if every is None:
                    wanted = set(range(1, total + 1)) if seconds >= 60 else {total}
                else:
                    wanted = multiples(every, total) | {total}  # the clock has no say
                expected = step in wanted - {saved_at}
                assert save_due(step, total, every, saved_at, seconds) == expected, (step, every, saved_at)


@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_a_pause_is_at_the_first_step_with_something_to_do(chunk: int) -> None:
    for total, evaluate, save in product(TOTALS, EVERY, [None, *EVERY]):
        for step in range(total):
            reasons = {total, step + chunk} | multiples(evaluate, total)
            reasons |= multiples(save, total) if save is not None else set()
            assert next_pause(step, total, chunk, evaluate, save) == min(s for s in reasons if s > step)


@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_no_evaluation_and_no_save_is_passed_over(chunk: int) -> None:
    for total, evaluate, save in product(TOTALS, EVERY, EVERY):
        step, evaluated, saved = 0, [-1], [-1]
        while True:
            if evaluation_due(step, total, evaluate, evaluated[-1]):
                evaluated.append(step)
            if save_due(step, total, save, saved[-1], 0.0):
                saved.append(step)
            if step >= total:
                break
            step = next_pause(step, total, chunk, evaluate, save)
        for every, done in ((evaluate, evaluated), (save, saved)):
            assert done[1:] == sorted({s for s in multiples(every, total) if s < total} | {total})


@pytest.mark.parametrize("per_step", [1e-6, 0.01, 0.04, 0.3, 0.9, 1.0, 28.0])
@pytest.mark.parametrize("steps", [1, 7, CHUNK])
def test_pauses_are_about_a_second_apart(steps: int, per_step: float) -> None:
    count = steps_until_pause(steps, steps * per_step)
    assert 1 <= count <= CHUNK
    assert count == 1 or count * per_step <= 1 + 1e-9
    assert count == CHUNK or (count + 1) * per_step > 1 - 1e-9
