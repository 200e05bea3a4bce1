"""The trainer's worker process: an optimizer step as a function on files.

    (release N, batch file) -> base log-probs of all bins -> forward and backward bin by bin -> Adam -> release N + 1

One process a device, all with the same requests; the first one writes and is listened to.  Nothing is kept between
requests but the frozen base, and only deterministic kernels are used: a request repeated gives the same release.
Requests: `train` and `score`; events: `ready` once loaded, `progress` {done, total} per bin and pass, `warning` {text}.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import torch

from tttdd import wire
from tttdd.domain import batch as batches
from tttdd.domain.batch import Batch, Group, Sample, TrainReport
from tttdd.failpoint import Point, reach
from tttdd.workers import flops, parallel, release
from tttdd.workers.device import compute_alike, give_back, peak_bytes
from tttdd.workers.lora import Adapters
from tttdd.workers.model import LanguageModel
from tttdd.workers.packing import lay_out, pack
from tttdd.workers.parallel import OutOfMemory, Seat
from tttdd.workers.passes import Outcome, Passes

log = logging.getLogger(__name__)

Kind = TypeVar("Kind")
MOMENTS = ("exp_avg", "exp_avg_sq")
Send = Callable[[wire.Event], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer is started with: the [trainer] table of the configuration, and the run's model and seed."""

    model_path: str
    dtype: str
    seed: int
    rank: int
    alpha: int
    targets: tuple[str, ...]
    lr: float
    betas: tuple[float, float]
    eps: float
    kl_coef: float
    max_tokens_per_gpu: int
    logprob_chunk: int
    recompute: bool = True
    threads: int | None = None
    """Threads of the CPU kernels; default: torch's own choice."""
    devices: tuple[int, ...] = ()
    """One for each process; without any they compute on the CPU."""
    tensor_parallel: int = 1
    seat: Seat = Seat()


class TrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    release: int
    release_path: Path | None
    """None for release 0, the base."""
    batch: Path
    target: Path
    target_number: int


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    release_path: Path | None
    prompt_ids: list[int]
    completion_ids: list[int]


