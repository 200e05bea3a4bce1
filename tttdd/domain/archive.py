"""The programs that a run has found, as a forest under its seeds.

    seed -> select (puct) -> record_group, in group order -> prune -> next step

A rejected program never enters.  A node whose parent was pruned stays and becomes the top of its own tree; its
`parent` keeps the id, so that the lineage can still be shown.  Algorithm, section 1.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from judges.syntax import parse

Certificate = dict[str, str | float | bool]
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of statements that hold more statements."""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A valid program that a rollout brought, before the archive decides whether it is new."""

    program: str
    output: str = ""
    reward: float
    objective: float | None = None
    step: int
    certificate: Certificate = {}
    artifact_sha256: str = ""


class Node(msgspec.Struct, kw_only=True):
    id: int
    """Order of insertion."""
    program: str
    """Empty for a seed that starts from nothing."""
    output: str = ""
    """Tail of what the program printed."""
    reward: float
    objective: float | None = None
    parent: int | None = None
    """Id of the node it was made from, which may be pruned by now; None for seeds."""
    seed: bool = False
    visits: int = 0
    best_child: float | None = None
    """Highest reward of a direct child ever reported, archived or not."""
    step: int = -1
    """Step that found it; -1 for seeds."""
    certificate: Certificate = {}
    artifact_sha256: str = ""
    """Of what it returned."""
    form: str = ""
    """`normal_form` of the program."""


class Archive:
    """Nodes by id, in order of insertion, and the totals of the search."""

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        *,
        expansions: int = 0,
        next_id: int = 0,
        births: Iterable[tuple[int, float, int]] = (),
    ) -> None:
        """`births` are (parent id, reward, id) of every child ever added, pruned ones included."""
        self.nodes = {node.id: node for node in nodes}
        self.expansions = expansions
        """T of the PUCT rule."""
        self.removed: dict[int, Node] = {}
        """What was pruned since this object was made."""
        self._next_id = next_id
        self._forms = Counter(node.form for node in self)
        """How many nodes have each normal form: equal seeds share theirs."""
        self._children: dict[int, list[tuple[float, int]]] = {}
        for parent, reward, child in births:
            self._children.setdefault(parent, []).append((reward, child))

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    @property
    def best(self) -> Node:
        """Highest reward; the older of equals.  A seed that starts from nothing only where there is nothing else."""
        return min(self, key=lambda node: (node.seed and not node.program, *_by_reward(node)))

    def ranked(self) -> list[Node]:
        """Highest reward first; the older of equals first."""
        return sorted(self, key=_by_reward)

    @property
    def seeds(self) -> list[Node]:
        return [node for node in self if node.seed]

    def seed(
        self,
        count: int,
        *,
        program: str = "",
        output: str = "",
        reward: float = 0.0,
        objective: float | None = None,
        certificate: Certificate | None = None,
        artifact_sha256: str = "",
    ) -> None:
        """Plant `count` equal roots: nothing at all, or the task's judged starter program."""
        for _ in range(count):
            self._add(
                Node(
                    id=self._next_id,
                    program=program,
                    output=output,
                    reward=reward,
                    objective=objective,
                    seed=True,
                    certificate=certificate or {},
                    artifact_sha256=artifact_sha256,
                    form=normal_form(program),
                )
            )

    def record_group(
        self, parent: int, children: Sequence[Child], rollouts: int, count: Literal["rollout", "expansion"] = "rollout"
    ) -> list[Node]:
        """Account for a judged group of `rollouts`, of which `children` were valid; returns the new nodes.

        Groups are recorded in group order.  Rejected rollouts count as visits; with count = "expansion" the group
        counts once.
        """
        node, visits = self.nodes[parent], rollouts if count == "rollout" else 1
        rewards = [child.reward for child in children]
        node.best_child = max(rewards + [best for best in [node.best_child] if best is not None], default=None)
        for visited in [node, *self.ancestors(node)]:
            visited.visits += visits
        self.expansions += visits
        return [added for child in children if (added := self._adopt(node, child)) is not None]

    def prune(self, max_nodes: int, children_kept: int) -> None:
        """Each parent keeps its best children over its whole life; then the best nodes stay, seeds always."""
        for children in self._children.values():
            for _, child in sorted(children, key=lambda birth: (-birth[0], birth[1]))[children_kept:]:
                self._remove(child)
        others = [node for node in self.ranked() if not node.seed]
        for node in others[max(0, max_nodes - (len(self) - len(others))) :]:
            self._remove(node.id)

    def ancestors(self, node: Node) -> Iterator[Node]:
        """From the parent up, ending at a root or below a pruned node."""
        parent = node.parent
        while parent is not None and (found := self.nodes.get(parent)) is not None:
            yield found
            parent = found.parent

    def _adopt(self, parent: Node, child: Child) -> Node | None:
        form = normal_form(child.program)
        if self._forms[form]:
            return None
        node = Node(
            id=self._next_id,
            program=child.program,
            output=child.output,
            reward=child.reward,
            objective=child.objective,
            parent=parent.id,
            step=child.step,
            certificate=child.certificate,
            artifact_sha256=child.artifact_sha256,
            form=form,
        )
        self._children.setdefault(parent.id, []).append((node.reward, node.id))
        self._add(node)
        return node

    def _add(self, node: Node) -> None:
        self.nodes[node.id] = node
        self._forms[node.form] += 1
        self._next_id += 1

    def _remove(self, node_id: int) -> None:
        if (node := self.nodes.pop(node_id, None)) is not None:
            self.removed[node_id] = node
            self._forms[node.form] -= 1


def _by_reward(node: Node) -> tuple[float, int]:
    return -node.reward, node.id


@functools.lru_cache(maxsize=1024)
def normal_form(program: str) -> str:
    """SHA-256 of the program without comments, docstrings and layout; of its raw text where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is the program's affair
            text = ast.dump(_without_docstrings(parse(program)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = program
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    blocks: list[ast.AST] = [tree]  # only statements hold docstrings: their expressions need not be walked
    while blocks:
        block = blocks.pop()
        if isinstance(block, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match block.body:
                case [ast.Expr(ast.Constant(str())), *rest]:
                    block.body = rest
                case _:
                    pass
        for name in BLOCKS:
            blocks += getattr(block, name, ())
    return tree
