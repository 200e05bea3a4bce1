"""The plan of a run: what was asked for it, its task and the daemon's settings, as the algorithm takes them."""

from __future__ import annotations

from tttdd.assignment import Assignment
from tttdd.config import Config
from tttdd.protocol import RunInfo
from tttdd.thinking import Budget
from tttdd.world import Plan


def plan_of(run: RunInfo, assignment: Assignment, config: Config) -> Plan:
    search = config.search
    return Plan(
        name=run.run,
        mode=run.mode,
        kind=run.kind,
        seed=run.seed,
        steps=run.steps,
        groups=run.grid.groups,
        rollouts=run.grid.rollouts,
        task=assignment.prompt,
        c=search.c,
        max_nodes=search.max_nodes,
        children_kept=search.children_kept,
        count=search.count,
        budget=Budget(config.sampling.max_new_tokens, config.sampling.thinking_budget),
        context_length=config.engine.context_length,
        keep=config.checkpoints.keep,
    )
