"""Which part of a step this process does: megatron's process groups, and what the processes must agree on.

    process = replica * tensor_parallel + shard     replica: other bins of the batch     shard: other rows of a weight

NCCL between GPUs, gloo on the CPU.  A process alone makes the groups too, as megatron's layers ask for them, and never
speaks.  Nobody waits for ever for a process that is gone: the adapter ends all of them as soon as one ends.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
from torch import distributed

from tttdd.workers.device import take


@contextmanager
def sparingly() -> Iterator[None]:
    """For the import of megatron: it compiles fusions that we turn off, which would load inductor, warns of CUDA
    extensions that nobody here has a use for, and imports wandb, which leaves folders in the temporary directory.
    """
    compiler, torch.compile = torch.compile, lambda model=None, **_: model
    absent = sys.modules.setdefault("wandb", None)  # pyright: ignore[reportArgumentType]  None: cannot be imported
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compile = compiler
        if absent is None:
            del sys.modules["wandb"]


with sparingly():
    from megatron.core import parallel_state

Kind = TypeVar("Kind")

PATIENCE = timedelta(days=1)
"""Of a collective: a replica waits for one with more to do, and that may take as long as a pass."""
MEETING = timedelta(seconds=10)
"""For the shards of a model to run out of memory all together."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the trainer's processes this one is."""

    index: int = 0
    count: int = 1
    rendezvous: str | None = None
    """Path of a file through which they find each other, fresh for each start; a process alone needs none."""


class OutOfMemory(Exception):
    """Some process ran out of memory; raised in all of them."""


class Group:
    """Processes that share something out among them.  Alone, every method gives back what it was given."""

    def __init__(self, index: int, size: int, handle: Any = None) -> None:
        self.index, self.size, self.handle = index, size, handle

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The members' tensors added up, in place."""
        return self._reduce(tensor, distributed.ReduceOp.SUM)

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """The members' largest numbers, place by place, in place."""
        return self._reduce(tensor, distributed.ReduceOp.MAX)

    def part(self, size: int) -> slice:
        """This member's part of `size` rows."""
        width = size // self.size
        return slice(self.index * width, (self.index + 1) * width)

    def cut(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        """This member's part along `dim`; with None every member has the whole."""
        if dim is None or self.size == 1:
            return whole
        part = self.part(whole.shape[dim])
        return whole.narrow(dim, part.start, part.stop - part.start)

    def join(self, part: torch.Tensor, dim: int | None) -> torch.Tensor:
        """The whole that `cut` was given, in every member."""
        if dim is None or self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        distributed.all_gather(parts, part.contiguous(), group=self.handle)
        return torch.cat(parts, dim)

    def _reduce(self, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        if self.size > 1:
            distributed.all_reduce(tensor, how, group=self.handle)
        return tensor


ALONE = Group(0, 1)


class Parallel:
    """This process's device, and its groups: `shards` of one model, `replicas` of it, and all processes."""

    def __init__(self, device: torch.device, shards: Group, replicas: Group, all_: Group, store: Any) -> None:
        self.device, self.shards, self.replicas = device, shards, replicas
        self._all, self._store = all_, store
        self._passes = itertools.count()

    @property
    def first(self) -> bool:
        return self._all.index == 0

    @property
    def count(self) -> int:
        return self._all.size

    def largest(self, number: int) -> int:
        """The largest of all processes' numbers."""
        return int(self._all.largest(torch.tensor(number, device=self.device)).item())

    def by_the_first(self, work: Callable[[], None]) -> None:
        """`work()` in the first process while the others wait; an OSError there is an error everywhere."""
        failure = None
        if self.first:
            try:
                work()
            except OSError as error:
                failure = error
        failed = self.largest(failure is not None)
        if failure is not None:
            raise failure
        if failed:
            raise RuntimeError("the trainer's first process could not write")

    def within_memory(self, work: Callable[[], Kind]) -> Kind:
        """`work()` if it fits into every process's memory, else OutOfMemory in every process.

        `work` may speak with other shards, not with other replicas.  Raises RuntimeError when some shards of a model
        have run out of memory and others not: those wait for good, and all processes are to be ended.
        """
        number, result, shortage = next(self._passes), None, None
        try:
            result = work()
        except torch.OutOfMemoryError as error:  # not raised on from here: its frames hold the tensors
            shortage = str(error).strip()
        if shortage is not None and self.shards.size > 1:
            self._meet(number, shortage)
        if self.largest(shortage is not None):
            raise OutOfMemory(shortage or "another of the trainer's processes ran out of memory")
        return result  # pyright: ignore[reportReturnType]

    def _meet(self, number: int, shortage: str) -> None:
        """Wait until all shards have run out of memory, at the same collective.

        Raises RuntimeError when they don't: a shard may then hang in a collective that this one will never join.
        """
        keys = [f"short/{number}/{self.replicas.index}/{shard}" for shard in range(self.shards.size)]
        at = str(self.shards.handle._get_sequence_number_for_group()).encode()
        self._store.set(keys[self.shards.index], at)
        try:
            self._store.wait(keys, MEETING)
            together = all(self._store.get(key) == at for key in keys)
        except RuntimeError:  # they have not come
            together = False
        if not together:
            raise RuntimeError(f"out of memory on one shard of the model and not on the others: {shortage}")


def start(seat: Seat, tensor_parallel: int, devices: tuple[int, ...]) -> Parallel:
    """Join the other processes.  Without `devices` on the CPU, else on the device of this one's index.

    Raises ValueError for numbers that do not go together, and for devices that are not there.
    """
    if seat.count % tensor_parallel:
        raise ValueError(f"trainer.tensor_parallel = {tensor_parallel} does not divide {seat.count} processes")
    device = take(devices, seat.index, seat.count)
    store = _join(seat, tensor_parallel, device)
    shards = Group(
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_group(),
    )
    replicas = Group(
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_data_parallel_world_size(),
        parallel_state.get_data_parallel_group(),
    )
    return Parallel(device, shards, replicas, Group(seat.index, seat.count), store)


def _join(seat: Seat, tensor_parallel: int, device: torch.device) -> Any:
    """Make the process groups, once a process; returns the store through which they were made."""
    if distributed.is_initialized():
        return None
    cuda = device.type == "cuda"
    if not cuda:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the machine's own name may resolve to nothing
    store = distributed.HashStore() if seat.rendezvous is None else distributed.FileStore(seat.rendezvous, seat.count)  # pyright: ignore[reportPrivateImportUsage]  # public by its documentation
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=seat.index,
        world_size=seat.count,
        timeout=PATIENCE,  # no device_id: communicators are then made when first used, by a process alone never
    )
    minutes = int(PATIENCE.total_seconds() // 60)
    parallel_state.initialize_model_parallel(
        tensor_parallel, 1, distributed_timeout_minutes=minutes, create_gloo_process_groups=False
    )
    return store
