"""A model in training: everything that changes during training, and how to take steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixmatch.augment import strong_augmentation, weak_augmentation
from mixmatch.data.pool import Pool, on_device
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.draws import generator, torch_seed
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import DataInfo, Method, Metrics, Step, Tensors
from mixmatch.networks import cuda
from mixmatch.networks.heads import WithHeads
from mixmatch.networks.precision import full_fp32
from mixmatch.settings import Settings
from mixmatch.training.batches import Batches, Rows
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.compile import Loss, compiled, compiled_account, reason
from mixmatch.training.cuda_graph import GraphedStep
from mixmatch.training.device import has_own_randomness, seed_generator, stream_for, threads
from mixmatch.training.evaluate import LEAST_VALID, Evaluation, HeldOut, evaluate, predict_logits
from mixmatch.training.model import Model
from mixmatch.training.optimizer import build_optimizer, load_optimizer_state, optimizer_state
from mixmatch.training.record import on_machines
from mixmatch.training.step import Objective, account, under
from mixmatch.training.watch import SAMPLE
from mixmatch.training.world import Total, World, by_type

CHUNK = 32
"""Steps whose draws are made and copied to the device at once. It does not affect results."""


class NotFinite(Exception):
    """The loss of a step was NaN or infinite."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Trainer:
    """A model in training: `advance` takes steps, `evaluate` measures, `checkpoint` and `restore` save and load its
    state."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        split: Split,
        network: nn.Module,
        device: torch.device,
        *,
        method: Method | None = None,
        compile: bool = False,
        graph: bool = False,
        threads: int | None = None,
        world: World | None = None,
    ) -> None:
        """`compile` makes steps faster after a minute of preparation, `graph` (on CUDA) at once. `threads` is how many
        compute on a CPU; by default PyTorch's number. The processes of a `world` share the groups of each step."""
        self.settings, self.source, self.split, self.device = settings, source, split, device
        self._threads = threads
        self.world = World() if world is None else world
        self.world.check(settings.groups)
        self._groups = range(self.world.rank, settings.groups, self.world.size)
        """Which groups of a step this process computes."""
        self._size = settings.batch_size // settings.groups
        method = settings.build_method() if method is None else method
        self._check(method, network)
        self.objective = _objective(method, settings, source)
        if method.heads:
            sizes = {name: size or len(source.classes) for name, size in method.heads.items()}
            network = WithHeads(network, sizes)
        network = network.to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        graphed = graph and device.type == "cuda"
        self._queued: list[str] = []
        self.note: Callable[[str], None] = self._queued.append
        """Receives messages for the user, such as that the network cannot be compiled. They wait until `send_notes_to`
        says where to."""
        kernels = self._kernels(network) if graphed else None
        self.model = Model(network, settings.ema_decay, settings.precision, kernels)
        self.rate = torch.tensor(settings.learning_rate, device=device)
        self.optimizer = build_optimizer(network, settings, self.rate if graphed else None)
        self.labels = torch.from_numpy(np.array(source.train.labels, np.int64)).to(device)
        inputs = source.train.inputs if source.train.views is None else source.train.views
        self.batches = Batches(settings, source, split, self.objective, Pool(inputs, device), self._groups)
        self.state = {name: value.detach().clone() for name, value in method.state(self._data_info()).items()}
        """The method's state, and that of an adaptive augmentation: it goes into every step, and what comes out is
        copied back in place."""
        self.state |= self.objective.augmentation_state(device)
        self.step = 0
        self.machines = on_machines(None, 0, device)
        self._test, self._valid = _held_out(source, split, device)
        self._sample: npt.NDArray[Any] | Tensor | None = None
        self._metrics: list[str] = []
        self._sums = torch.zeros(0, device=device)
        self._summed = 0
        self._first_bad = torch.full((1,), -1, device=device)
        self._exact = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
        self._compiled: Loss | None = None
        self._settled = False
        self.setup_seconds = 0.0
        """How long it took until steps ran at full speed."""
        if compile:
            name = None if settings.network.startswith("custom:") else settings.network
            self._compiled = compiled(self.objective, network, settings.precision, name, kernels)
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = stream_for(self, device)
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self._graph = self._graphed() if graphed else None

    def _check(self, method: Method, network: nn.Module) -> None:
        settings, source = self.settings, self.source
        if method.views and len(self.split.unlabeled) == 0:
            raise MixMatchError(
                f"no unlabeled {source.noun}s are left for method '{settings.method}': label fewer, add unlabeled "
                "ones, or use method=supervised"
            )
        single = self._size == 1 and settings.method_settings.get("passes") != "fused"  # it joins batches
        if single and len(source.input_shape) == 1 and any(isinstance(m, _BatchNorm) for m in network.modules()):
            given = f"groups={settings.groups}" if settings.groups > 1 else "batch_size=1"
            raise MixMatchError(f"{given}: the batch norm of {settings.network} needs at least 2 rows in a batch")
        if self.world.size > 1 and has_own_randomness(network):
            raise MixMatchError(
                f"{settings.network} draws random numbers itself (dropout), so its results would depend on the number "
                "of processes: train it with one"
            )

    def _kernels(self, network: nn.Module) -> cuda.Shape | None:
        """The network's shape if there are kernels for it that run here."""
        images, settings = self._size, self.settings
        inner = network.network if isinstance(network, WithHeads) else network
        shape = cuda.shape_of(inner, self.source.input_shape) if settings.precision == "bf16" else None
        if shape is None or not cuda.available() or not cuda.fits(shape, [images]):
            return None
        error = cuda.problem(network, shape, images, self.device)
        if error is not None:
            self.note(f"the kernels for this network do not run here ({reason(error)}): others are used")
        return shape if error is None else None

    def _data_info(self) -> DataInfo:
        classes, labeled = len(self.source.classes), self.source.train.labels[self.split.labeled]
        prior = np.bincount(labeled, minlength=classes) / max(1, len(labeled))
        on_device = torch.from_numpy(prior.astype(np.float32)).to(self.device)
        return DataInfo(classes, len(self.split.unlabeled), on_device, self.device)

    def _graphed(self) -> GraphedStep:
        def prepare() -> None:
            self.optimizer.zero_grad(set_to_none=True)  # the graph makes its own gradients

        note, anywhere = (lambda text: self.note(text)), self.world.any
        return GraphedStep(self._take, prepare, note, self.device, self.stream, CHUNK, anywhere)

    # ---------------------------------------------------------------- one step

    def loss(self, x: Tensor, u: Tensor | None, draws: Tensors) -> Step:
        """The loss for fetched rows and the draws of a step. Nothing here waits for the device."""
        labels = self.labels[draws["labeled"]]
        if self._compiled is not None:
            network = self.model.network
            tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
            before = [] if self._settled else [buffer.clone() for buffer in network.buffers()]
            why = ""
            try:
                outcome = self._compiled(tensors, self.model.ema, labels, x, u, draws, self.state)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever the compiler cannot do, plain PyTorch can
                if self._settled:  # it has done it before
                    raise
                why = reason(error)
            self._settled = self._settled or not self.world.any(bool(why))
            if self._settled:
                return outcome
            self._compiled, why = None, why or "in another process"
            for buffer, value in zip(network.buffers(), before, strict=True):  # it may have been compiled here
                buffer.copy_(value)
            self.note(f"the step cannot be compiled ({why}): training continues without, more slowly")
        return self.objective.loss(self.model, labels, x, u, draws, self.state)

    def take_step(self, x: Tensor, u: Tensor | None, draws: Tensors, ema_share: Tensor | None = None) -> None:
        """Loss, gradient, optimizer, moving average, the method's state; sums of the metrics stay on the device."""
        loss, metrics, state = self._gradients(x, u, draws)
        self._end_step(loss, metrics, state, draws["step"], ema_share)

    def take_groups(self, groups: Sequence[Rows], ema_share: Tensor | None = None) -> None:
        """A step over the groups of its batch, of which these are this process's.

        Each group begins with the same weights, batch-norm statistics and state, as if it were the whole batch. What
        is learned is the mean over all groups of their gradients and of batch norm's running statistics; the method
        says what becomes of its state.
        """
        network, total, states = self.model.network, Total(self.world), list[Tensors]()
        buffers = list(network.buffers())
        before = [buffer.clone() for buffer in buffers] if len(groups) > 1 else []
        running = [buffer for buffer in buffers if buffer.is_floating_point()]
        for number, (x, u, draws) in enumerate(groups):
            if number > 0:
                for alike, values in zip(by_type(buffers), by_type(before), strict=True):
                    torch._foreach_copy_(alike, values)
            loss, metrics, state = self._gradients(x, u, draws)
            learned = [p for p in network.parameters() if p.grad is not None]
            gradients = [p.grad for p in learned if p.grad is not None]
            total.add([*gradients, *running, loss, *map(self._scalar, metrics.values())])
            states += [dict(zip(state, values, strict=True)) for values in self.world.gather(list(state.values()))]
        means = iter(total.mean(self.settings.groups))
        for parameter in learned:
            parameter.grad = next(means)
        if running:
            torch._foreach_copy_(running, [next(means) for _ in running])
        loss, *values = means
        state = self.objective.combine(self.state, states)
        self._end_step(loss, dict(zip(metrics, values, strict=True)), state, draws["step"], ema_share)

    def _gradients(self, x: Tensor, u: Tensor | None, draws: Tensors) -> Step:
        """The loss, a constant now, and what else the method returns; the parameters have its gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        step = self.loss(x, u, draws)
        if not self._metrics:
            self._check_step(step)
        step.loss.backward()  # type: ignore[no-untyped-call]
        return step._replace(loss=step.loss.detach())

    def _end_step(self, loss: Tensor, metrics: Metrics, state: Tensors, step: Tensor, ema_share: Tensor | None) -> None:
        self.optimizer.step()
        self.model.update_ema(ema_share)
        if not self._metrics:
            self._metrics = list(metrics)
            self._sums = torch.zeros(len(metrics), dtype=self._exact, device=self.device)
        values = [self._scalar(metrics[name]) for name in self._metrics]
        add_up = account if self._compiled is None else compiled_account()
        add_up(self._sums, values, self._first_bad, loss, step)
        # Copies first: what comes out may be what went in, under another name.
        changed = {name: value.detach().clone() for name, value in state.items()}
        for name, value in changed.items():
            self.state[name].copy_(value)

    def _scalar(self, value: Tensor | float) -> Tensor:
        """A metric on the device, which may be a plain number."""
        if isinstance(value, Tensor):
            return value.detach()
        return torch.full((), float(value), dtype=self._exact, device=self.device)

    def _check_step(self, step: Step) -> None:
        """A method from outside returns a loss with a gradient and scalars to report; its state keeps the names and
        shapes that `Method.state` gave it."""
        where = f"the loss of method '{self.settings.method}'"
        if not isinstance(step, Step):
            raise MixMatchError(
                f'{where} returns a {type(step).__name__}: return a Step, as in Step(loss, {{"loss": loss}})'
            )
        if not (isinstance(step.loss, Tensor) and step.loss.ndim == 0 and step.loss.requires_grad):
            raise MixMatchError(f"{where} must be a scalar tensor with a gradient, the mean over a batch for instance")
        for name, value in step.metrics.items():
            if not (value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, Real)):
                raise MixMatchError(f"{where} returns the metric {name!r}, which must be a scalar: take its mean")
        for name, value in step.state.items():
            if name not in self.state or value.shape != self.state[name].shape:
                made = {name: tuple(value.shape) for name, value in self.state.items()}
                raise MixMatchError(
                    f"{where} returns the state {name!r} {tuple(value.shape)}, but its state() made {made or 'none'}"
                )

    def _take(self, tensors: dict[str, Tensor]) -> None:
        """A step from its draws, and from its rows `x` and `u` if they do not live on the device."""
        tensors = dict(tensors)
        if self._graph is not None:
            self.rate.copy_(tensors.pop("rate"))
        ema_share = tensors.pop("ema_share", None)
        groups = [self.batches.fetched(under(self.batches.prefix(group), tensors)) for group in self._groups]
        if self.settings.groups == 1 and self.world.backend is None:
            self.take_step(*groups[0], ema_share)
        else:
            self.take_groups(groups, ema_share)

    # ---------------------------------------------------------------- many steps

    def advance(self, until: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Take steps up to `until`, or fewer if asked to stop."""
        began = time.monotonic()
        with threads(self._threads), self.in_stream(), full_fp32():
            while self.step < until and not should_stop():
                count = min(CHUNK, until - self.step)
                chunk = self.batches.chunk(self.step, count, self._graph is not None)
                on_device = {} if self._graph is not None else self._to_device(chunk)
                if self._graph is not None:
                    self._graph.load(chunk)
                for i in range(count):
                    if should_stop():
                        return
                    inputs = self.batches.inputs(chunk, i, self.step)
                    # Networks with randomness of their own (dropout) draw from torch's generator.
                    seed_generator(torch_seed(self.settings.seed, "network", self.step), self.device)
                    if self._graph is not None:
                        self._graph.step(inputs)
                    else:
                        for group in self.optimizer.param_groups:
                            group["lr"] = self.batches.rate(self.step)
                        self._take({**{name: values[i] for name, values in on_device.items()}, **inputs})
                    self.step += 1
                    self._summed += 1
                    self._note_setup(began)

    def _to_device(self, chunk: Tensors) -> dict[str, Tensor]:
        pinned = {name: values if self.stream is None else values.pin_memory() for name, values in chunk.items()}
        return {name: values.to(self.device, non_blocking=True) for name, values in pinned.items()}

    def _note_setup(self, began: float) -> None:
        """Report once how long it took to reach full speed."""
        settled = self._graph.settled if self._graph is not None else self._compiled is not None
        if settled and not self.setup_seconds:
            self.setup_seconds = time.monotonic() - began
            if self._compiled is not None:
                self.note(f"compiled the training step in {self.setup_seconds:.0f} s")

    @property
    def engine(self) -> dict[str, Any]:
        """How steps are taken, for the record."""
        return {
            "compiled": self._compiled is not None,
            "recorded": self._graph is not None and self._graph.replays,
            "kernels": self.model.shape is not None,
            "setup_seconds": round(self.setup_seconds, 1),
            "groups": self.settings.groups,
            "processes": self.world.size,
            "backend": self.world.backend,
        }

    def send_notes_to(self, note: Callable[[str], None]) -> None:
        """Send messages for the user to `note` from now on, those that wait first."""
        self.note = note
        while self._queued:
            note(self._queued.pop(0))

    def in_stream(self) -> contextlib.AbstractContextManager[object]:
        """On CUDA each trainer works in a stream of its own, so that several can share a GPU."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def wait(self) -> None:
        """Wait for the device to finish what it was given."""
        if self.stream is not None:
            self.stream.synchronize()

    # ---------------------------------------------------------------- measuring

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
        """Raise if a loss so far, or any weight now, is not finite: training cannot recover from that. Waits for the
        device."""
        with self.in_stream():
            step = int(self._first_bad.item())
            if step >= 0:
                raise NotFinite(step)
            if not torch.stack([p.isfinite().all() for p in self.model.network.parameters()]).all():
                raise NotFinite(self.step)

    def evaluate(self, between: Callable[[], None] = lambda: None) -> tuple[Evaluation | None, Evaluation | None]:
        """The averaged model on the test rows and on the validation rows, None where there are none."""
        with threads(self._threads), self.in_stream():
            test = None if self._test is None else evaluate(self.model, self._test, between)
            valid = None if self._valid is None else evaluate(self.model, self._valid)
        return test, valid

    def guesses(self) -> npt.NDArray[np.int64]:
        """How many of a fixed sample of the unlabeled rows the averaged model takes for each class (L,)."""
        if self._sample is None:
            unlabeled, rng = self.split.unlabeled, generator(self.settings.seed, "watch", 0)
            rows = np.sort(unlabeled[rng.permutation(len(unlabeled))[:SAMPLE]])
            self._sample = on_device(np.array(self.source.train.inputs[rows]), self.device)
        with threads(self._threads), self.in_stream():
            pieces = predict_logits(lambda x: self.model(x, weights="ema", stats="running"), self._sample, self.device)
            classes = torch.cat([logits.argmax(dim=-1) for logits in pieces]).cpu()
        return np.bincount(classes.numpy(), minlength=len(self.source.classes))

    # ---------------------------------------------------------------- saving

    def checkpoint(self) -> Checkpoint:
        """Everything `restore` needs, as it is now. Waits for the device."""
        self.wait()
        return Checkpoint(
            weights=self.model.network.state_dict(),
            ema=self.model.ema,
            optimizer=optimizer_state(self.model.network, self.optimizer),
            method=self.state,
            state={
                "step": self.step,
                "sums": dict(zip(self._metrics, self._sums.tolist(), strict=True)) if self._summed else {},
                "summed": self._summed,
                "machines": self.machines,
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """Return to where a checkpoint was taken."""
        self.wait()
        network = self.model.network
        if _shapes(saved.weights) != _shapes(network.state_dict()) or _shapes(saved.ema) != _shapes(self.model.ema):
            raise MixMatchError("the checkpoint is of another network than its run names: start again with out=")
        if _shapes(saved.method) != _shapes(self.state):
            raise MixMatchError("the checkpoint holds another state of the method: start again with out=")
        network.load_state_dict(saved.weights)
        for kept, values in ((self.model.ema, saved.ema), (self.state, saved.method)):
            for name, value in values.items():
                kept[name].copy_(value)
        load_optimizer_state(network, self.optimizer, saved.optimizer, saved.step)
        self.step = saved.step
        self.machines = on_machines(saved.state.get("machines"), saved.step, self.device)
        self._metrics = list(saved.state["sums"])
        self._sums = torch.tensor(list(saved.state["sums"].values()), dtype=self._exact, device=self.device)
        self._summed = saved.state["summed"]
        self._first_bad.fill_(-1)
        if self._graph is not None:  # it writes to what was replaced here
            self._graph = self._graphed()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _objective(method: Method, settings: Settings, source: Source) -> Objective:
    """What a step computes: the method, on rows that are augmented as the settings say."""
    shape, views = source.input_shape, source.train.views
    weak = weak_augmentation(
        shape, pad=settings.pad, flip=settings.flip, noise=settings.noise, mask=settings.mask,
        embedded=source.embedding is not None, choices=0 if views is None else views.shape[1],
    )  # fmt: skip
    uses_strong = "strong" in method.views or method.strong_labeled
    strong = strong_augmentation(weak, shape, settings.strong if uses_strong else "cutout")
    return Objective(method, weak, strong, len(source.classes), settings.steps)


def _held_out(source: Source, split: Split, device: torch.device) -> tuple[HeldOut | None, HeldOut | None]:
    """The test rows and the validation rows, None where there are none. Few validation rows say nothing beside test
    rows."""
    test = HeldOut.of(source.test.inputs, source.test.labels, split.test, device)
    enough = test is None or len(split.valid) >= LEAST_VALID
    valid = split.valid if enough else split.valid[:0]
    return test, HeldOut.of(source.train.inputs, source.train.labels, valid, device)
