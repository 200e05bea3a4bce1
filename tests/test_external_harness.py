"""Two harnesses of examples/external_harness against one real daemon with a tiny model: OpenAI's client, and curl.

Both give their model's digits the sum as reward, so what they reported can be computed again from the stored answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.test_end_to_end import Daemon
from tttdd.harness_protocol import GridInfo
from tttdd.protocol import GridSize, NodeInfo, RunInfo, StepRow, Submit

EXAMPLES = Path(__file__).resolve().parent.parent / "examples/external_harness"
GRID = GridSize(2, 3)
PLACES = [(group, rollout) for group in range(GRID.groups) for rollout in range(GRID.rollouts)]
ASKED = 12
"""Tokens of a completion: fewer would hardly differ."""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("d"))
    daemon.start()
    yield daemon
    daemon.stop()


def submit(daemon: Daemon, name: str, steps: int) -> None:
    daemon.client.post("/v1/runs", Submit(task="digits", kind="external", steps=steps, grid=GRID, name=name), RunInfo)


def type_in(daemon: Daemon, *command: str) -> str:
    environment = os.environ | {"TTTDD_SOCKET": str(daemon.folder / "s")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(daemon.folder / 'log').read_text()}"
    return done.stdout


def digits(answer: str) -> float:
    return float(sum(int(character) for character in answer if character in "0123456789"))


def assert_whole(daemon: Daemon, name: str, steps: int) -> None:
    """Every coordinate once, of the release before its step, with the reward that its harness gave; every release
    proved."""
    run = daemon.run(name)
    assert (run.state, run.step, run.release) == ("finished", steps, steps), run.reason
    found = daemon.rows(
        "SELECT step, grid_group, rollout, release, source, json_extract(verdict, '$.reward') FROM rollouts"
        f" JOIN programs ON program = sha256 WHERE run = '{name}' ORDER BY step, grid_group, rollout"
    )
    assert [row[:4] for row in found] == [(step, *place, step) for step in range(steps) for place in PLACES]
    assert [reward for *_, reward in found] == [digits(str(answer)) for *_, answer, _ in found]
    assert len({reward for *_, reward in found}) > 1, "rewards that are all the same teach nothing"
    for row in daemon.client.get(f"/v1/runs/{name}/steps", list[StepRow]):
        assert row.phase == "committed" and row.proof is not None and row.proof.release == row.step + 1
        assert row.proof.gap < 1e-4 < row.proof.trainer_shift
        assert abs(row.metrics["train/sampler_trainer_gap"]) < 1e-4
        assert row.metrics["train/grad_norm"] > 0


def test_a_grid_by_openais_client_is_trained_published_and_proved_and_then_the_next(daemon: Daemon) -> None:
    submit(daemon, "python", steps=2)
    reported = stream_one(daemon, "python")
    said = type_in(daemon, sys.executable, str(EXAMPLES / "harness.py"), "python", "--max-tokens", str(ASKED))
    assert "python is finished after 2 steps" in said
    assert_whole(daemon, "python", steps=2)
    best = daemon.client.get("/v1/runs/python/best", NodeInfo)
    assert best.reward == digits(best.program) >= reported


def stream_one(daemon: Daemon, run: str) -> float:
    """A streamed completion, reported at the last coordinate: the harness then finds all but that missing."""
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(daemon.folder / "s"))) as http:
        model = openai.OpenAI(
            base_url="http://tttdd/v1", api_key="none", default_headers={"x-tttdd-run": run}, http_client=http
        )
        chunks = list(
            model.chat.completions.create(
                model=run, messages=[{"role": "user", "content": "Digits."}], max_tokens=ASKED, stream=True
            )
        )
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        last = chunks[-1].to_dict()
        assert len(chunks) > 3 and last["receipt"] and last["release"] == 0
        size = {"groups_per_step": GRID.groups, "rollouts_per_group": GRID.rollouts}
        report = {
            "score": digits(answer),
            "references": [last["receipt"]],
            "metadata": {"step": 0, "group": 1, "rollout": 2, **size},
        }
        model.post(f"/runs/{run}/reports", body=report, cast_to=object)
        with pytest.raises(openai.ConflictError) as refused:
            model.post(f"/runs/{run}/reports", body=report, cast_to=object)
        assert "used" in refused.value.response.text
        assert refused.value.response.headers["x-should-retry"] == "false", "its client would ask again, and again"
    grid = daemon.client.get(f"/v1/runs/{run}/grid", GridInfo)
    assert [(place.group, place.rollout) for place in grid.missing] == PLACES[:-1]
    return digits(answer)


def test_a_grid_by_curl_is_trained_published_and_proved(daemon: Daemon) -> None:
    submit(daemon, "curl", steps=1)
    assert "curl is finished after 1 steps" in type_in(daemon, "bash", str(EXAMPLES / "harness.sh"), "curl")
    assert_whole(daemon, "curl", steps=1)


def test_a_harness_of_a_run_that_was_cancelled_ends(daemon: Daemon) -> None:
    submit(daemon, "gone", steps=1)
    daemon.client.post("/v1/runs/gone/cancel", None, RunInfo)
    assert "gone is cancelled" in type_in(daemon, sys.executable, str(EXAMPLES / "harness.py"), "gone")
