"""The archive: what enters, what is counted, what is pruned."""

import ast
import hashlib
import inspect
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tttdd.domain.archive import Archive, Child, normal_form


def child(program: str, reward: float, step: int = 0) -> Child:
    return Child(program=program, reward=reward, step=step)


def numbered(rewards: list[float], mark: str = "") -> list[Child]:
    return [child(f"x = '{mark}{index}'", reward) for index, reward in enumerate(rewards)]


def planted(count: int = 1) -> Archive:
    archive = Archive()
    archive.seed(count, program="x = 0", reward=1.0)
    return archive


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x = 1", "x=1   # one\n\n"),
        ("def f():\n    'says'\n    return 1", "def f():\n  return 1"),
        ("'module'\nx = (1)", "x = 1"),
        ("class A:\n    '''doc'''\n    y = 2", "class A:\n  y = 2"),
    ],
)
def test_comments_docstrings_and_layout_do_not_make_a_program_new(a: str, b: str) -> None:
    assert normal_form(a) == normal_form(b)


@pytest.mark.parametrize(("a", "b"), [("x = 1", "x = 2"), ("x = 'a'", "x = 'a '"), ("x = (", "x = ( "), ("", "x")])
def test_another_program_is_new(a: str, b: str) -> None:
    assert normal_form(a) != normal_form(b)


def plain_form(program: str) -> str:
    """`normal_form` by walking every node of the tree."""
    tree = ast.parse(program)
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = scope.body[0] if scope.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                scope.body = scope.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


EVERYWHERE = """
if a:
    def f(): "doc"; x = lambda: "no doc"
elif b:
    def g(): "doc"
else:
    class C:
        "doc"
        async def h(self): "doc"; return (lambda: 1, "text")
try:
    def f(): "doc"; "not a docstring"
except E:
    def f(): "doc"
else:
    def f(): "doc"
finally:
    def f(): "doc"
for x in y:
    def f(): "doc"
else:
    def f(): "doc"
while x:
    with y:
        def f(): "doc"; z = 1 if "a" else "b"
match x:
    case 1:
        def f(): "doc"
"""


@pytest.mark.parametrize(
    "program", [EVERYWHERE, *(inspect.getsource(module) for module in (ast, inspect, hashlib, textwrap))]
)
def test_docstrings_are_found_wherever_a_definition_can_stand(program: str) -> None:
    assert normal_form(program) == plain_form(program)


@pytest.mark.parametrize("odd", ["x = (", "x = '\0'", "-" * 100_000 + "1", "(" * 5000, r"x = '\d'", "x = '\ud800'"])
def test_any_text_has_a_normal_form(odd: str) -> None:
    assert len(normal_form(odd)) == 64


def test_a_group_counts_its_rejected_rollouts_as_visits_up_to_the_root() -> None:
    archive = planted(2)
    (first,) = archive.record_group(0, [child("x = 1", 2.0)], 8)
    archive.record_group(first.id, [], 8)
    assert [node.visits for node in archive] == [16, 0, 8]
    assert archive.expansions == 16


def test_counting_expansions_counts_a_group_once() -> None:
    archive = planted()
    archive.record_group(0, [child("x = 1", 2.0)], 8, "expansion")
    assert (archive.nodes[0].visits, archive.expansions) == (1, 1)


def test_best_child_is_of_direct_children_and_remembers_programs_that_were_not_new() -> None:
    archive = planted()
    (first,) = archive.record_group(0, [child("x = 1", 2.0)], 3)
    archive.record_group(first.id, [child("x = 2", 5.0)], 3)
    archive.record_group(0, [child("x = 0 # the seed again", 3.0)], 3)
    assert len(archive) == 3
    assert (archive.nodes[0].best_child, first.best_child) == (3.0, 5.0)


def test_a_program_enters_once_in_group_order() -> None:
    archive = planted(2)
    added = archive.record_group(0, [child("x = 1", 2.0), child("x = 1 # same", 9.0)], 3)
    assert [node.reward for node in added] == [2.0]
    assert archive.record_group(1, [child("x=1", 2.0)], 3) == []


def test_a_parent_keeps_its_best_children_over_its_whole_life() -> None:
    archive = planted()
    archive.record_group(0, numbered([3.0, 5.0, 4.0]), 3)
    archive.prune(100, 2)
    assert sorted(node.reward for node in archive) == [1.0, 4.0, 5.0]
    archive.record_group(0, numbered([4.5, 2.0], "later"), 3)
    archive.prune(100, 2)
    assert sorted(node.reward for node in archive) == [1.0, 4.5, 5.0]


def test_a_better_child_that_was_pruned_for_room_still_counts_among_the_best() -> None:
    archive = planted(2)
    archive.record_group(0, numbered([2.0, 3.0]), 3)
    archive.record_group(1, numbered([8.0, 9.0], "other"), 3)
    archive.prune(4, 2)
    archive.record_group(0, [child("x = 'late'", 1.5)], 3)
    archive.prune(100, 2)
    assert sorted(node.reward for node in archive) == [1.0, 1.0, 8.0, 9.0]


def test_of_equal_children_the_older_stays() -> None:
    archive = planted()
    older, _ = archive.record_group(0, numbered([2.0, 2.0]), 3)
    archive.prune(100, 1)
    assert [node.id for node in archive] == [0, older.id]