class Trainer:
    """The frozen base with LoRA around its linears."""

    def __init__(self, options: Options) -> None:
        self._options = options
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._parallel = parallel.start(options.seat, options.tensor_parallel, options.devices)
        compute_alike()
        dtype = getattr(torch, options.dtype)
        model = LanguageModel(Path(options.model_path), dtype, self._parallel)
        model.recompute = options.recompute
        self._lora = Adapters(model, options.rank, options.alpha, options.targets)
        self._passes = Passes(model, self._lora, chunk=options.logprob_chunk, kl_coef=options.kl_coef)
        self._peak = flops.peak(self._parallel.device, dtype)
        self._limit = options.max_tokens_per_gpu
        """Bound of the bins; halved once when memory runs out, for as long as the process lives."""

    def train(self, request: TrainRequest, send: Send) -> TrainReport:
        """Raises ValueError for a batch, release or target that do not belong together, or that does not fit into
        memory; OSError from the files.
        """
        sha256 = hashlib.sha256(request.batch.read_bytes()).hexdigest()
        if request.target.exists():
            return _report_of(request, sha256)
        batch = batches.read(request.batch)
        if batch.release != request.release:
            raise ValueError(f"the batch was sampled under release {batch.release}, not {request.release}")
        optimizer, report = self._step(batch, request.release_path, send)
        reach(Point.OPTIMIZER_STEPPED, request.target.name)
        record = release.Record(
            number=request.target_number,
            parent=request.release,
            batch_sha256=sha256,
            seed=self._options.seed,
            report=report,
        )
        self._write(request.target, record, optimizer)
        return report

    def score(self, request: ScoreRequest) -> list[float]:
        """Log-probs of the completion's tokens, in nats.  Raises ValueError and OSError as `train` does."""
        count = len(request.completion_ids)
        if not count:
            return []
        sample = Sample(request.completion_ids, [0.0] * count, [True] * count, 0.0)
        groups = [Group(request.prompt_ids, [sample])]
        (parts,) = pack(groups, self._options.max_tokens_per_gpu)
        layout = lay_out(groups, parts)
        if request.release_path is None:
            return self._passes.base_logprobs(layout).tolist()
        self._restore(request.release_path)
        with torch.no_grad():
            return self._passes.logprobs(layout).tolist()

    def rest(self) -> None:
        """Keep no more memory than the model takes."""
        self._lora.forget_gradients()
        gc.collect()  # what ran out of memory may hang in a cycle
        give_back(self._parallel.device)

    def _restore(self, path: Path | None) -> None:
        """Put a release's weights into the model; those of release 0 when there is no path."""
        if path is None:
            self._lora.start(self._options.seed)
        else:
            self._lora.load(*release.read_adapter(path))

    def _optimizer(self, path: Path | None) -> torch.optim.Adam:
        """Adam with a release's state."""
        options, weights = self._options, self._lora.weights
        optimizer = torch.optim.Adam(weights.values(), lr=options.lr, betas=options.betas, eps=options.eps)
        state = {} if path is None else release.read_optimizer(path)
        for name, weight in weights.items() if state else ():
            moments = {part: self._lora.cut(name, state[f"{name}.{part}"]).clone() for part in MOMENTS}
            optimizer.state[weight] = {"step": state["step"].clone()} | moments
        return optimizer

    def _contents(self, optimizer: torch.optim.Adam) -> release.Contents:
        state: dict[str, torch.Tensor] = {}
        for name, weight in self._lora.weights.items():
            state["step"] = optimizer.state[weight]["step"]
            state |= {f"{name}.{part}": self._lora.whole(name, optimizer.state[weight][part]) for part in MOMENTS}
        return release.Contents(adapter_config=self._lora.config, adapter=self._lora.tensors(), optimizer=state)

    def _step(self, batch: Batch, path: Path | None, send: Send) -> tuple[torch.optim.Adam, TrainReport]:
        """One Adam step on the whole batch; done again in half the bins if memory runs out, but once only."""
        while True:
            try:
                return self._attempt(batch, path, send)
            except OutOfMemory as error:
                shortage = str(error)
            self._halve(shortage, send)

    def _attempt(self, batch: Batch, path: Path | None, send: Send) -> tuple[torch.optim.Adam, TrainReport]:
        """Raises OutOfMemory; then nothing is changed that the next attempt would not set."""
        self._restore(path)
        optimizer = self._optimizer(path)
        started = time.monotonic()
        outcome = self._passes.run(
            batch, self._limit, lambda done, total: send(wire.Event("progress", {"done": done, "total": total}))
        )
        passed = time.monotonic()
        grad_norm = self._passes.gradient_norm()
        if not math.isfinite(grad_norm):  # the release would be of no use, and be there for good
            raise ValueError(f"the batch's gradient has the norm {grad_norm}: no release was written")
        self._parallel.within_memory(optimizer.step)
        ended = time.monotonic()
        log.info(
            "%d bins: base %.2f s, forward and backward %.2f s, Adam %.2f s",
            outcome.bins,
            outcome.base_seconds,
            outcome.grad_seconds,
            ended - passed,
        )
        return optimizer, self._report(batch, outcome, grad_norm, ended - started)

    def _halve(self, shortage: str, send: Send) -> None:
        """Raises ValueError when the bins have been halved before."""
        self.rest()
        whole, half = self._options.max_tokens_per_gpu, self._options.max_tokens_per_gpu // 2
        if self._limit < whole:
            raise ValueError(f"out of memory in bins of {half} tokens, as before in bins of {whole}: {shortage}")
        self._limit = half
        text = f"out of memory in bins of {whole} tokens; the step is done again in bins of {half}: {shortage}"
        log.warning("%s", text)
        send(wire.Event("warning", {"text": text}))

    def _report(self, batch: Batch, outcome: Outcome, grad_norm: float, seconds: float) -> TrainReport:
        sampled = sum(len(sample.token_ids) for group in batch.groups for sample in group.samples)
        sums, most = outcome.sums, peak_bytes(self._parallel.device)
        return TrainReport(
            loss=sums.loss,
            ratio_mean=outcome.mean(sums.ratio),
            sampler_trainer_gap=outcome.mean(sums.gap),
            kl_base=outcome.diff_mean,
            grad_norm=grad_norm,
            tokens=sampled + sum(len(group.prompt_ids) for group in batch.groups),
            seconds=seconds,
            mfu=None if self._peak is None else sums.useful / seconds / (self._peak * self._parallel.count),
            base_seconds=outcome.base_seconds,
            grad_seconds=outcome.grad_seconds,
            max_tokens_per_gpu=self._limit,
            peak_bytes=None if most is None else self._parallel.largest(most),
        )

    def _write(self, target: Path, record: release.Record, optimizer: torch.optim.Adam) -> None:
        """The release, by the first process; it is there when any of them goes on."""
        started = time.monotonic()
        contents = self._contents(optimizer) if self._parallel.replicas.index == 0 else None

        def write() -> None:
            assert contents is not None
            release.write(target, record, contents)

        self._parallel.by_the_first(write)
        log.info("wrote release %d in %.2f s", record.number, time.monotonic() - started)


