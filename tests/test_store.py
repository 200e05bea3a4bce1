"""The store: what a run goes on from, whatever happened to the process that wrote it."""

import itertools
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from judges.verdict import Verdict
from tttdd.adapters.database import SCHEMA_VERSION
from tttdd.adapters.store import SqliteStore
from tttdd.domain.archive import Archive, Child
from tttdd.domain.grid import Coordinate, SecondRelease, missing
from tttdd.ports import Pending, Ready, Release, Rollout, Sampled, StoreError
from tttdd.protocol import GridSize, Proof
from tttdd.run_ports import RunRecord

RUN = "erdos-1"
SCHEMAS = Path(__file__).parent / "schemas"
"""N.sql as version N of the program wrote it, N-rows.sql what two of its runs left in it."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    open_run(store)
    yield store
    store.close()


def open_run(store: SqliteStore, name: str = RUN) -> None:
    archive = Archive()
    archive.seed(2, program="x = 0\n", output="zero", reward=1.0, objective=0.5, certificate={"exact": True})
    record = RunRecord(
        name=name,
        task="erdos",
        seed=2**63 - 1,
        steps=2,
        grid=GridSize(2, 3),
        identity={"grid.groups": 2, "model.revision": "abc"},
        created=12.5,
    )
    store.open_run(record)
    store.plant(name, archive, record.identity)


def releases(state_dir: Path) -> list[tuple[int, int, str]]:
    with closing(sqlite3.connect(state_dir / "archive.sqlite3")) as database:
        return database.execute("SELECT number, step, load_id FROM releases ORDER BY number").fetchall()


def rollout(step: int, group: int, number: int, *, release: int | None = None, reward: float = 0.0) -> Rollout:
    program = f"x = {step, group, number}\n"
    verdict = Verdict(valid=reward > 0, reward=reward, reason="" if reward > 0 else "timeout", certificate={"n": 3.5})
    sampled = Sampled(
        [1, 2, 70000], [-0.1, -1 / 3, -2.0], [True, False, True], "a ⟦", "stop", step if release is None else release
    )
    return Rollout(Coordinate(step, group, number), group, program if reward > 0 else None, sampled, verdict)


def fill(store: SqliteStore, step: int = 0) -> None:
    for place in missing(step, 2, 3, set()):
        assert store.record(RUN, rollout(step, place.group, place.rollout, reward=2.0 + place.rollout))


def batch_path(store: SqliteStore, tmp_path: Path, step: int = 0) -> Path:
    return tmp_path / "runs" / RUN / "batches" / f"{step:04d}.msgpack"


def release(tmp_path: Path, number: int) -> Release:
    return Release(number, tmp_path / "runs" / RUN / "releases" / f"{number:04d}")


def proof(number: int) -> Proof:
    return Proof(
        release=number, load_id=f"load-{number}", gap=1e-6, floor=1e-7, limit=0.01, trainer_shift=0.1, engine_shift=0.1,
        attempts=1,
    )  # fmt: skip


def grown(store: SqliteStore, step: int = 0) -> Archive:
    archive = store.archive(RUN)
    for group in range(2):
        rollouts = [r for r in store.rollouts(RUN, step) if r.coordinate.group == group]
        children = [Child(program=r.program or "", reward=r.verdict.reward, step=step) for r in rollouts]
        archive.record_group(group, children, 3)
    archive.prune(10, 2)
    return archive


def finish_step(store: SqliteStore, tmp_path: Path, step: int = 0) -> None:
    fill(store, step)
    store.begin(RUN, step, grown(store, step), batch_path(store, tmp_path, step), {"tttd/step": step})
    store.commit(RUN, step, release(tmp_path, step + 1), proof(step + 1), {"tttd/step": step, "train/loss": 0.5})


def test_a_new_run_is_ready_with_the_base_and_its_seeds(store: SqliteStore) -> None:
    assert store.state(RUN) == Ready(0, Release(0))
    seeds = list(store.archive(RUN))
    assert [(node.id, node.seed, node.reward, node.output) for node in seeds] == [
        (0, True, 1.0, "zero"),
        (1, True, 1.0, "zero"),
    ]
    assert seeds[0].certificate == {"exact": True}


def test_a_taken_name_is_refused(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="exists already"):
        open_run(store)


def test_a_run_without_seeds_has_no_best_and_is_planted_once(store: SqliteStore) -> None:
    record = RunRecord(name="bare", task="t", seed=0, steps=1, grid=GridSize(2, 3), identity={}, created=0.0)
    store.open_run(record)
    assert (store.best("bare"), store.starter("bare"), len(store.archive("bare"))) == (None, None, 0)
    assert store.kept_releases("bare", 2) == {0}
    with pytest.raises(StoreError, match="planted already"):
        store.plant(RUN, Archive(), {})


def test_an_unknown_run_is_an_error_that_names_it(store: SqliteStore) -> None:
    for question in (store.state, store.archive, store.run):
        with pytest.raises(StoreError, match="'nowhere'"):
            question("nowhere")


def test_a_rollout_comes_back_exactly(store: SqliteStore) -> None:
    written = [rollout(0, 1, 2), rollout(0, 0, 1, reward=2.5)]
    assert [store.record(RUN, each) for each in written] == [True, True]
    assert store.rollouts(RUN, 0) == written[::-1]


def test_the_first_report_at_a_coordinate_wins(store: SqliteStore) -> None:
    first = rollout(0, 0, 0, reward=2.0)
    assert store.record(RUN, first)
    assert not store.record(RUN, rollout(0, 0, 0, reward=9.0))
    assert store.rollouts(RUN, 0) == [first]


def test_a_second_release_is_refused(store: SqliteStore) -> None:
    store.record(RUN, rollout(0, 0, 0))
    with pytest.raises(SecondRelease, match=r"release 1, but this grid holds release 0"):
        store.record(RUN, rollout(0, 0, 1, release=1))
    assert len(store.rollouts(RUN, 0)) == 1


@pytest.mark.parametrize("place", [(1, 0, 0), (0, 2, 0), (0, 0, 3), (0, -1, 0)])
def test_a_rollout_outside_the_grid_in_hand_is_refused(store: SqliteStore, place: tuple[int, int, int]) -> None:
    with pytest.raises(StoreError):
        store.record(RUN, rollout(*place, release=0))


def test_begin_wants_the_full_grid_of_the_current_step(store: SqliteStore, tmp_path: Path) -> None:
    archive, path = store.archive(RUN), batch_path(store, tmp_path)
    with pytest.raises(StoreError, match="holds no rollout"):
        store.begin(RUN, 0, archive, path, {})
    store.record(RUN, rollout(0, 0, 0))
    with pytest.raises(StoreError, match="holds 1 rollouts of release 0"):
        store.begin(RUN, 0, archive, path, {})
    with pytest.raises(StoreError, match="not at step 1"):
        store.begin(RUN, 1, archive, path, {})
    assert store.state(RUN) == Ready(0, Release(0)) and store.steps(RUN) == []


def test_begin_makes_the_step_pending_once(store: SqliteStore, tmp_path: Path) -> None:
    fill(store)
    archive, path = grown(store), batch_path(store, tmp_path)
    store.begin(RUN, 0, archive, path, {"tttd/reward_mean": 3.0})
    assert store.state(RUN) == Pending(0, Release(0), path, {"tttd/reward_mean": 3.0})
    with pytest.raises(StoreError, match="pending"):
        store.begin(RUN, 0, archive, path, {})
    assert not store.record(RUN, rollout(0, 0, 0, reward=9.0)), "its coordinate is taken"


def test_the_archive_comes_back_as_it_was_kept(store: SqliteStore, tmp_path: Path) -> None:
    fill(store)
    kept = grown(store)
    store.begin(RUN, 0, kept, batch_path(store, tmp_path), {})
    loaded = store.archive(RUN)
    assert list(loaded) == list(kept) and loaded.expansions == kept.expansions == 6
    assert len(loaded) == 2 + 2 * 2
    for archive in (kept, loaded):
        archive.record_group(0, [Child(program="x = 'new'", reward=2.5, step=1)], 3)
        archive.prune(10, 2)
    assert list(loaded) == list(kept), "whole-life pruning must not depend on a reload"


def test_commit_goes_on_to_the_next_step_and_release(store: SqliteStore, tmp_path: Path) -> None:
    finish_step(store, tmp_path)
    assert store.state(RUN) == Ready(1, release(tmp_path, 1))
    (row,) = store.steps(RUN)
    assert (row.phase, row.release, row.metrics["train/loss"], row.proof) == ("committed", 0, 0.5, proof(1))
    assert releases(tmp_path) == [(0, -1, ""), (1, 0, "load-1")]
    assert store.rollouts(RUN, 0) == [], "the batch file holds the samples of a committed step"


def test_no_step_is_committed_twice_or_unpended(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="ready"):
        store.commit(RUN, 0, release(tmp_path, 1), proof(1), {})
    finish_step(store, tmp_path)
    with pytest.raises(StoreError, match="not at step 0"):
        store.commit(RUN, 0, release(tmp_path, 1), proof(1), {})
    assert len(releases(tmp_path)) == 2


@pytest.mark.parametrize(("number", "proved"), [(2, 2), (0, 0), (1, 0)])
def test_a_commit_takes_the_next_release_and_its_own_proof(
    store: SqliteStore, tmp_path: Path, number: int, proved: int
) -> None:
    fill(store)
    store.begin(RUN, 0, grown(store), batch_path(store, tmp_path), {})
    with pytest.raises(StoreError, match="cannot end with release"):
        store.commit(RUN, 0, release(tmp_path, number), proof(proved), {})
    assert isinstance(store.state(RUN), Pending)


def test_the_newest_releases_and_the_best_programs_are_kept(store: SqliteStore, tmp_path: Path) -> None:
    assert store.kept_releases(RUN, 2) == {0}
    finish_step(store, tmp_path, 0)
    finish_step(store, tmp_path, 1)
    best = store.best(RUN)
    assert best is not None and best.step == 0
    assert store.kept_releases(RUN, 1) == {0, 2}
    assert store.kept_releases(RUN, 2) == {0, 1, 2}


def test_a_run_tells_its_state_its_starter_and_its_best(store: SqliteStore, tmp_path: Path) -> None:
    finish_step(store, tmp_path)
    store.set_state(RUN, "failed", "no space")
    info = store.run(RUN)
    assert (info.state, info.reason, info.step, info.release, info.seed) == ("failed", "no space", 1, 1, 2**63 - 1)
    assert info.starter is not None and info.starter.objective == 0.5
    assert info.best is not None and info.best.reward == 4.0 and info.best.step == 0
    assert store.runs() == [info]
    assert store.identity(RUN) == {"grid.groups": 2, "model.revision": "abc"}


def test_a_run_has_no_program_until_it_is_planted_and_is_planted_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    record = RunRecord(name="new", task="t", seed=0, steps=1, grid=GridSize(1, 3), identity={}, created=1.0)
    store.open_run(record)
    assert (store.run("new").best, len(store.archive("new"))) == (None, 0)
    archive = Archive()
    archive.seed(1, program="x = 0\n", reward=1.0)
    store.plant("new", archive, {"model.revision": "abc"})
    assert store.identity("new") == {"model.revision": "abc"}
    with pytest.raises(StoreError, match="planted already"):
        store.plant("new", archive, {})
    store.close()


def test_nodes_are_listed_by_reward_without_the_pruned(store: SqliteStore, tmp_path: Path) -> None:
    finish_step(store, tmp_path)
    assert [node.reward for node in store.nodes(RUN)] == [4.0, 4.0, 3.0, 3.0, 1.0, 1.0]
    assert len(store.nodes(RUN, limit=3)) == 3
    assert all(node.program == "" for node in store.nodes(RUN))


def test_a_lineage_leads_through_pruned_nodes_to_the_seed(store: SqliteStore, tmp_path: Path) -> None:
    fill(store)
    archive = store.archive(RUN)
    (middle,) = archive.record_group(0, [Child(program="x = 'middle'", reward=2.0, step=0)], 3)
    (leaf,) = archive.record_group(middle.id, [Child(program="x = 'leaf'", reward=9.0, step=0)], 3)
    archive.prune(3, 2)
    store.begin(RUN, 0, archive, batch_path(store, tmp_path), {})
    found, above = store.node(RUN, leaf.id), store.node(RUN, middle.id)
    assert found is not None and above is not None
    assert (found.lineage, found.program, found.pruned, above.pruned) == ([middle.id, 0], "x = 'leaf'", False, True)
    assert list(store.archive(RUN).ancestors(store.archive(RUN).nodes[leaf.id])) == []
    assert store.node(RUN, 99) is None


def test_runs_do_not_see_each_other(store: SqliteStore, tmp_path: Path) -> None:
    open_run(store, "other")
    finish_step(store, tmp_path)
    assert store.state("other") == Ready(0, Release(0))
    assert len(store.archive("other")) == 2 and store.steps("other") == []


def test_a_state_dir_can_be_moved(store: SqliteStore, tmp_path: Path) -> None:
    finish_step(store, tmp_path)
    fill(store, 1)
    store.begin(RUN, 1, grown(store, 1), batch_path(store, tmp_path, 1), {})
    store.close()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.move(tmp_path / "archive.sqlite3", moved)
    store = SqliteStore(moved)
    assert store.state(RUN) == Pending(1, release(moved, 1), batch_path(store, moved, 1), {})
    store.close()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "archive.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="newer tttdd"):
        SqliteStore(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive.sqlite3").write_text("not a database " * 100)
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path)


def columns(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """Name, type, default and so on of every table's columns."""
    with closing(sqlite3.connect(file)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(row[1:] for row in database.execute(f"PRAGMA table_info({name})")) for name in tables}


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_database_of_every_earlier_version_is_brought_up_to_date_and_goes_on(tmp_path: Path, version: int) -> None:
    with closing(sqlite3.connect(tmp_path / "archive.sqlite3")) as old:
        old.executescript((SCHEMAS / f"{version}.sql").read_text())
        old.executescript((SCHEMAS / f"{version}-rows.sql").read_text())
    store = SqliteStore(tmp_path)
    runs = [(run.run, run.state, run.step, run.release) for run in store.runs()]
    assert runs == [("first", "finished", 1, 1), (RUN, "running", 1, 1)]
    assert len(store.rollouts(RUN, 1)) == 1 and len(store.archive(RUN)) == 6
    for place in missing(1, 2, 3, {Coordinate(1, 0, 0)}):
        assert store.record(RUN, rollout(1, place.group, place.rollout))
    store.begin(RUN, 1, grown(store, 1), batch_path(store, tmp_path, 1), {})
    store.commit(RUN, 1, release(tmp_path, 2), proof(2), {})
    store.close()
    SqliteStore(tmp_path / "new").close()
    assert columns(tmp_path / "archive.sqlite3") == columns(tmp_path / "new/archive.sqlite3")