def test_a_grandchild_of_a_pruned_node_stays_unlinked() -> None:
    archive = planted()
    (middle,) = archive.record_group(0, [child("x = 1", 2.0)], 3)
    (leaf,) = archive.record_group(middle.id, [child("x = 2", 9.0)], 3)
    archive.record_group(0, numbered([7.0, 8.0]), 3)
    archive.prune(100, 2)
    assert middle.id in archive.removed and leaf.id in archive.nodes
    assert list(archive.ancestors(leaf)) == []
    archive.record_group(leaf.id, [], 3)
    assert archive.nodes[0].visits == 9, "a visit below a pruned node must not reach what is above it"


def test_a_pruned_program_can_come_back() -> None:
    archive = planted()
    archive.record_group(0, numbered([2.0, 3.0, 4.0]), 3)
    archive.prune(100, 2)
    assert len(archive.record_group(2, [child("x = '0'", 2.0)], 3)) == 1


def test_the_best_of_equals_is_the_older() -> None:
    assert planted(3).best.id == 0


steps = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=5)))
    , max_size=6,
)  # fmt: skip


@given(steps, st.integers(1, 3), st.integers(1, 15), st.integers(1, 3))
def test_the_archive_keeps_its_bounds_and_its_sums(search, seeds: int, max_nodes: int, kept: int) -> None:
    archive, groups = planted(seeds), 0
    for groups_of_step in search:
        alive = sorted(archive.nodes)
        for pick, found in groups_of_step:
            children = [child(f"x = {program + 1}", reward / 4) for program, reward in found]
            archive.record_group(alive[pick % len(alive)], children, 5)
            groups += 1
        archive.prune(max_nodes, kept)
        check(archive, seeds, max_nodes, kept)
    assert archive.expansions == 5 * groups
    assert all(node.visits % 5 == 0 and node.visits <= archive.expansions for node in archive)


class Plain:
    """The archive's rules (algorithm, section 1), written with lists and loops over everything."""

    def __init__(self, seeds: int) -> None:
        self.all: list[dict[str, Any]] = [
            {"id": n, "text": "x = 0", "reward": 1.0, "up": None, "visits": 0} for n in range(seeds)
        ]
        self.best: dict[int, float] = {}
        self.alive, self.seeds = list(range(seeds)), seeds

    def record(self, parent: int, found: list[tuple[str, float]], rollouts: int) -> None:
        for _, reward in found:
            self.best[parent] = max(reward, self.best.get(parent, reward))
        above: int | None = parent
        while above in self.alive:
            self.all[above]["visits"] += rollouts
            above = self.all[above]["up"]
        for text, reward in found:
            if all(self.all[node]["text"] != text for node in self.alive):
                self.alive.append(len(self.all))
                self.all.append({"id": len(self.all), "text": text, "reward": reward, "up": parent, "visits": 0})

    def prune(self, max_nodes: int, kept: int) -> None:
        ranked = sorted(self.all, key=lambda node: (-node["reward"], node["id"]))
        for parent in range(len(self.all)):
            surplus = [node["id"] for node in ranked if node["up"] == parent][kept:]
            self.alive = [node for node in self.alive if node not in surplus]
        others = [node["id"] for node in ranked if node["id"] in self.alive and node["id"] >= self.seeds]
        stay = others[: max(0, max_nodes - self.seeds)]
        self.alive = [node for node in self.alive if node < self.seeds or node in stay]


def stored(archive: Archive, births: list[tuple[int, float, int]]) -> Archive:
    """As the next step loads it."""
    return Archive(archive, expansions=archive.expansions, next_id=8 + len(births), births=births)


@given(steps, st.integers(8, 20), st.integers(1, 3))
def test_the_archive_equals_the_rules_written_plainly(search, max_nodes: int, kept: int) -> None:
    archive, plain, births = planted(8), Plain(8), list[tuple[int, float, int]]()
    for groups_of_step in search:
        alive = sorted(archive.nodes)
        for pick, found in groups_of_step:
            parent = alive[pick % len(alive)]
            texts = [(f"x = {program}", reward / 4) for program, reward in found]
            added = archive.record_group(parent, [child(text, reward) for text, reward in texts], 5)
            births += [(parent, node.reward, node.id) for node in added]
            plain.record(parent, texts, 5)
        archive.prune(max_nodes, kept)
        plain.prune(max_nodes, kept)
        assert list(archive.nodes) == plain.alive
        seen = [(node.id, node.reward, node.visits, node.best_child) for node in archive]
        assert seen == [(n, plain.all[n]["reward"], plain.all[n]["visits"], plain.best.get(n)) for n in plain.alive]
        archive = stored(archive, births)


def check(archive: Archive, seeds: int, max_nodes: int, kept: int) -> None:
    assert [node.id for node in archive.seeds] == list(range(seeds))
    assert len(archive) <= max(max_nodes, seeds)
    assert len({node.form for node in archive if not node.seed}) == len(archive) - seeds
    assert list(archive.nodes) == sorted(archive.nodes)
    assert not archive.nodes.keys() & archive.removed.keys()
    everyone = {**archive.nodes, **archive.removed}
    for parent in everyone:
        siblings = [node for node in everyone.values() if node.parent == parent]
        best = sorted(siblings, key=lambda node: (-node.reward, node.id))[:kept]
        assert {node.id for node in siblings if node.id in archive.nodes} <= {node.id for node in best}
