"""The one training loop, for every method, data set and network. Reads top to bottom:

`Trainer` holds what changes during training and takes steps. `fit` drives it from evaluation to evaluation and keeps
the run folder such that a run stopped at any moment goes on to the very result it would have had.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixmatch.augment.augment import augmentation
from mixmatch.data.pool import Pool
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.draws import Draws, Sampler, generator, torch_seed
from mixmatch.errors import MixMatchError
from mixmatch.networks.cuda import wide_resnet as fused
from mixmatch.settings import Settings
from mixmatch.training import checkpoint
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.compile import Loss, Recipe, Recorded, account, compiled, compiled_account, reason
from mixmatch.training.evaluate import Evaluation, HeldOut, evaluate
from mixmatch.training.model import Model, full_fp32
from mixmatch.training.optimizer import build_optimizer, learning_rate, load_optimizer_state, optimizer_state
from mixmatch.training.progress import Reporter
from mixmatch.training.record import on_machines
from mixmatch.training.run import RunFolder

T = TypeVar("T")

CHUNK = 32
"""Steps whose draws are made and copied to the device together. It does not affect results."""

CHECKPOINT_SECONDS = 60.0
"""How much work may be lost to a crash, if nothing else is asked for."""


class Trainer:
    """A model in training: `advance` takes steps, `evaluate` judges, `checkpoint` and `restore` carry it over time."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        split: Split,
        network: nn.Module,
        device: torch.device,
        *,
        compile: bool = False,
        record: bool = False,
    ) -> None:
        """`compile` makes steps faster after a minute of preparation, `record` (on CUDA) at once; see `fast`."""
        self.settings, self.source, self.split, self.device = settings, source, split, device
        method = settings.build_method()
        if method.unlabeled_views and len(split.unlabeled) == 0:
            raise MixMatchError(
                f"no unlabeled {source.noun}s are left for method '{settings.method}': label fewer, add unlabeled "
                "ones, or use --method supervised"
            )
        single = settings.batch_size == 1 and settings.method_settings.get("passes") != "fused"  # these join batches
        if single and len(source.input_shape) == 1 and any(map(_is_norm, network.modules())):
            raise MixMatchError(f"batch_size=1: the batch norm of {settings.network} needs at least 2 rows in a batch")
        augment = augmentation(source, pad=settings.pad, flip=settings.flip, noise=settings.noise, mask=settings.mask)
        self.recipe = Recipe(method, augment, len(source.classes), settings.steps)
        network = network.to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        recorded = record and device.type == "cuda"
        self.note: Callable[[str], None] = lambda text: None
        """Told what a person should know, such as that the network cannot be compiled."""
        self._said: list[str] = []
        shape = self._kernels(network) if recorded else None
        self.model = Model(network, settings.ema_decay, settings.precision, shape)
        self.rate = torch.tensor(settings.learning_rate, device=device)
        self.optimizer = build_optimizer(network, settings, self.rate if recorded else None)
        self.pool = Pool(source.train.inputs, device)
        self.labels = torch.from_numpy(np.array(source.train.labels, np.int64)).to(device)
        self._labeled = Sampler(len(split.labeled), settings.batch_size, settings.seed, "labeled")
        self._unlabeled = Sampler(max(len(split.unlabeled), 1), settings.batch_size, settings.seed, "unlabeled")
        self.step = 0
        self.machines = on_machines(None, 0, device)
        self._test = HeldOut.of(source.test.inputs, source.test.labels, split.test, device)
        self._valid = HeldOut.of(source.train.inputs, source.train.labels, split.valid, device)
        self._metrics: list[str] = []
        self._sums = torch.zeros(0, device=device)
        self._summed = 0
        self._first_bad = torch.full((1,), -1, device=device)
        self._exact = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
        self._compiled: Loss | None = None
        self._settled = False
        self.setup_seconds = 0.0
        """How long it took until steps went at full speed."""
        if compile:
            name = None if settings.network.startswith("custom:") else settings.network
            self._compiled = compiled(self.recipe, network, settings.precision, name, shape)
        self._recorded = Recorded(self, CHUNK) if recorded else None
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = stream_for(self, device)
            self.stream.wait_stream(torch.cuda.current_stream(device))

    def _kernels(self, network: nn.Module) -> fused.Shape | None:
        """The network's shape if there are kernels for it that run here."""
        images, settings = self.settings.batch_size, self.settings
        shape = fused.shape_of(network, self.source.input_shape) if settings.precision == "bf16" else None
        if shape is None or not fused.available() or not fused.fits(shape, [images]):
            return None
        error = fused.problem(network, shape, images, self.device)
        if error is not None:
            self._said.append(f"the kernels for this network do not run here ({reason(error)}): others are used")
        return shape if error is None else None

    # ---------------------------------------------------------------- one step

    def draw(self, step: int) -> Draws:
        """Everything random of a step: which images, how they are augmented, and what the method needs."""
        augment, method = self.recipe.augment, self.recipe.method
        seed, size = self.settings.seed, self.settings.batch_size
        draws: Draws = {"labeled": self.split.labeled[self._labeled.rows(step)]}
        for name, draw in augment.draw(generator(seed, "augment labeled", step), 1, size).items():
            draws[f"x/{name}"] = draw
        if views := method.unlabeled_views:
            draws["unlabeled"] = self.split.unlabeled[self._unlabeled.rows(step)]
            for name, draw in augment.draw(generator(seed, "augment unlabeled", step), views, size).items():
                draws[f"u/{name}"] = draw
        for name, draw in method.draw(generator(seed, "method", step), size).items():
            draws[f"method/{name}"] = draw
        draws["step"] = np.array(step, np.float32)
        return draws

    def loss(self, x: Tensor, u: Tensor | None, draws: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss for fetched inputs and the draws of a step; nothing here waits for the device."""
        labels = self.labels[draws["labeled"]]
        if self._compiled is not None:
            network = self.model.network
            tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
            try:
                outcome = self._compiled(tensors, self.model.ema, labels, x, u, draws)
                self._settled = True
                return outcome
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever the compiler cannot do, plain PyTorch can
                if self._settled:  # it has done it before
                    raise
                self._compiled = None
                self.note(f"the step cannot be compiled ({reason(error)}): training goes on without, more slowly")
        return self.recipe.loss(self.model, labels, x, u, draws)

    def take_step(self, x: Tensor, u: Tensor | None, draws: Mapping[str, Tensor]) -> None:
        """Loss, gradient, Adam, weight decay, moving average; sums of the metrics stay on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, metrics = self.loss(x, u, draws)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.model.update_ema()
        if not self._metrics:
            self._metrics = list(metrics)
            self._sums = torch.zeros(len(metrics), dtype=self._exact, device=self.device)
        values = [metrics[name].detach() for name in self._metrics]
        add_up = account if self._compiled is None else compiled_account()
        add_up(self._sums, values, self._first_bad, loss.detach(), draws["step"])

    # ---------------------------------------------------------------- many steps

    def advance(self, until: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Take steps up to `until`, or fewer if asked to stop."""
        settings, pool = self.settings, self.pool
        began = time.monotonic()
        with self.in_stream(), full_fp32():
            while self.step < until and not should_stop():
                chunk = self._chunk(self.step, min(CHUNK, until - self.step))
                if self._recorded is not None:
                    self._recorded.load(chunk)
                    near = chunk
                else:
                    near = {
                        name: self._pinned(values).to(self.device, non_blocking=True) for name, values in chunk.items()
                    }
                for i in range(len(chunk["step"])):
                    if should_stop():
                        return
                    x = u = noise = None
                    if self._recorded is None or not pool.resident:
                        rows = near if pool.resident else chunk
                        x = pool.fetch(rows["labeled"][i])
                        u = pool.fetch(rows["unlabeled"][i]) if "unlabeled" in rows else None
                    if self.recipe.method.wants_noise:
                        noise = self._noise(self.step)
                    # Networks with randomness of their own (dropout) draw from torch's generator.
                    torch.manual_seed(torch_seed(settings.seed, "network", self.step))
                    if self._recorded is not None:
                        self._recorded.step(x, u, noise)
                    else:
                        draws = {name: values[i] for name, values in near.items()}
                        if noise is not None:
                            draws["method/noise"] = noise
                        rate = learning_rate(settings.schedule, settings.learning_rate, self.step, settings.steps)
                        for group in self.optimizer.param_groups:
                            group["lr"] = rate
                        assert x is not None
                        self.take_step(x, u, draws)
                    self.step += 1
                    self._summed += 1
                    self._tell_setup(began)

    def _tell_setup(self, began: float) -> None:
        """Say once how long it took to get to full speed."""
        settled = self._recorded.settled if self._recorded is not None else self._compiled is not None
        if settled and not self.setup_seconds:
            self.setup_seconds = time.monotonic() - began
            if self._compiled is not None:
                self.note(f"compiled the training step in {self.setup_seconds:.0f} s")

    def _chunk(self, first: int, count: int) -> dict[str, Tensor]:
        """The draws of `count` steps and their learning rates, stacked, in host memory."""
        settings = self.settings
        steps = [self.draw(step) for step in range(first, first + count)]
        chunk = {name: torch.from_numpy(np.stack([draws[name] for draws in steps])) for name in steps[0]}
        rates = [
            learning_rate(settings.schedule, settings.learning_rate, step, settings.steps)
            for step in range(first, first + count)
        ]
        chunk["rate"] = torch.tensor(rates, dtype=torch.float32)
        return chunk

    def _pinned(self, values: Tensor) -> Tensor:
        """In memory that the GPU can copy from while it works."""
        return values if self.stream is None else values.pin_memory()

    @property
    def engine(self) -> dict[str, Any]:
        """How steps are taken, for the record."""
        return {
            "compiled": self._compiled is not None,
            "recorded": self._recorded is not None and self._recorded.replays,
            "kernels": self.model.shape is not None,
            "setup_seconds": round(self.setup_seconds, 1),
        }

    def tell(self, note: Callable[[str], None]) -> None:
        """From now on tell `note` what a person should know, and what was to be told before."""
        self.note = note
        while self._said:
            note(self._said.pop(0))

    def in_stream(self) -> contextlib.AbstractContextManager[object]:
        """On CUDA each trainer works in a stream of its own, so that several can share a GPU."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def wait(self) -> None:
        """Wait for the device to finish what it was given."""
        if self.stream is not None:
            self.stream.synchronize()

    def _noise(self, step: int) -> Tensor:
        """Standard normal noise, one view of the unlabeled images large: too much to copy, so drawn on the device."""
        shape = (self.settings.batch_size, *self.source.input_shape)
        source = torch.Generator(self.device).manual_seed(torch_seed(self.settings.seed, "noise", step))
        return torch.randn(shape, generator=source, device=self.device)

    def metrics(self) -> dict[str, float]:
        """The metrics averaged since `clear_metrics`. Waits for the device."""
        with self.in_stream():
            return {name: value.item() for name, value in self.device_metrics().items()}

    def device_metrics(self) -> dict[str, Tensor]:
        """The same, still on the device."""
        return dict(zip(self._metrics, self._sums / self._summed, strict=True)) if self._summed else {}

    def clear_metrics(self) -> None:
        self._sums.zero_()
        self._summed = 0

    def check_finite(self) -> None:
        """Refuse to go on after a loss that was not a number, or with weights that are not and make the next loss so:
        what comes after is worthless. Waits for the device."""
        with self.in_stream():
            step = int(self._first_bad.item())
            if step >= 0:
                raise NotFinite(step)
            if not torch.stack([p.isfinite().all() for p in self.model.network.parameters()]).all():
                raise NotFinite(self.step)

    def evaluate(self, between: Callable[[], None] = lambda: None) -> tuple[Evaluation | None, Evaluation | None]:
        """The averaged model on the test images and on the validation images, None where there are none."""
        with self.in_stream(), full_fp32():
            test = None if self._test is None else evaluate(self.model, self._test, between)
            valid = None if self._valid is None else evaluate(self.model, self._valid)
        return test, valid

    # ---------------------------------------------------------------- over time

    def checkpoint(self) -> Checkpoint:
        """Everything `restore` needs, as it is now. Waits for the device."""
        self.wait()
        return Checkpoint(
            weights=self.model.network.state_dict(),
            ema=self.model.ema,
            optimizer=optimizer_state(self.model.network, self.optimizer),
            state={
                "step": self.step,
                "sums": dict(zip(self._metrics, self._sums.tolist(), strict=True)) if self._summed else {},
                "summed": self._summed,
                "machines": self.machines,
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """Go back to where a checkpoint was taken."""
        self.wait()
        network = self.model.network
        if _shapes(saved.weights) != _shapes(network.state_dict()) or _shapes(saved.ema) != _shapes(self.model.ema):
            raise MixMatchError("the checkpoint is of another network than this run's settings name")
        network.load_state_dict(saved.weights)
        for name, value in saved.ema.items():
            self.model.ema[name].copy_(value)
        load_optimizer_state(network, self.optimizer, saved.optimizer, saved.step)
        self.step = saved.step
        self.machines = on_machines(saved.state.get("machines"), saved.step, self.device)
        self._metrics = list(saved.state["sums"])
        self._sums = torch.tensor(list(saved.state["sums"].values()), dtype=self._exact, device=self.device)
        self._summed = saved.state["summed"]
        self._first_bad.fill_(-1)
        if self._recorded is not None:  # it writes to what was replaced here
            self._recorded = Recorded(self, CHUNK)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))


_idle: dict[int, list[torch.cuda.Stream]] = {}
"""Streams of each GPU whose owners are gone. Libraries keep memory for every stream they have seen, so these are used
again."""


def stream_for(owner: object, device: torch.device) -> torch.cuda.Stream:
    """A stream that no other owner gets as long as this one lives, up to the 32 that PyTorch has."""
    idle = _idle.setdefault(device.index or 0, [])
    try:
        stream = idle.pop()
    except IndexError:
        # Its work goes before what may run beside it: see `mixmatch.networks.cuda.wide_resnet`.
        stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    weakref.finalize(owner, idle.append, stream)
    return stream


class NotFinite(Exception):
    """The loss of a step was NaN or infinite."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Interrupted(Exception):
    """The run was asked to stop and did, with a checkpoint. `signal` is the signal's number."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(number)
        self.signal, self.step = number, step


class Stop:
    """Notes a request to stop (Ctrl-C, SIGTERM) so that the loop can end in order; a second one ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.runs = 0
        """How many runs are under way. While there is none, a request to stop has its usual effect, at once."""

    def __call__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Leave what is going on if asked to stop."""
        if self.signal is not None:
            raise Interrupted(self.signal, 0)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals; elsewhere the caller stops the run
            return

        def note(number: int, frame: FrameType | None) -> None:
            if self.runs:
                self.signal = number
                signal.signal(number, before[number])
            elif callable(before[number]):
                before[number](number, frame)
            else:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        before: dict[int, Any] = {}
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            before[number] = signal.getsignal(number)
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Readings:
    """The latest averages for display, brought over from the device without waiting for it."""

    def __init__(self) -> None:
        self._sent: list[tuple[list[str], Tensor, Any]] = []
        self._latest: dict[str, float] = {}

    def update(self, trainer: Trainer) -> dict[str, float]:
        """Send the current averages on their way; return the newest that have arrived."""
        averages = trainer.device_metrics()
        if averages:
            on_cuda = trainer.device.type == "cuda"  # elsewhere nothing tells when the values have arrived
            values = torch.stack(list(averages.values())).to("cpu", non_blocking=on_cuda)
            event = None
            if on_cuda:
                event = torch.cuda.current_stream(trainer.device).record_event()
            self._sent.append((list(averages), values, event))
        while self._sent and (self._sent[0][2] is None or self._sent[0][2].query()):
            names, values, _ = self._sent.pop(0)
            self._latest = dict(zip(names, values.tolist(), strict=True))
        return self._latest


def fit(
    trainer: Trainer,
    run: RunFolder,
    reporter: Reporter,
    resume: Checkpoint | None = None,
    checkpoint_every: int | None = None,
) -> float:
    """Train to the end, evaluating and checkpointing on the way. Returns the seconds it took, all sittings together."""
    stop = Stop()
    with stop.listening():
        return finish(fitting(trainer, run, reporter, stop, resume, checkpoint_every))


def finish(work: Generator[None, None, T]) -> T:
    """Do all of it; return what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def fitting(
    trainer: Trainer,
    run: RunFolder,
    reporter: Reporter,
    stop: Stop,
    resume: Checkpoint | None = None,
    checkpoint_every: int | None = None,
) -> Generator[None, None, float]:
    """`fit` bit by bit: it pauses after every few steps, so that several runs can take turns.

    At each multiple of `eval_every` and at the end: evaluate, then append to the metrics. Once a minute, or at each
    multiple of `checkpoint_every` if it is given, and at the end and when asked to stop: save. A resumed run enters
    at the top of the loop, so an evaluation that was cut short is done again.
    """
    settings = trainer.settings
    earlier, records = 0.0, 0
    if resume is not None:
        trainer.restore(resume)
        earlier, records = resume.state["seconds"], resume.state["evaluations"]
    run.cut_metrics(records)
    evaluated_at = run.metrics()[-1]["step"] if records else -1
    saved_at = trainer.step if resume is not None else -1
    began = saved_time = time.monotonic()

    def seconds() -> float:
        return earlier + time.monotonic() - began

    def save() -> None:
        nonlocal saved_at, saved_time
        trainer.check_finite()
        now = trainer.checkpoint()
        now.state.update(evaluations=records, seconds=seconds())
        checkpoint.save(run.checkpoints, now)
        saved_at, saved_time = trainer.step, time.monotonic()

    def evaluation_due() -> bool:
        at_end = trainer.step == settings.steps
        return evaluated_at < trainer.step and (at_end or trainer.step % settings.eval_every == 0) and trainer.step > 0

    def save_due() -> bool:
        if saved_at == trainer.step or trainer.step == 0:
            return False
        if trainer.step == settings.steps:
            return True
        if checkpoint_every is None:
            return time.monotonic() - saved_time >= CHECKPOINT_SECONDS
        return trainer.step % checkpoint_every == 0

    def until() -> int:
        """Up to where nothing but steps is to be done."""
        marks = [every for every in (settings.eval_every, checkpoint_every) if every is not None]
        following = [every * (trainer.step // every + 1) for every in marks]
        return min(settings.steps, trainer.step + CHUNK, *following)

    readings = Readings()
    stop.runs += 1
    try:
        reporter.start(f"{settings.data} {settings.method}", trainer.step, settings.steps)
        trainer.tell(reporter.note)
        try:
            while True:
                with trainer.in_stream():
                    if evaluation_due():
                        trainer.check_finite()
                        test, valid = trainer.evaluate(between=stop.check)
                        record = {
                            "step": trainer.step,
                            **({"test_error": test.error, "test_loss": test.loss} if test else {}),
                            **({"valid_error": valid.error, "valid_loss": valid.loss} if valid else {}),
                            **trainer.metrics(),
                            "seconds": round(seconds(), 3),
                        }
                        run.append_metrics(record)
                        records, evaluated_at = records + 1, trainer.step
                        trainer.clear_metrics()
                        reporter.evaluated(record)
                    if save_due():
                        save()
                    if trainer.step >= settings.steps:
                        trainer.wait()
                        return seconds()
                    trainer.advance(until(), stop)
                    if trainer.device.type == "cpu":  # elsewhere the host would have to wait
                        trainer.check_finite()
                    reporter.steps(trainer.step, readings.update(trainer))
                    stop.check()
                yield
        except Interrupted as interrupted:
            with trainer.in_stream():
                if trainer.step != saved_at:
                    save()
            raise Interrupted(interrupted.signal, trainer.step) from None
    except NotFinite as error:
        kept = f"the last good checkpoint, step {saved_at:,}, is kept" if saved_at >= 0 else "nothing was saved yet"
        raise MixMatchError(
            f"the loss was not finite at step {error.step:,}: {kept} in {run.path}; try a lower learning "
            "rate in another folder"
        ) from None
    except OSError as error:
        kept = f"the last checkpoint, step {saved_at:,}, is intact" if saved_at >= 0 else "nothing was saved yet"
        raise MixMatchError(
            f"cannot write to {run.path} ({error.strerror or error}): {kept}; make room, then go on with --resume"
        ) from None
    finally:
        stop.runs -= 1
        with contextlib.suppress(RuntimeError):  # after an error the device may still use what is free from here on
            trainer.wait()
        reporter.close()


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
