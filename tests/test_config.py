"""What is refused at load: the message names file, line and field, and says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tttdd import config

MODEL = '[model]\npath = "m"\n'


def refusal(tmp_path: Path, text: str) -> str:
    file = tmp_path / "tttdd.toml"
    file.write_text(text)
    with pytest.raises(config.ConfigError) as caught:
        config.load(file)
    return str(caught.value).removeprefix(str(file))


@pytest.mark.parametrize("name", ["tttdd.toml", "tttdd.cpu.toml"])
def test_the_shipped_configurations_load(name: str) -> None:
    assert config.load(config.shipped(name)).grid.rollouts >= 3


def test_the_reference_configuration_is_the_papers() -> None:
    reference = config.load(config.shipped("tttdd.toml"))
    assert (reference.grid.groups, reference.grid.rollouts, reference.grid.steps) == (8, 64, 50)
    trainer = reference.trainer
    assert (trainer.rank, trainer.alpha, trainer.lr, trainer.betas, trainer.eps) == (32, 32, 4e-5, (0.9, 0.95), 1e-8)
    assert (trainer.kl_coef, reference.search.c, reference.search.max_nodes, reference.search.children_kept) == (
        0.1,
        1.0,
        1000,
        2,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL + "[grid]\ngroop = 3\n", ":4: unknown key 'grid.groop'; did you mean 'groups'?"),
        (MODEL + "[grud]\nx = 1\n", ":3: unknown key 'grud'; did you mean 'grid'?"),
        (MODEL + "[search]\nzzz = 1\n", ":4: unknown key 'search.zzz'; known keys: c, max_nodes, children_kept, count"),
        (MODEL + '[grid]\n\ngroups = "many"\n', ":5: grid.groups: Expected `int`, got `str`"),
        (MODEL + "[grid]\nrollouts = 2\n", ":4: grid.rollouts: 2 rollouts a group are too few"),
        (MODEL + "[grid]\ngroups = 900\nrollouts = 900\n", ":3: grid: 900 x 900 rollouts a step are too many"),
        (MODEL + "[grid]\ngroups = 9\n[search]\nmax_nodes = 9\n", ":6: search.max_nodes: 9 nodes leave no room"),
        (
            MODEL + "[engine]\ncontext_length = 1000\n[sampling]\nmax_new_tokens = 1000\n",
            ":6: sampling.max_new_tokens: 1000 new tokens do not fit into engine.context_length = 1000",
        ),
        ("[model]\n", ":1: model: exactly one of path and package"),
        (MODEL + 'package = "x"\n', ":1: model: exactly one of path and package"),
        ("", ":1: configuration: Object missing required field `model`"),
        (MODEL + '[trainer]\ntargets = ["q_proj", "w"]\n', ":4: trainer.targets: unknown w"),
        (MODEL + '[engine]\nbackend = "torch"\n', ":1: model.dtype: bfloat16"),
        (MODEL + '[judges]\ndocker_runtime = "runsc"\n', ":4: judges.docker_runtime: of no use with"),
        (MODEL + "[judges]\nmemory_gib = 0.1\n", ":4: judges.memory_gib"),
        (MODEL + "[engine]\ndevices = []\n", ":4: engine.devices: none is named"),
        (MODEL + "[engine]\ndevices = [1, 0, 1]\n", ":4: engine.devices: GPU 1 is named 2 times"),
        (MODEL + "[trainer]\ndevices = [-1]\n", ":4: trainer.devices: -1 is no GPU"),
        (MODEL + "[trainer]\ndevices = [0]\ntensor_parallel = 2\n", ":5: trainer.tensor_parallel: 2 does not divide"),
        (MODEL + "[trainer]\ndevices = []\ntensor_parallel = 2\n", ":5: trainer.tensor_parallel: 2 does not divide"),
        (MODEL + "[trainer]\nlr = inf\n", ":4: trainer.lr: "),
        (MODEL + "[trainer]\nbetas = [0.9, 1.0]\n", ":4: trainer.betas"),
        (
            MODEL + "[sampling]\nthinking_budget = 25995\n",
            ":4: sampling.thinking_budget: 25995 tokens of thinking leave less than 512 of sampling.max",
        ),
        (
            MODEL + '[sampling]\nthinking_budget = 100\n[prompt]\nstyle = "completion"\n',
            ":4: sampling.thinking_budget: needs sampling.thinking = true",
        ),
        (
            MODEL + "[tracking.wandb]\nenable = true\n",
            ":4: unknown key 'tracking.wandb.enable'; did you mean 'enabled'?",
        ),
        (
            MODEL + '[tracking.wandb]\nenabled = true\napi_key = "hunter2"\n',
            ":5: unknown key 'tracking.wandb.api_key'; secrets are no part of this file: set WANDB_API_KEY in the ",
        ),
        (MODEL + '[tracking.wandb]\nmode = "shared"\n', ":4: tracking.wandb.mode: Invalid enum value 'shared'"),
        (MODEL + '[tracking.wandb]\nproject = "a/b"\n', ":4: tracking.wandb.project: Expected `str` matching regex"),
        (MODEL + '[notify]\ncommand = ["tell-me"]\n', ":4: notify.command: 'tell-me' is no absolute path"),
        (MODEL + '[notify]\ncommand = ["/no/tell-me", "x"]\n', ":4: notify.command: there is no file /no/tell-me"),
        (MODEL + '[notify]\ncommand = ["/bin/true", "a\\u0000b"]\n', ":4: notify.command: it holds a null character"),
        (MODEL + '[tracking.wandb]\ndirectory = "a\\u0000b"\n', ":4: tracking.wandb.directory: it holds a null"),
        (MODEL + '[notify]\ncommand = ["/etc/passwd"]\n', ":4: notify.command: /etc/passwd may not be executed"),
        (MODEL + '[notify]\n\nevents = ["won"]\n', ":5: notify.events: Invalid enum value 'won'"),
        ("[model\n", ": not valid TOML: "),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


def test_a_secret_in_the_file_is_not_repeated(tmp_path: Path) -> None:
    for line in ('api_key = "hunter2"', 'entity = 7\napi_key = "hunter2"', 'WANDB_TOKEN = "hunter2"'):
        assert "hunter2" not in refusal(tmp_path, f"{MODEL}[tracking.wandb]\n{line}\n")


@pytest.mark.parametrize("name", ["tttdd.toml", "tttdd.cpu.toml"])
def test_what_the_shipped_configurations_suggest_loads(name: str, tmp_path: Path) -> None:
    program = tmp_path / "tell-me"
    program.touch(mode=0o700)
    text = re.sub(r"^# (\[|\w+ = )", r"\1", config.shipped(name).read_text(), flags=re.MULTILINE)
    (tmp_path / name).write_text(text.replace("/usr/local/bin/tell-me", str(program)))
    suggested = config.load(tmp_path / name)
    assert suggested.tracking.wandb.enabled and suggested.notify.command == (str(program),)


def test_tracking_is_off_and_no_command_is_run_by_default() -> None:
    plain = config.load(config.shipped("tttdd.cpu.toml"))
    assert (plain.tracking.wandb.enabled, plain.notify.command) == (False, ())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"none.toml: cannot read the configuration: No such file"):
        config.load(tmp_path / "none.toml")


def test_bytes_that_are_not_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(config.ConfigError, match="not valid TOML: not UTF-8 at byte 0"):
        config.load(tmp_path / "x.toml")


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTTDD_CONFIG", "/somewhere/x.toml")
    assert config.default_path() == Path("/somewhere/x.toml")
