"""Sentences and figures about a run that follow from its numbers alone; nothing is concluded from them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from tttctl.figures.history import History
from tttctl.render import number
from tttdd.protocol import NodeInfo, RunInfo

FAILURES = "tttd/failures/"


def gain(run: RunInfo, best: NodeInfo) -> str:
    """How much better than the starter the best is."""
    if run.starter is None or run.starter.objective is None or best.objective is None:
        return ""
    change = best.objective - run.starter.objective
    better = change < 0 if run.direction == "lower" else change > 0
    return f"the best is {number(abs(change), 5)} better" if better else "nothing better was found"


def to_target(run: RunInfo, best: NodeInfo) -> str:
    if run.target is None or best.objective is None:
        return "" if run.target is not None else "the task has none"
    short = best.objective - run.target if run.direction == "lower" else run.target - best.objective
    return f"{number(short, 5)} short of it" if short > 0 else "reached"


def training(history: History, best: NodeInfo) -> Iterator[str]:
    """First step against last, and halves, which one lucky step cannot turn; of one step alone, its own numbers."""
    means, shares = history.series("tttd/reward_mean").values, history.series("tttd/valid_fraction").values
    if not history.trains:
        yield f"Nothing: this run's mode is {history.run.mode}, and the model stayed at release 0."
    if len(means) == 1:
        yield f"Mean reward of the one step's rollouts: {number(means[0], 5)}."
    elif means:
        yield f"Mean reward of a step's rollouts: {number(means[0], 5)} in the first, {number(means[-1], 5)} at last."
    if len(means) >= 4:
        half = len(means) // 2
        early, late = statistics.fmean(means[:half]), statistics.fmean(means[-half:])
        yield f"Mean of the first {half} steps: {number(early, 5)}; of the last {half}: {number(late, 5)}."
    if len(shares) == 1:
        yield f"Valid programs: {shares[0]:.1%} of the one step's rollouts."
    elif shares:
        yield f"Valid programs: {shares[0]:.1%} of the first step's rollouts, {shares[-1]:.1%} of the last one's."
    moved = history.series("train/kl_base").values
    if moved:
        which = "one" if len(moved) == 1 else "last"
        yield f"On the {which} step's rollouts the model is {number(moved[-1], 4)} nats a token from the base."
    yield from _origin(history, best)
    if history.trains:
        yield (
            "A run says what came with training, not what came of it: the same search without training is "
            "tttctl submit --no-train, and tttctl compare sets both side by side over several seeds."
        )


def _origin(history: History, best: NodeInfo) -> Iterator[str]:
    release = next((row.release for row in history.rows if row.step == best.step), None)
    if best.parent is None:
        yield "The best program is one that was given at the start."
    elif release is not None:
        by = "the base model (release 0)" if release == 0 else f"release {release}, a trained model"
        yield f"The best program was sampled in step {best.step + 1} from {by}."


def failures(history: History) -> list[list[str]]:
    """Reason, count, share of all rollouts; the most frequent first."""
    counts: Counter[str] = Counter()
    for row in history.rows:
        counts.update({k.removeprefix(FAILURES): round(v) for k, v in row.metrics.items() if k.startswith(FAILURES)})
    total = len(history.rows) * history.run.grid.groups * history.run.grid.rollouts
    found = sorted((-count, reason) for reason, count in counts.items() if count)
    return [[reason.replace("_", " "), str(-count), f"{-count / total:.1%}"] for count, reason in found]
