"""A transformers directory as a megatron-core GPTModel, run over packed bins; whole or as one shard of several.

    config.json -> Architecture -> GPTModel (local spec, own packed attention) <- *.safetensors, part by part

    embedding -> layers (recomputed in the backward pass, if so set) -> final norm -> rows that predict -> log-probs

GPTModel's own forward is not used: it would make logits of every token.  Its layers hand `attention_mask` through to
the core attention untouched, so that is where a bin's layout travels, and they take RoPE angles as an argument, so that
samples can count on from their prompt.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tttdd.workers import weights
from tttdd.workers.architecture import Architecture, read_architecture, refuse_shards
from tttdd.workers.attention import PackedAttention, Spans
from tttdd.workers.loss import chunked_logprobs
from tttdd.workers.packing import Block, Layout
from tttdd.workers.parallel import Parallel, sparingly

with sparingly():
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

# Tensor names: T tokens of a bin, N trained tokens, D hidden size, V vocabulary (of this shard).


class LanguageModel:
    """The frozen base model.  LoRA is put around its linears by `lora.Adapters`.

    Raises ValueError for an architecture, a number of shards or a set of weights that does not fit, OSError for files
    that are missing.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, parallel: Parallel) -> None:
        self.architecture = read_architecture(folder)
        refuse_shards(self.architecture, parallel.shards.size)
        self.parallel, self.device = parallel, parallel.device
        self.recompute = True
        self.flash = self.device.type == "cuda" and dtype == torch.bfloat16
        """Whether attention runs by torch's variable-length flash kernel, which knows no other device or type."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # megatron's on defaults of its own that nobody set
            self.gpt = _build(self.architecture, dtype, parallel)
        self.gpt.requires_grad_(False).eval().to(device=self.device, dtype=dtype)  # the norms' weights are torch's own
        weights.load(folder, weights.homes(self.gpt, self.architecture, parallel.shards), parallel.shards)
        tied = self.architecture.tie_word_embeddings
        self.output_VD = self.gpt.embedding.word_embeddings.weight if tied else self.gpt.output_layer.weight

    @property
    def layers(self) -> torch.nn.ModuleList:
        return self.gpt.decoder.layers

    def logprobs(self, layout: Layout, chunk: int) -> torch.Tensor:
        """Log-probs [N], float32, of the bin's trained tokens."""
        hidden_TD = self._hidden(layout)
        hidden_ND = hidden_TD.index_select(0, layout.rows_N.to(self.device))
        targets_N = layout.targets_N.to(self.device)
        return chunked_logprobs(hidden_ND, self.output_VD, targets_N, chunk, self.parallel.shards)

    def _hidden(self, layout: Layout) -> torch.Tensor:
        """Final hidden states [T, D] of a bin."""
        positions = layout.positions_T.to(self.device)
        hidden = self.gpt.embedding(input_ids=layout.tokens_T.to(self.device)[None], position_ids=positions[None])
        given = {"attention_mask": self._sight(layout.blocks), "rotary_pos_emb": self._angles(positions)}
        for layer in self.layers:
            # Not megatron's own recompute: behind a frozen embedding that gives the adapters no gradient.  And to the
            # end of the layer: one of megatron 0.19 that is stopped early holds on to what it has computed so far.
            if self.recompute and torch.is_grad_enabled():
                hidden, _ = checkpoint(
                    layer, hidden, use_reentrant=False, preserve_rng_state=False, early_stop=False, **given
                )
            else:
                hidden, _ = layer(hidden, **given)
        return self.gpt.decoder.final_layernorm(hidden)[:, 0]

    def _sight(self, blocks: tuple[Block, ...]) -> tuple[Block, ...] | Spans:
        """What the attention needs to know of a bin; one object for all layers."""
        return Spans(blocks, self.device) if self.flash else blocks

    def _angles(self, positions_T: torch.Tensor) -> torch.Tensor:
        """RoPE angles [T, 1, 1, head_dim]."""
        half = torch.outer(positions_T.float(), self.gpt.rotary_pos_emb.inv_freq.to(self.device))
        return torch.cat((half, half), -1)[:, None, None, :]


def _build(shape: Architecture, dtype: torch.dtype, parallel: Parallel) -> Any:
    """Unfilled, on the device; all fusions are off, as they need CUDA extensions."""
    config = TransformerConfig(
        num_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_key_value_heads,
        kv_channels=shape.head_dim,
        tensor_model_parallel_size=parallel.shards.size,
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
        use_cpu_initialization=parallel.device.type == "cpu",
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
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,  # pyright: ignore[reportArgumentType]  # annotated int, used as a number
    )
