"""A list of numbered pieces of work on a Ray cluster, through Ray Data: it keeps processes with a model in them busy,
and does again what a lost node had."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mixmatch.errors import MixMatchError, not_installed
from mixmatch.execution.ray import Place, connect, gpu_place, nodes
from mixmatch.training.stop import Interrupted

BLOCKS = 10_000
"""At most so many blocks, into which Ray Data divides the list: each is done by one process."""


def over_cluster(
    address: str, make: Callable[[Place], Callable[[int], dict[str, Any]]], numbers: Sequence[int], device: str
) -> Iterator[dict[str, Any]]:
    """Yield what the work on each number returns, in the order in which it ends.

    Args:
        address: of the cluster, as for `connect`.
        make: called in each process; returns what is called with each number. Both are sent there.
        numbers: the work to do.
        device: `auto` uses GPUs if the cluster has any.

    Raises:
        MixMatchError: the first that any of the work raises. What is under way is then stopped.
        Interrupted: after SIGTERM.
    """
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pandas") is None:
        raise not_installed(f"ray={address}", "Ray Data", "ray")
    # Of every such process Ray would warn that it cannot be restarted without its arguments, which are with the driver.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    ray = connect(address)
    with _terminated():
        yield from _over_cluster(ray, make, numbers, device)


def _over_cluster(
    ray: Any, make: Callable[[Place], Callable[[int], dict[str, Any]]], numbers: Sequence[int], device: str
) -> Iterator[dict[str, Any]]:
    data: Any = importlib.import_module("ray.data")
    place = place_of(ray, device)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    done = data.from_items(
        [{"number": number} for number in numbers], override_num_blocks=min(len(numbers), BLOCKS)
    ).map_batches(
        Worker,
        fn_constructor_args=(make, place),
        compute=data.ActorPoolStrategy(size=max(1, min(place.places, len(numbers)))),
        batch_size=1,
        **place.needs,
    )
    for row in done.iter_rows():
        answer = json.loads(row["answer"])
        if "error" in answer:
            raise MixMatchError(answer["error"])
        yield answer


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM stops the work as Ctrl-C does. Ray, which has a handler of its own by now, would abort this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, asked = signal.getsignal(signal.SIGTERM), list[int]()

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    if before != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if asked:
            raise Interrupted(asked[0], 0) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class Worker:
    """What Ray keeps in a process of its own."""

    def __init__(self, make: Callable[[Place], Callable[[int], dict[str, Any]]], place: Place) -> None:
        try:
            self._do = make(place)
        except MixMatchError as error:  # Ray would start it again and again
            answer = {"error": str(error)}
            self._do = lambda number: answer

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        try:
            answer = self._do(int(batch["number"][0]))
        except MixMatchError as error:
            answer = {"error": str(error)}
        return {"answer": [json.dumps(answer)]}


def place_of(ray: Any, device: str) -> Place:
    """What a process needs: a GPU and its part of the node's cores, or one core. (Threads of PyTorch that wait for each
    other take two to three times the processor time on a busy machine.)"""
    gpu = gpu_place(ray)
    if device.startswith("cuda") or (gpu and device == "auto"):
        if not gpu:
            raise MixMatchError(f"device={device}: the cluster has no GPU")
        return gpu
    return Place("cpu", 1, sum(int(node.get("CPU", 0)) for node in nodes(ray)))
