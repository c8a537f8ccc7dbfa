"""Decoder-only language models of ``transformers``: every kind of attention, position code, gating, tying and routing."""

from __future__ import annotations

from typing import Any

from torch import nn

from zoo.entry import TRANSFORMERS, WIDTH, WORDS, Catalogue, words

CATALOGUE = Catalogue(TRANSFORMERS)

ROWS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
COMMON = {
    **ROWS,
    "hidden_size": WIDTH,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = {**COMMON, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "experts_implementation": "batched_mm"}
BATCHED = "experts_implementation=batched_mm: the default grouped_mm sorts tokens by expert"


def build(kind: str, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM

    implementation = options.pop("experts_implementation", None)
    config = AutoConfig.for_model(kind, **options)
    more = {} if implementation is None else {"experts_implementation": implementation}
    return AutoModelForCausalLM.from_config(config, **more), words()


def decoder(name: str, family: str, options: dict[str, Any], kind: str = "", **facts: Any) -> None:
    CATALOGUE.add(name, family, lambda: build(kind or name, dict(options)), **{"outputs": ("logits",), "floor": 0.9, **facts})


def experts(name: str, options: dict[str, Any], **facts: Any) -> None:
    decoder(name, "decoder, experts", {**EXPERTS, **options}, **{"note": BATCHED, **facts})


LEARNED = "decoder, learned positions"
decoder("gpt2", LEARNED, {**ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 32})
decoder(
    "gpt_neo",
    LEARNED,
    {
        **ROWS,
        "hidden_size": WIDTH,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 12,
        "max_position_embeddings": 32,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 3,
    },
)
decoder("opt", LEARNED, {**COMMON, "ffn_dim": 12, "word_embed_proj_dim": WIDTH})
decoder("biogpt", LEARNED, COMMON)
decoder("gpt_bigcode", "decoder, MQA", {**ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 32, "multi_query": True})
decoder("xglm", "decoder, sinusoidal", {**ROWS, "d_model": WIDTH, "ffn_dim": 12, "num_layers": 2, "attention_heads": 4}, floor=0.8)
decoder("openai-gpt", LEARNED, {**ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 32})
decoder(
    "ctrl", "decoder, sinusoidal", {**ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 32, "dff": 12}, floor=0.8
)

ALIBI = "decoder, ALiBi"
decoder("bloom", ALIBI, {**ROWS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4})
decoder("mpt", ALIBI, {**ROWS, "d_model": WIDTH, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2, "max_seq_len": 32})

PARTIAL = "decoder, partial RoPE"
decoder("gpt_neox", PARTIAL, {**COMMON, "rotary_pct": 0.5})
decoder("gptj", PARTIAL, {**ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "n_inner": 12, "n_positions": 32})
decoder("codegen", PARTIAL, {**ROWS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "rotary_dim": 2, "n_inner": 12, "n_positions": 32})
decoder("phi", PARTIAL, {**COMMON, "partial_rotary_factor": 0.5})
decoder("stablelm", PARTIAL, {**GROUPED, "partial_rotary_factor": 0.5})
decoder("persimmon", PARTIAL, {**COMMON, "partial_rotary_factor": 0.5})
decoder("nemotron", PARTIAL, {**GROUPED, "partial_rotary_factor": 0.5})
decoder("glm", PARTIAL, {**GROUPED, "partial_rotary_factor": 0.5, "head_dim": 4})
decoder("glm4", PARTIAL, {**GROUPED, "partial_rotary_factor": 0.5, "head_dim": 4})

PARALLEL = "decoder, parallel block"
decoder(
    "falcon (MQA)", PARALLEL, {**COMMON, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}, "falcon"
)
decoder("falcon (groups)", PARALLEL, {**COMMON, "num_kv_heads": 2, "new_decoder_architecture": True}, "falcon")
decoder(
    "falcon (ALiBi)",
    ALIBI,
    {**COMMON, "alibi": True, "multi_query": False, "new_decoder_architecture": False, "parallel_attn": False},
    "falcon",
)
decoder("cohere", PARALLEL, GROUPED)
decoder("cohere (qk-norm)", PARALLEL, {**GROUPED, "use_qk_norm": True}, "cohere")
decoder("cohere2", PARALLEL, {**GROUPED, "sliding_window": 3})

ROTARY = "decoder, GQA + RoPE"
decoder("llama", ROTARY, GROUPED)
decoder("llama (MHA, tied)", "decoder, RoPE", {**COMMON, "tie_word_embeddings": True}, "llama")
decoder("llama (MQA)", "decoder, MQA", {**COMMON, "num_key_value_heads": 1}, "llama")
decoder("llama (biases)", ROTARY, {**GROUPED, "attention_bias": True, "mlp_bias": True}, "llama")
decoder("mistral", "decoder, sliding window", {**GROUPED, "sliding_window": 3})
decoder("qwen2", ROTARY, GROUPED)
decoder("qwen3", "decoder, qk-norm", {**GROUPED, "head_dim": 4})
decoder("gemma", ROTARY, {**GROUPED, "head_dim": 6})
decoder("gemma2", "decoder, sliding window", {**GROUPED, "head_dim": 6, "sliding_window": 3})
decoder("gemma3_text", "decoder, qk-norm", {**GROUPED, "head_dim": 6, "sliding_window": 3})
decoder("phi3", ROTARY, GROUPED)
decoder("starcoder2", ROTARY, {**GROUPED, "sliding_window": 3})
decoder("olmo", ROTARY, GROUPED)
decoder("olmo2", "decoder, qk-norm", GROUPED)
decoder("olmo3", "decoder, qk-norm", {**GROUPED, "sliding_window": 3})
decoder("granite", ROTARY, GROUPED)
decoder("smollm3", ROTARY, GROUPED)
decoder("exaone4", "decoder, qk-norm", {**GROUPED, "sliding_window": 3})
decoder("helium", ROTARY, {**GROUPED, "head_dim": 4})
decoder("apertus", "decoder, qk-norm", GROUPED)
decoder("diffllama", ROTARY, GROUPED)
decoder("bitnet", ROTARY, GROUPED)
decoder("ernie4_5", ROTARY, GROUPED)
decoder("seed_oss", ROTARY, {**GROUPED, "head_dim": 4})
decoder("nanochat", "decoder, qk-norm", GROUPED)

experts("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2})
experts("qwen2_moe", {"moe_intermediate_size": 6, "shared_expert_intermediate_size": 7, "num_experts": 3, "num_experts_per_tok": 2})
experts("qwen3_moe", {"moe_intermediate_size": 6, "num_experts": 3, "num_experts_per_tok": 2, "head_dim": 4})
experts("olmoe", {"num_experts": 3, "num_experts_per_tok": 2})
experts("granitemoe", {"num_local_experts": 3, "num_experts_per_tok": 2})
experts("phimoe", {"num_local_experts": 3, "num_experts_per_tok": 2})
experts(
    "jetmoe",
    {"num_local_experts": 3, "num_experts_per_tok": 2, "kv_channels": 4, "num_key_value_heads": 2},
    reason="a size that depends on the values of tensors",
    note="lists each expert's tokens by a count: no such graph",
)
experts("gpt_oss", {"num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 4, "sliding_window": 3})
LATENT = {
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
    "moe_intermediate_size": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
experts("deepseek_v2", {**LATENT, "n_group": 1, "topk_group": 1})
experts("deepseek_v3", {**LATENT, "n_group": 2, "topk_group": 1})
experts(
    "dots1",
    {
        "moe_intermediate_size": 6,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
)
experts(
    "glm4_moe",
    {
        "moe_intermediate_size": 6,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "head_dim": 4,
    },
)

RECURRENT = "decoder, state space"
MAMBA = {**ROWS, "hidden_size": WIDTH, "state_size": 3, "num_hidden_layers": 2, "expand": 2}
decoder("mamba", RECURRENT, {**MAMBA, "time_step_rank": 5})
decoder("falcon_mamba", RECURRENT, {**MAMBA, "time_step_rank": 5})
decoder("mamba2", RECURRENT, {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4})
decoder(
    "rwkv",
    RECURRENT,
    {
        **ROWS,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "attention_hidden_size": WIDTH,
        "intermediate_size": 12,
        "context_length": 32,
    },
)
decoder(
    "recurrent_gemma", RECURRENT, {**GROUPED, "num_hidden_layers": 3, "lru_width": WIDTH, "attention_window_size": 3, "head_dim": 4}
)
decoder(
    "jamba",
    RECURRENT,
    {
        **EXPERTS,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "mamba_d_state": 3,
        "mamba_dt_rank": 5,
        "use_mamba_kernels": False,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    note=BATCHED,
)
