"""The trainer's worker process: an optimizer step as a function on files.

    (release N, batch file) -> base log-probs of all bins -> forward and backward bin by bin -> Adam -> release N + 1

Nothing is kept between requests but the frozen base, so a request repeated gives the same release bit for bit.
Requests: `train` and `score`; events: `ready` once loaded, `progress` {done, total} per bin and pass.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch.utils import deterministic

from tttdd import wire
from tttdd.domain import batch as batches
from tttdd.domain.batch import Batch, Group, Sample, TrainReport
from tttdd.workers import release
from tttdd.workers.lora import Adapters
from tttdd.workers.loss import policy_loss, token_mean
from tttdd.workers.model import LanguageModel
from tttdd.workers.packing import Layout, lay_out, pack

log = logging.getLogger(__name__)

Kind = TypeVar("Kind")
Progress = Callable[[int, int], None]


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
        torch.use_deterministic_algorithms(True)
        # Filling costs time.  torch gives its module the property in a way that types cannot see.
        deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        device = torch.device("cuda", options.devices[0]) if _has_gpu(options) else torch.device("cpu")
        self._model = LanguageModel(Path(options.model_path), getattr(torch, options.dtype), device)
        self._model.recompute = options.recompute
        self._lora = Adapters(self._model, options.rank, options.alpha, options.targets)

    def train(self, request: TrainRequest, progress: Progress) -> TrainReport:
        """Raises ValueError for a batch, release or target that do not belong together, OSError from the files."""
        sha256 = hashlib.sha256(request.batch.read_bytes()).hexdigest()
        if request.target.exists():
            return _report_of(request, sha256)
        release.remove_leftovers(request.target.parent)
        batch = batches.read(request.batch)
        if batch.release != request.release:
            raise ValueError(f"the batch was sampled under release {batch.release}, not {request.release}")
        optimizer = self._restore(request.release_path)
        report = self._step(batch, optimizer, progress)
        record = release.Record(
            number=request.target_number,
            parent=request.release,
            batch_sha256=sha256,
            seed=self._options.seed,
            report=report,
        )
        started = time.monotonic()
        release.write(request.target, record, self._contents(optimizer))
        log.info("wrote release %d in %.2f s", request.target_number, time.monotonic() - started)
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
            return self._base_logprobs(layout).tolist()
        self._restore(request.release_path)
        with torch.no_grad():
            return self._logprobs(layout).tolist()

    def _restore(self, path: Path | None) -> torch.optim.Adam:
        """Put a release's weights into the model; returns Adam with the release's state."""
        options = self._options
        weights = self._lora.weights
        optimizer = torch.optim.Adam(weights.values(), lr=options.lr, betas=options.betas, eps=options.eps)
        if path is None:
            self._lora.start(options.seed)
            return optimizer
        contents = release.read(path)
        self._lora.load(contents.adapter_config, contents.adapter)
        for name, weight in weights.items():
            optimizer.state[weight] = {
                "step": contents.optimizer["step"].clone(),
                "exp_avg": contents.optimizer[f"{name}.exp_avg"].to(weight.device),
                "exp_avg_sq": contents.optimizer[f"{name}.exp_avg_sq"].to(weight.device),
            }
        return optimizer

    def _contents(self, optimizer: torch.optim.Adam) -> release.Contents:
        state: dict[str, torch.Tensor] = {}
        for name, weight in self._lora.weights.items():
            state["step"] = optimizer.state[weight]["step"]
            state |= {f"{name}.{part}": optimizer.state[weight][part].cpu() for part in ("exp_avg", "exp_avg_sq")}
        return release.Contents(adapter_config=self._lora.config, adapter=self._lora.tensors(), optimizer=state)

    def _step(self, batch: Batch, optimizer: torch.optim.Adam, progress: Progress) -> TrainReport:
        """One Adam step on the whole batch."""
        started = time.monotonic()
        layouts = [lay_out(batch.groups, parts) for parts in pack(batch.groups, self._options.max_tokens_per_gpu)]
        diffs = []
        for done, layout in enumerate(layouts, 1):
            diffs.append(layout.logq_N - self._base_logprobs(layout).double())
            progress(done, 2 * len(layouts))
        based = time.monotonic()
        optimizer.zero_grad()
        logps, loss = [], 0.0
        for done, (layout, diff_N) in enumerate(zip(layouts, diffs, strict=True), 1 + len(layouts)):
            logp_N = self._logprobs(layout)
            loss += self._backward(layout, logp_N, diff_N, token_mean(diffs), batch.rollouts_total)
            logps.append(logp_N.detach().cpu().double())
            progress(done, 2 * len(layouts))
        trained = time.monotonic()
        grad_norm = self._apply(optimizer)
        ended = time.monotonic()
        log.info(
            "%d bins: base %.2f s, forward and backward %.2f s, Adam %.2f s",
            len(layouts),
            based - started,
            trained - based,
            ended - trained,
        )
        return _summary(batch, layouts, diffs, logps, loss=loss, grad_norm=grad_norm, seconds=ended - started)

    def _backward(
        self, layout: Layout, logp_N: torch.Tensor, diff_N: torch.Tensor, mean: float, rollouts_total: int
    ) -> float:
        """Add a bin's gradient; returns its share of the loss."""
        loss = policy_loss(
            logp_N.cpu(),
            layout.logq_N,
            diff_N,
            layout.advantage_N,
            mean=mean,
            kl_coef=self._options.kl_coef,
            rollouts_total=rollouts_total,
        )
        loss.backward()
        return loss.item()

    def _apply(self, optimizer: torch.optim.Adam) -> float:
        """Step; returns the gradient's norm.  A batch without a trained token has the gradient zero.

        Raises ValueError for a gradient that is not finite: the release would be of no use, and be there for good.
        """
        squares = 0.0
        for weight in self._lora.weights.values():
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            squares += weight.grad.double().square().sum().item()
        if not math.isfinite(squares):
            raise ValueError(f"the batch's gradient has the norm {squares**0.5}: no release was written")
        optimizer.step()
        return squares**0.5

    def _base_logprobs(self, layout: Layout) -> torch.Tensor:
        with torch.no_grad(), self._lora.switched_off():
            return self._logprobs(layout).cpu()

    def _logprobs(self, layout: Layout) -> torch.Tensor:
        return self._model.logprobs(layout, self._options.logprob_chunk)


