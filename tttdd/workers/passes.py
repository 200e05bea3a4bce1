"""The passes of one optimizer step over this process's bins, and what all processes' passes add up to.

    bins of this replica -> base log-probs -> mean diff of the whole batch -> forward and backward -> summed gradient

Every replica takes part in every sum, also one without a bin.  Each pass as a whole either fits into every process's
memory or raises OutOfMemory in all of them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import torch

from tttdd.domain.batch import Batch
from tttdd.workers import flops
from tttdd.workers.lora import Adapters
from tttdd.workers.loss import policy_loss
from tttdd.workers.model import LanguageModel
from tttdd.workers.packing import Layout, deal, lay_out, pack

Progress = Callable[[int, int], None]

# Tensor names: N trained tokens of a bin.


class Sums(NamedTuple):
    """Sums over the trained tokens of the whole batch."""

    loss: float
    gap: float
    """Of logq - logp, in nats."""
    ratio: float
    useful: float
    """FLOPs."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch's passes came to; the gradient lies in the LoRA weights."""

    sums: Sums
    diff_mean: float
    count: int
    base_seconds: float
    grad_seconds: float
    bins: int
    """Of this process."""

    def mean(self, total: float) -> float:
        """Per trained token; 0 without any."""
        return total / self.count if self.count else 0.0


class Passes:
    def __init__(self, model: LanguageModel, lora: Adapters, *, chunk: int, kl_coef: float) -> None:
        self.model, self._lora, self._parallel = model, lora, model.parallel
        self._chunk, self._kl_coef = chunk, kl_coef

    def run(self, batch: Batch, limit: int, progress: Progress) -> Outcome:
        """Both passes in bins of `limit` tokens.  Raises OutOfMemory, ValueError for a batch that cannot be used."""
        started = time.monotonic()
        self._lora.forget_gradients()
        layouts = self._layouts(batch, limit)
        done = itertools.count(1)

        def tick() -> None:
            progress(next(done), 2 * len(layouts))

        diffs = self._parallel.within_memory(lambda: [self._diff(layout, tick) for layout in layouts])
        total, count = self._summed([sum(d.sum().item() for d in diffs), sum(d.numel() for d in diffs)])
        mean = total / count if count else 0.0
        based = time.monotonic()
        pairs = list(zip(layouts, diffs, strict=True))
        sums, flat = self._parallel.within_memory(
            lambda: (
                [self._backward(layout, diff_N, mean, batch.rollouts_total, tick) for layout, diff_N in pairs],
                self._flat_gradient(),
            )
        )
        self._share_out(self._parallel.replicas.sum(flat))
        return Outcome(
            sums=Sums(*self._summed([math.fsum(column) for column in zip(*sums, strict=True)] or [0.0] * 4)),
            diff_mean=mean,
            count=int(count),
            base_seconds=based - started,
            grad_seconds=time.monotonic() - based,
            bins=len(layouts),
        )

    def logprobs(self, layout: Layout) -> torch.Tensor:
        return self.model.logprobs(layout, self._chunk)

    def base_logprobs(self, layout: Layout) -> torch.Tensor:
        with torch.no_grad(), self._lora.switched_off():
            return self.logprobs(layout).cpu()

    def gradient_norm(self) -> float:
        """Of the whole batch's gradient, every weight counted once."""
        squares = {True: 0.0, False: 0.0}
        for name, weight in self._lora.weights.items():
            assert weight.grad is not None
            squares[self._lora.cuts[name] is None] += weight.grad.double().square().sum().item()
        parts = torch.tensor(squares[False], dtype=torch.float64, device=self.model.device)
        return (squares[True] + self._parallel.shards.sum(parts).item()) ** 0.5

    def _layouts(self, batch: Batch, limit: int) -> list[Layout]:
        """The bins of this replica."""
        replicas = self._parallel.replicas
        bins = deal(batch.groups, pack(batch.groups, limit), replicas.size)[replicas.index]
        return [lay_out(batch.groups, parts) for parts in bins]

    def _diff(self, layout: Layout, tick: Callable[[], None]) -> torch.Tensor:
        diff_N = layout.logq_N - self.base_logprobs(layout).double()
        tick()
        return diff_N

    def _backward(
        self, layout: Layout, diff_N: torch.Tensor, mean: float, rollouts_total: int, tick: Callable[[], None]
    ) -> Sums:
        """Add a bin's gradient."""
        logp_N = self.logprobs(layout).cpu()
        loss = policy_loss(
            logp_N,
            layout.logq_N,
            diff_N,
            layout.advantage_N,
            mean=mean,
            kl_coef=self._kl_coef,
            rollouts_total=rollouts_total,
        )
        loss.backward()
        gap_N = layout.logq_N - logp_N.detach().double()
        tick()
        useful = flops.useful(self.model.architecture, layout)
        return Sums(loss.item(), gap_N.sum().item(), (-gap_N).exp().sum().item(), useful)

    def _flat_gradient(self) -> torch.Tensor:
        """All weights' gradients one after the other, so that one exchange does; zero where there is none."""
        weights = self._lora.weights.values()
        return torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])

    def _share_out(self, flat: torch.Tensor) -> None:
        weights = list(self._lora.weights.values())
        for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
            weight.grad = part.view_as(weight)

    def _summed(self, numbers: list[float]) -> list[float]:
        """Each number added up over the replicas."""
        return self._parallel.replicas.sum(
            torch.tensor(numbers, dtype=torch.float64, device=self.model.device)
        ).tolist()
