"""A transformers directory as a megatron-core GPTModel, run over packed bins.

    config.json -> Architecture -> GPTModel (local spec, own packed attention) <- *.safetensors, tensor by tensor

    embedding -> layers (recomputed in the backward pass, if so set) -> final norm -> rows that predict -> log-probs

Dense Qwen3 and Llama, tied and untied; everything else is refused.  GPTModel's own forward is not used: it would make
logits of every token.  Its layers hand `attention_mask` through to the core attention untouched, so that is where a
bin's layout travels, and they take RoPE angles as an argument, so that samples can count on from their prompt.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch.utils.checkpoint import checkpoint

from tttdd.workers.attention import PackedAttention
from tttdd.workers.loss import chunked_logprobs
from tttdd.workers.packing import Layout

_compile = torch.compile
torch.compile = lambda model=None, **_: model  # megatron compiles fusions that we turn off, which loads inductor
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a page of them on missing CUDA extensions that a CPU has no use for
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
torch.compile = _compile

# Tensor names: T tokens of a bin, N trained tokens, D hidden size.


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What a dense Qwen3 or Llama is, in the words of its config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool = False


def read_architecture(folder: Path) -> Architecture:
    """Raises ValueError for a model that is not implemented, OSError for a folder without a config.json."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") not in ("qwen3", "llama"):
        raise ValueError(f"{folder}: model_type {config.get('model_type')!r} is not supported; qwen3 and llama are")
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    _refuse_variants(folder, config, rope)
    heads = config.get("num_attention_heads", 1)
    derived = {
        "head_dim": config.get("head_dim") or config.get("hidden_size", 0) // heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "rope_theta": rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
    }
    try:
        return msgspec.convert({**config, **derived}, Architecture)
    except msgspec.ValidationError as error:
        raise ValueError(f"{folder}/config.json: {error}") from None


def _refuse_variants(folder: Path, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Options of these architectures that change the computation and are not implemented here."""
    plain = {
        "RoPE scaling": rope.get("rope_type", rope.get("type", "default")) == "default",
        "a partial rotary factor": rope.get("partial_rotary_factor", 1.0) == 1.0,
        "attention biases": not config.get("attention_bias"),
        "MLP biases": not config.get("mlp_bias"),
        "sliding windows": not config.get("use_sliding_window"),
        "quantised weights": not config.get("quantization_config"),
        f"activation {config.get('hidden_act')!r}": config.get("hidden_act", "silu") == "silu",
    }
    if found := [name for name, absent in plain.items() if not absent]:
        raise ValueError(f"{folder}: not supported: {', '.join(found)}")


class LanguageModel:
    """The frozen base model.  LoRA is put around its linears by `lora.Adapters`.

    Raises ValueError for an architecture or a set of weights that does not fit, OSError for files that are missing.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.architecture = read_architecture(folder)
        self.device = device
        self.recompute = True
        _start_megatron()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # megatron's on defaults of its own that nobody set
            self.gpt = _build(self.architecture, dtype)
        _load_weights(folder, _places(self.gpt, self.architecture))
        self.gpt.requires_grad_(False).eval().to(device)
        tied = self.architecture.tie_word_embeddings
        self.output_VD = self.gpt.embedding.word_embeddings.weight if tied else self.gpt.output_layer.weight

    @property
    def layers(self) -> torch.nn.ModuleList:
        return self.gpt.decoder.layers

    def logprobs(self, layout: Layout, chunk: int) -> torch.Tensor:
        """Log-probs [N], float32, of the bin's trained tokens."""
        hidden_TD = self._hidden(layout)
        hidden_ND = hidden_TD.index_select(0, layout.rows_N.to(self.device))
        return chunked_logprobs(hidden_ND, self.output_VD, layout.targets_N.to(self.device), chunk)

    def _hidden(self, layout: Layout) -> torch.Tensor:
        """Final hidden states [T, D] of a bin."""
        positions = layout.positions_T.to(self.device)
        hidden = self.gpt.embedding(input_ids=layout.tokens_T.to(self.device)[None], position_ids=positions[None])
        given = {"attention_mask": layout.blocks, "rotary_pos_emb": self._angles(positions)}
        for layer in self.layers:
            # Not megatron's own recompute: behind a frozen embedding that gives the adapters no gradient.
            if self.recompute and torch.is_grad_enabled():
                hidden, _ = checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False, **given)
            else:
                hidden, _ = layer(hidden, **given)
        return self.gpt.decoder.final_layernorm(hidden)[:, 0]

    def _angles(self, positions_T: torch.Tensor) -> torch.Tensor:
        """RoPE angles [T, 1, 1, head_dim]."""
        half = torch.outer(positions_T.float(), self.gpt.rotary_pos_emb.inv_freq.to(self.device))
        return torch.cat((half, half), -1)[:, None, None, :]