def main(line: wire.Line, options: dict[str, Any]) -> None:
    """Answer requests until the line ends (EOFError)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("megatron").setLevel(logging.WARNING)
    trainer = Trainer(msgspec.convert(options, Options))
    line.send(wire.Event("ready"))
    while True:
        message = line.receive()
        if isinstance(message, wire.Request) and message.method != "cancel":  # a step is repeatable: let it end
            line.send(_answer(trainer, line, message))


def _answer(trainer: Trainer, line: wire.Line, request: wire.Request) -> wire.Reply:
    """The reply.  What a request can bring about by itself becomes an error reply; any other exception ends us."""

    def progress(done: int, total: int) -> None:
        line.send(wire.Event("progress", {"done": done, "total": total}))

    try:
        match request.method:
            case "train":
                report = trainer.train(_typed(request, TrainRequest), progress)
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


def _typed(request: wire.Request, kind: type[Kind]) -> Kind:
    """The request's parameters; text becomes a path where one is meant.  Raises ValueError for others."""
    return msgspec.convert(request.params, kind, dec_hook=lambda wanted, value: wanted(value))


def _has_gpu(options: Options) -> bool:
    return bool(options.devices) and torch.cuda.is_available()


def _report_of(request: TrainRequest, sha256: str) -> TrainReport:
    """The report of a target that is there already; ValueError when it was made from something else."""
    record = release.read_record(request.target)
    if (record.parent, record.batch_sha256) != (request.release, sha256):
        raise ValueError(
            f"{request.target} exists, but was trained from release {record.parent} and batch "
            f"{record.batch_sha256[:12]}, not from release {request.release} and batch {sha256[:12]}"
        )
    return record.report


def _summary(
    batch: Batch,
    layouts: list[Layout],
    diffs: list[torch.Tensor],
    logps: list[torch.Tensor],
    *,
    loss: float,
    grad_norm: float,
    seconds: float,
) -> TrainReport:
    gaps = [layout.logq_N - logp_N for layout, logp_N in zip(layouts, logps, strict=True)]
    sampled = sum(len(sample.token_ids) for group in batch.groups for sample in group.samples)
    return TrainReport(
        loss=loss,
        ratio_mean=token_mean([(-gap_N).exp() for gap_N in gaps]),
        sampler_trainer_gap=token_mean(gaps),
        kl_base=token_mean(diffs),
        grad_norm=grad_norm,
        tokens=sampled + sum(len(group.prompt_ids) for group in batch.groups),
        seconds=seconds,
    )