def main(line: wire.Line, options: dict[str, Any]) -> None:
    """Answer requests until the line ends (EOFError)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("megatron").setLevel(logging.WARNING)
    try:
        trainer = Trainer(msgspec.convert(options, Options))
    except (ValueError, OSError) as error:  # it would be the same another time
        log.exception("cannot start")
        _refuse_all(line, f"the trainer cannot start: {error}")
    log.info("loaded %s", options["model_path"])
    line.send(wire.Event("ready"))
    while True:
        message = line.receive()
        if isinstance(message, wire.Request) and message.method != "cancel":  # a step is repeatable: let it end
            line.send(_answer(trainer, line, message))


def _refuse_all(line: wire.Line, error: str) -> NoReturn:
    while True:
        if isinstance(message := line.receive(), wire.Request):
            line.send(wire.Reply(message.id, error=error))


def _answer(trainer: Trainer, line: wire.Line, request: wire.Request) -> wire.Reply:
    """The reply.  What a request can bring about by itself becomes an error reply; any other exception ends us."""

    try:
        match request.method:
            case "train":
                report = trainer.train(_typed(request, TrainRequest), line.send)
                return wire.Reply(request.id, msgspec.structs.asdict(report))
            case "score":
                return wire.Reply(request.id, trainer.score(_typed(request, ScoreRequest)))
            case unknown:
                return wire.Reply(request.id, error=f"the trainer knows no request {unknown!r}")
    except ConnectionError:
        raise  # the daemon is gone: an OSError, but none of the request's
    except (ValueError, OSError, RuntimeError) as error:
        log.exception("request %s failed", request.method)
        return wire.Reply(request.id, error=f"{request.method}: {error}")
    finally:
        trainer.rest()


def _typed(request: wire.Request, kind: type[Kind]) -> Kind:
    """The request's parameters; text becomes a path where one is meant.  Raises ValueError for others."""
    return msgspec.convert(request.params, kind, dec_hook=lambda wanted, value: wanted(value))


def _report_of(request: TrainRequest, sha256: str) -> TrainReport:
    """The report of a target that is there already; ValueError when it was made from something else."""
    record = release.read_record(request.target)
    if (record.parent, record.batch_sha256) != (request.release, sha256):
        raise ValueError(
            f"{request.target} exists, but was trained from release {record.parent} and batch "
            f"{record.batch_sha256[:12]}, not from release {request.release} and batch {sha256[:12]}"
        )
    return record.report