def _start_megatron() -> None:
    """Megatron's process groups: one rank, so they never speak, but its layers ask for them."""
    if torch.distributed.is_initialized():
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the machine's own name may resolve to nothing
    store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]  # public by its documentation
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)


def _build(shape: Architecture, dtype: torch.dtype) -> Any:
    """Unfilled; all fusions are off, as they need CUDA extensions."""
    config = TransformerConfig(
        num_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_key_value_heads,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.rms_norm_eps,
        qk_layernorm=shape.model_type == "qwen3",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        use_cpu_initialization=True,
        perform_initialization=False,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
    )
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_position_embeddings,
        parallel_output=False,
        share_embeddings_and_output_weights=shape.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,  # pyright: ignore[reportArgumentType]  # annotated int, used as a number
    )


def _places(gpt: Any, shape: Architecture) -> dict[str, torch.Tensor]:
    """Where each tensor of a transformers checkpoint goes: views of the model's own parameters."""
    places = {
        "model.embed_tokens.weight": gpt.embedding.word_embeddings.weight.data,
        "model.norm.weight": gpt.decoder.final_layernorm.weight.data,
    }
    if not shape.tie_word_embeddings:
        places["lm_head.weight"] = gpt.output_layer.weight.data
    for number, layer in enumerate(gpt.decoder.layers):
        places |= {f"model.layers.{number}.{name}": place for name, place in _layer_places(layer, shape).items()}
    return places


def _layer_places(layer: Any, shape: Architecture) -> dict[str, torch.Tensor]:
    """Megatron fuses q, k and v rows by key-value head, [q..q k v], and lays gate over up."""
    attention, mlp, groups = layer.self_attention, layer.mlp, shape.num_key_value_heads
    queries = shape.num_attention_heads // groups
    fused = attention.linear_qkv.weight.data.view(groups, queries + 2, shape.head_dim, shape.hidden_size)
    gate, up = mlp.linear_fc1.weight.data.chunk(2)
    places = {
        "self_attn.q_proj.weight": fused[:, :queries],
        "self_attn.k_proj.weight": fused[:, queries],
        "self_attn.v_proj.weight": fused[:, queries + 1],
        "self_attn.o_proj.weight": attention.linear_proj.weight.data,
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": mlp.linear_fc2.weight.data,
        "input_layernorm.weight": layer.input_layernorm.weight.data,
        "post_attention_layernorm.weight": layer.pre_mlp_layernorm.weight.data,
    }
    if shape.model_type == "qwen3":
        places["self_attn.q_norm.weight"] = attention.q_layernorm.weight.data
        places["self_attn.k_norm.weight"] = attention.k_layernorm.weight.data
    return places


def _load_weights(folder: Path, places: dict[str, torch.Tensor]) -> None:
    """Fill every place from the folder's safetensors files; at most one tensor is held besides the model."""
    missing = set(places)
    for path in _weight_files(folder):
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118
                if name in places:
                    _fill(places[name], shard.get_tensor(name), f"{path}: {name}")
                    missing.discard(name)
                elif name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq"):  # copies, where present
                    raise ValueError(f"{path}: {name} has no place in this architecture")
    if missing:
        raise ValueError(f"{folder}: weights are missing: {', '.join(sorted(missing)[:5])} ({len(missing)} in all)")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [folder / "model.safetensors"]


def _fill(place: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
    if place.numel() != tensor.numel() or place.shape[-1] != tensor.shape[-1]:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(place.shape)}")
    place.copy_(tensor.view(place.shape))
