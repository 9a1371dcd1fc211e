"""Runs on a Ray cluster: one task per GPU with a few runs side by side in it, or one per run on cores.

A task whose node or process is lost is done again elsewhere, and its runs resume from their folders, which all nodes
see. A `MixMatchError` is an answer like a record: it ends its run alone and is not tried again.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from mixmatch import terminal
from mixmatch.errors import MixMatchError, not_installed
from mixmatch.execution import worker
from mixmatch.execution.elsewhere import Answers, Elsewhere
from mixmatch.execution.here import SIDE_BY_SIDE
from mixmatch.execution.worker import Answer, Order
from mixmatch.training.job import Job
from mixmatch.training.stop import Interrupted

RETRIES = 20
"""How many nodes a group of runs may lose before it is given up. It can be resumed by the same command even then."""

SAVE_SECONDS = 60.0
"""How long runs that are asked to stop may take to save."""


class Place(NamedTuple):
    """What a task or a process gets, and how many such the cluster has room for."""

    device: str
    cores: int
    places: int

    @property
    def needs(self) -> dict[str, int]:
        """As Ray's options."""
        return {"num_cpus": self.cores, "num_gpus": int(self.device == "cuda")}


class Ray(Elsewhere):
    """The cluster at an address. `local` starts one on this machine, `auto` finds the one that it belongs to."""

    def __init__(self, address: str, warn: Callable[[str], None] = terminal.warn) -> None:
        if importlib.util.find_spec("ray") is None:
            raise not_installed(f"ray={address}", "Ray", "ray")
        self._address, self._warn = address, warn

    def places(self, device: str) -> int:
        _, place = self._find({device})
        return max(1, place.places) * (1 if place.device == "cpu" else SIDE_BY_SIDE)

    def _find(self, devices: set[str]) -> tuple[Any, Place]:
        """The cluster, and what a task needs."""
        ray = connect(self._address)
        place = share_of(ray, devices)
        if not place.places and self._address == "local":  # where no other node can come
            raise MixMatchError("device 'cuda' is not available here: use device=cpu")
        return ray, place

    @contextmanager
    def sending(self, jobs: Sequence[tuple[int, Job]]) -> Iterator[Answers]:
        ray, place = self._find({job.device for _, job in jobs})
        if not place.places:
            self._warn("the cluster has no GPU now: the runs wait for a node that has one")
        limit = 1 if place.device == "cpu" else None
        task = ray.remote(**place.needs, max_retries=RETRIES)(do)
        sent = {
            task.remote(worker.order(group, place.device, place.cores)): [number for number, _ in group]
            for group in worker.group(jobs, place.places, limit)
        }

        def received(seconds: float) -> Iterable[tuple[int, Answer]]:
            done, _ = ray.wait(list(sent), timeout=seconds)
            for each in done:
                numbers = sent.pop(each)
                try:
                    yield from ray.get(each)
                except ray.exceptions.RayError as error:
                    yield from ((number, _failed(error)) for number in numbers)

        try:
            yield received
        finally:
            for each in sent:
                ray.cancel(each)
            if sent:
                ray.wait(list(sent), num_returns=len(sent), timeout=SAVE_SECONDS)


def do(order: Order) -> list[tuple[int, Answer]]:
    """A task: do the jobs of an order."""
    # `ray.cancel` sends it, and a cluster that was begun in the background ignores it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return list(worker.do(order))
    except Interrupted as stopped:
        if stopped.signal == signal.SIGINT:  # by `ray.cancel`
            raise KeyboardInterrupt from None
        os._exit(128 + stopped.signal)  # the node is about to go: a process that is lost is done again, an error is not


def connect(address: str) -> Any:
    """The package `ray`, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        return ray
    options = {"include_dashboard": False} if address == "local" else {}
    try:
        if address not in ("local", "auto"):
            _knock(address)
        ray.init(address, log_to_driver=False, logging_level="WARNING", **options)
        _leave_standard_output_alone()
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        reason = re.split(r"\.\s|\n", str(error))[0].rstrip(".") or type(error).__name__
        raise MixMatchError(
            f"no Ray cluster at ray={address} ({reason}): start one as in docs/scale.md, or use ray=local"
        ) from None
    return ray


def _leave_standard_output_alone() -> None:
    """What Ray reports of the cluster, such as a node that was lost, goes to standard error: it would print it among
    the results. There is no setting for it, so its function is wrapped."""
    worker: Any = importlib.import_module("ray._private.worker")
    if (printed := getattr(worker, "print_worker_logs", None)) is not None:
        worker.print_worker_logs = lambda data, sink, *more: printed(data, sys.stderr, *more)


def _knock(address: str) -> None:
    """An error at once if nothing answers there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("an address is HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def share_of(ray: Any, devices: set[str]) -> Place:
    """What a task needs. Jobs that do not name a device use GPUs if the cluster has any."""
    gpu = gpu_place(ray)
    if any(name.startswith("cuda") for name in devices) or (gpu and devices == {"auto"}):
        return gpu or Place("cuda", 1, 0)
    cores = [int(node.get("CPU", 0)) for node in nodes(ray)]
    # Ray would have one thread per process. Here it is as many as without Ray, and a run's bits are the same.
    threads = max(1, min(torch.get_num_threads(), max(cores)))
    return Place("cpu", threads, sum(count // threads for count in cores))


def gpu_place(ray: Any) -> Place | None:
    """A GPU and its part of its node's cores; None if the cluster has no GPU."""
    gpus = [(int(node["GPU"]), int(node.get("CPU", 1))) for node in nodes(ray) if node.get("GPU", 0) >= 1]
    cores = [cores // count for count, cores in gpus]
    return Place("cuda", max(1, min(cores)), sum(count for count, _ in gpus)) if gpus else None


def nodes(ray: Any) -> list[dict[str, float]]:
    """What each node of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _failed(error: Exception) -> Answer:
    """A task that gave no answers."""
    text = str(error)
    if "No module named 'mixmatch'" in text:
        return {"error": "a node of the cluster has no mixmatch: install it on every one", "trace": None}
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if hasattr(error, "cause"):  # an exception in the task, which is a fault of this package
        return {"error": lines[-1], "trace": text}
    reason = f"{type(error).__name__}: {lines[0]}"
    return {"error": f"Ray gave up on it ({reason}): the same command resumes it", "trace": None}