def test_a_database_is_copied_as_it_was_before_it_is_changed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "archive.sqlite3")) as old:
        old.executescript((SCHEMAS / "1.sql").read_text())
    before = columns(tmp_path / "archive.sqlite3")
    for _ in range(2):
        SqliteStore(tmp_path).close()
    assert columns(tmp_path / "archive-schema1.sqlite3") == before
    assert columns(tmp_path / "archive.sqlite3") != before


def test_there_is_a_schema_of_every_earlier_version() -> None:
    assert sorted(path.name for path in SCHEMAS.glob("?.sql")) == [f"{n}.sql" for n in range(1, SCHEMA_VERSION)]


def test_a_damaged_row_is_an_error_that_names_the_column(store: SqliteStore, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "archive.sqlite3")
    connection.execute("UPDATE nodes SET certificate = '{broken'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="certificate"):
        store.archive(RUN)


COLUMNS = (
    "runs.identity runs.reason steps.metrics steps.proof steps.batch nodes.certificate nodes.output programs.source"
    " rollouts.verdict"
)
DAMAGES = [
    "UPDATE {} SET {} = {}".format(*column.split("."), value)
    for column in COLUMNS.split()
    for value in ("'{broken'", "CAST(x'ff00fe' AS TEXT)")
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_read_as_far_as_it_can_be_or_is_a_store_error(
    store: SqliteStore, tmp_path: Path, damage: str
) -> None:
    finish_step(store, tmp_path)
    fill(store, 1)
    with closing(sqlite3.connect(tmp_path / "archive.sqlite3")) as database:
        database.execute(damage)
        database.commit()
    assert [run.run for run in store.runs()] == [RUN]
    for read in (
        store.identity,
        store.steps,
        store.nodes,
        store.state,
        store.archive,
        lambda run: store.rollouts(run, 1),
        lambda run: store.node(run, 2),
    ):
        with suppress(StoreError):
            read(RUN)


def test_a_damaged_page_is_a_store_error(store: SqliteStore, tmp_path: Path) -> None:
    finish_step(store, tmp_path)
    store.close()
    file = tmp_path / "archive.sqlite3"
    data = bytearray(file.read_bytes())
    data[8192:] = b"\xa5" * (len(data) - 8192)
    file.write_bytes(data)
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path).runs()


def test_what_is_recorded_is_durable_by_setting(store: SqliteStore) -> None:
    settings = [store._database.all(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")]
    assert settings == ["wal", 2, 1]


WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2])))
from test_store import *
store = SqliteStore(Path(sys.argv[1]))
for place in missing(0, 2, 3, set()):
    store.record(RUN, rollout(0, place.group, place.rollout, reward=2.0 + place.rollout))
    print(place.group, place.rollout, flush=True)
