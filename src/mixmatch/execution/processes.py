"""A process for each device of this machine, so that every GPU has work."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue

import torch

from mixmatch.execution.elsewhere import Answers, Elsewhere
from mixmatch.execution.worker import Answer, group, order
from mixmatch.training.job import Job

Child = subprocess.Popen[str]


class Processes(Elsewhere):
    """A process for each of `devices`, with at most `limit` runs side by side in it."""

    def __init__(self, devices: Sequence[str], limit: int | None = None) -> None:
        self._devices, self._limit = devices, limit

    @contextlib.contextmanager
    def sending(self, jobs: Sequence[tuple[int, Job]]) -> Iterator[Answers]:
        waiting: SimpleQueue[Sequence[tuple[int, Job]]] = SimpleQueue()
        limit = self._limit if self._devices[0] != "cpu" else 1
        for each in group(jobs, len(self._devices), limit):
            waiting.put(each)
        feeders = [Feeder(device, len(self._devices), self._limit, waiting) for device in self._devices]
        answers: SimpleQueue[tuple[int, Answer]] = SimpleQueue()
        threads = [threading.Thread(target=feeder.work, args=(answers,), daemon=True) for feeder in feeders]
        for thread in threads:
            thread.start()

        def received(seconds: float) -> Iterable[tuple[int, Answer]]:
            with contextlib.suppress(Empty):
                yield answers.get(timeout=seconds)

        try:
            yield received
        finally:
            for feeder in feeders:
                feeder.close()
            for thread in threads:
                thread.join()


class Feeder:
    """Hands groups of jobs to the process of one device until none is left. One that dies is replaced."""

    def __init__(
        self, device: str, devices: int, limit: int | None, waiting: SimpleQueue[Sequence[tuple[int, Job]]]
    ) -> None:
        self._device, self._limit, self._waiting = device, limit, waiting
        self._child: Child | None = None
        self._closed = False
        # On a CPU bits depend on the number of threads: as many as without other processes. GPUs share the cores.
        every = torch.get_num_threads()
        self._threads = max(1, every // devices) if device.startswith("cuda") else every

    def work(self, answers: SimpleQueue[tuple[int, Answer]]) -> None:
        while not self._closed:
            try:
                jobs = dict(self._waiting.get_nowait())
            except Empty:
                break
            child = self._process()
            device = self._device.partition(":")[0]  # the only GPU that the process sees
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(OSError, ValueError):  # it died, or its input was closed
                order_ = order(list(jobs.items()), device, self._threads, self._limit)
                print(json.dumps(order_), file=child.stdin, flush=True)
                while jobs and (line := child.stdout.readline()):
                    number, answer = json.loads(line)
                    del jobs[number]
                    answers.put((number, answer))
            if jobs:
                self._end(child)
                text = f"its process on {self._device} ended with code {child.wait()}: the same command resumes it"
                for number in jobs:
                    answers.put((number, {"error": text, "trace": None}))
        if self._child is not None:
            self._end(self._child)
            self._child.wait()

    def close(self) -> None:
        """Take no more jobs. The process saves the runs under way and ends."""
        self._closed = True
        if self._child is not None:
            self._end(self._child)

    def _process(self) -> Child:
        if self._child is None or self._child.poll() is not None:
            environment = dict(os.environ)
            if self._device.startswith("cuda:"):
                number = int(self._device.removeprefix("cuda:"))
                visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
                environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
            # In a group of its own: Ctrl-C reaches this process alone, which then closes the input of the others.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mixmatch.execution.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, process_group=0,
            )  # fmt: skip
            if self._closed:
                self._end(self._child)
        return self._child

    def _end(self, child: Child) -> None:
        if child.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                child.stdin.close()