"""
DIES_IN_BEGIN = """
from tttdd.adapters import inserts
save = inserts.archive
inserts.archive = lambda *a: (save(*a), os.kill(os.getpid(), 9))
store.begin(RUN, 0, grown(store), batch_path(store, Path(sys.argv[1])), {})
"""


def writer(code: str, tmp_path: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_writer_killed_while_recording_loses_nothing_that_it_reported(store: SqliteStore, tmp_path: Path) -> None:
    with writer(WRITER, tmp_path) as process:
        assert process.stdout is not None
        reported = [tuple(map(int, line.split())) for line in itertools.islice(process.stdout, 3)]
        process.kill()
    store.close()
    reopened = SqliteStore(tmp_path)
    kept = [(r.coordinate.group, r.coordinate.rollout) for r in reopened.rollouts(RUN, 0)]
    assert kept[:3] == reported == [(0, 0), (0, 1), (0, 2)]
    ((rows,),) = reopened._database.all("SELECT count(*) FROM rollouts")
    assert rows == len(kept), "a rollout without its sample is half a transaction"
    reopened.close()


def test_a_writer_killed_inside_begin_leaves_the_step_ready(store: SqliteStore, tmp_path: Path) -> None:
    with writer(WRITER + DIES_IN_BEGIN, tmp_path) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert store.state(RUN) == Ready(0, Release(0))
    assert [node.visits for node in store.archive(RUN)] == [0, 0]
    store.begin(RUN, 0, grown(store), batch_path(store, tmp_path), {})
    assert [node.visits for node in store.archive(RUN)][:2] == [3, 3]


def test_a_full_disk_undoes_the_whole_change(store: SqliteStore) -> None:
    ((pages,),) = store._database.all("PRAGMA page_count")
    store._database.one(f"PRAGMA max_page_count = {pages}")
    large = msgspec.structs.replace(rollout(0, 0, 0), program="x" * 1_000_000)
    with pytest.raises(OSError, match="No space left on device"):
        store.record(RUN, large)
    store._database.one("PRAGMA max_page_count = 1000000")
    assert store.rollouts(RUN, 0) == [] and store.record(RUN, large)


def returned(place: Coordinate) -> Rollout:
    """A valid rollout that returned its own place."""
    plain = rollout(place.step, place.group, place.rollout, reward=2.0 + place.rollout)
    json = str([place.step, place.group, place.rollout])
    verdict = msgspec.structs.replace(plain.verdict, artifact=json, artifact_sha256=json)
    return msgspec.structs.replace(plain, verdict=verdict)


def test_what_programs_returned_is_kept_for_the_step_in_hand_and_then_for_living_nodes(
    store: SqliteStore, tmp_path: Path
) -> None:
    places = missing(0, 2, 3, set())
    for place in places:
        store.record(RUN, returned(place))
    texts = [str([place.step, place.group, place.rollout]) for place in places]
    assert [store.artifact(RUN, text) for text in texts] == texts
    assert {r.verdict.artifact for r in store.rollouts(RUN, 0)} == {""}
    archive = store.archive(RUN)
    for group in range(2):
        found = [r for r in store.rollouts(RUN, 0) if r.coordinate.group == group]
        sha256s = [r.verdict.artifact_sha256 for r in found]
        children = [
            Child(program=r.program or "", reward=r.verdict.reward, step=0, artifact_sha256=sha256)
            for r, sha256 in zip(found, sha256s, strict=True)
        ]
        archive.record_group(group, children, 3)
    archive.prune(10, 1)
    store.begin(RUN, 0, archive, None, {})
    living = ["[0, 0, 2]", "[0, 1, 2]"]
    assert [node.artifact_sha256 for node in store.archive(RUN) if not node.seed] == living
    assert [text for text in texts if store.artifact(RUN, text)] == living


def test_a_step_without_a_proof_is_committed_under_its_own_release_only(store: SqliteStore, tmp_path: Path) -> None:
    fill(store)
    store.begin(RUN, 0, grown(store), None, {})
    assert store.state(RUN) == Pending(0, Release(0), None, {})
    with pytest.raises(StoreError, match="cannot end with release 1"):
        store.commit(RUN, 0, release(tmp_path, 1), None, {})
    store.commit(RUN, 0, Release(0), None, {})
    assert store.state(RUN) == Ready(1, Release(0)) and releases(tmp_path) == [(0, -1, "")]


def test_a_damaged_artifact_is_a_store_error(store: SqliteStore, tmp_path: Path) -> None:
    store.record(RUN, returned(Coordinate(0, 0, 0)))
    with closing(sqlite3.connect(tmp_path / "archive.sqlite3")) as database:
        database.execute("UPDATE artifacts SET json = x'00ff'")
        database.commit()
    with pytest.raises(StoreError, match="json"):
        store.artifact(RUN, "[0, 0, 0]")


def test_a_run_that_cannot_be_written_down_leaves_no_folder(store: SqliteStore, tmp_path: Path) -> None:
    ((pages,),) = store._database.all("PRAGMA page_count")
    store._database.one(f"PRAGMA max_page_count = {pages}")
    record = RunRecord(
        name="new", task="t", seed=0, steps=1, grid=GridSize(1, 3), identity={"task": "x" * 1_000_000}, created=1.0
    )
    with pytest.raises(OSError, match="No space left on device"):
        store.open_run(record)
    assert not (tmp_path / "runs/new").exists() and store.is_free("new")
