"""Encoders, and encoders with a decoder, of ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from zoo.decoders import COMMON, ROWS
from zoo.entry import TRANSFORMERS, WIDTH, Catalogue, tokens, words

CATALOGUE = Catalogue(TRANSFORMERS)


def build(kind: str, head: str, options: dict[str, Any], inputs: Callable[[], Any]) -> tuple[nn.Module, Any]:
    """head: the Auto class without "Auto", such as "ModelForMaskedLM"."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **options)
    return getattr(transformers, f"Auto{head}").from_config(config), inputs()


def encoder(
    name: str,
    options: Mapping[str, Any] = COMMON,
    *,
    kind: str = "",
    family: str = "encoder",
    head: str = "ModelForMaskedLM",
    inputs: Callable[[], Any] = words,
    **facts: Any,
) -> None:
    CATALOGUE.add(
        name,
        family,
        lambda: build(kind or name, head, dict(options), inputs),
        **{"outputs": ("logits",) if head != "Model" else ("last_hidden_state",), "floor": 0.9, **facts},
    )


encoder("bert")
encoder("bert (classifier)", kind="bert", head="ModelForSequenceClassification")
encoder("roberta")
encoder("xlm-roberta")
encoder("distilbert", {**ROWS, "dim": WIDTH, "hidden_dim": 12, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32})
encoder("albert", {**COMMON, "embedding_size": 10})
encoder("electra", {**COMMON, "embedding_size": 10})
encoder("deberta", {**COMMON, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False})
encoder(
    "deberta-v2",
    {
        **COMMON,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 4,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
)
encoder("mpnet")
encoder("modernbert", {**COMMON, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2})
encoder("esm", {**COMMON, "position_embedding_type": "rotary", "mask_token_id": 3, "token_dropout": False})
encoder("fnet")
encoder("nystromformer", {**COMMON, "num_landmarks": 5, "segment_means_seq_len": 5})
encoder("roformer", {**COMMON, "embedding_size": WIDTH})
encoder("convbert", {**COMMON, "embedding_size": WIDTH, "head_ratio": 2, "conv_kernel_size": 3, "num_groups": 1})
encoder("squeezebert", {**COMMON, "embedding_size": WIDTH})
encoder("mobilebert", {**COMMON, "embedding_size": 10, "intra_bottleneck_size": 8, "num_feedforward_networks": 2})
encoder("ibert")
encoder("xlnet", {**ROWS, "d_model": WIDTH, "n_layer": 2, "n_head": 4, "d_inner": 12}, head="ModelForCausalLM")
encoder("nomic_bert")
encoder(
    "funnel", {**ROWS, "d_model": WIDTH, "n_head": 4, "d_head": 4, "d_inner": 12, "block_sizes": [1, 1], "num_decoder_layers": 1}
)
encoder(
    "perceiver",
    {
        "vocab_size": 19,
        "num_latents": 4,
        "d_latents": 12,
        "d_model": WIDTH,
        "num_blocks": 1,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 2,
        "num_cross_attention_heads": 2,
        "max_position_embeddings": 5,
        "qk_channels": 8,
        "v_channels": 12,
    },
    inputs=lambda: {"inputs": tokens()},
)


def pair() -> dict[str, Any]:
    return {"input_ids": tokens(6), "decoder_input_ids": tokens(4)}


def both(
    name: str,
    options: Mapping[str, Any],
    *,
    kind: str = "",
    head: str = "ModelForSeq2SeqLM",
    inputs: Callable[[], Any] = pair,
    **facts: Any,
) -> None:
    encoder(name, {**ROWS, **options}, kind=kind, family="encoder and decoder", head=head, inputs=inputs, **facts)


SIDES = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 11,
    "max_position_embeddings": 32,
}
T5 = {"d_model": WIDTH, "d_kv": 3, "d_ff": 12, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 6}
both("t5", T5)
both("t5 (gated)", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, kind="t5")
both("mt5", T5)
both("umt5", T5)
both("switch_transformers", {**T5, "num_experts": 3, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1})
both("bart", SIDES)
both("mbart", SIDES)
both("pegasus", SIDES)
both("marian", {**SIDES, "decoder_vocab_size": 19})
both("blenderbot", SIDES)
both("m2m_100", SIDES)
both(
    "prophetnet",
    {
        "hidden_size": WIDTH,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
        "encoder_ffn_dim": 12,
        "decoder_ffn_dim": 11,
        "max_position_embeddings": 32,
    },
)
both(
    "led",
    {**SIDES, "attention_window": 4, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32},
    inputs=lambda: {"input_ids": tokens(8), "decoder_input_ids": tokens(4)},
)


def sound(samples: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"input_values": torch.randn(2, samples)}


def mel(bins: int, frames: int, **more: Any) -> dict[str, Any]:
    return {"input_features": torch.randn(2, bins, frames), **more}


SPEECH = "speech"
WHISPER = {**ROWS, **SIDES, "num_mel_bins": 6, "max_source_positions": 4, "max_target_positions": 32, "decoder_start_token_id": 1}
encoder("whisper", WHISPER, family=SPEECH, head="ModelForSpeechSeq2Seq", inputs=lambda: mel(6, 8, decoder_input_ids=tokens(4)))
WAVE = {
    **COMMON,
    "conv_dim": (8, 10),
    "conv_stride": (2, 2),
    "conv_kernel": (3, 3),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "output_hidden_size": WIDTH,
}
encoder("wav2vec2", WAVE, family=SPEECH, head="ModelForCTC", inputs=sound(60))
encoder(
    "wav2vec2 (layer norms)",
    {**WAVE, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
    kind="wav2vec2",
    family=SPEECH,
    head="ModelForCTC",
    inputs=sound(60),
)
encoder("hubert", WAVE, family=SPEECH, head="ModelForCTC", inputs=sound(60))
encoder("wavlm", {**WAVE, "num_buckets": 6, "max_bucket_distance": 8}, family=SPEECH, head="ModelForCTC", inputs=sound(60))
encoder("sew", {**WAVE, "squeeze_factor": 2}, family=SPEECH, head="ModelForCTC", inputs=sound(60))
encoder("unispeech", WAVE, family=SPEECH, head="ModelForCTC", inputs=sound(60))
encoder(
    "wav2vec2-conformer",
    {**WAVE, "conv_depthwise_kernel_size": 3, "position_embeddings_type": "relative"},
    family=SPEECH,
    head="ModelForCTC",
    inputs=sound(60),
)
encoder(
    "speech_to_text",
    {
        **ROWS,
        **SIDES,
        "num_conv_layers": 1,
        "conv_channels": 8,
        "conv_kernel_sizes": (3,),
        "input_feat_per_channel": 6,
        "input_channels": 1,
        "max_source_positions": 32,
        "max_target_positions": 32,
    },
    family=SPEECH,
    head="ModelForSpeechSeq2Seq",
    inputs=lambda: {"input_features": torch.randn(2, 12, 6), "decoder_input_ids": tokens(4)},
)
encoder(
    "audio-spectrogram-transformer",
    {**COMMON, "patch_size": 4, "num_mel_bins": 8, "max_length": 12, "frequency_stride": 4, "time_stride": 4},
    family=SPEECH,
    head="ModelForAudioClassification",
    inputs=lambda: {"input_values": torch.randn(2, 12, 8)},
)
encoder(
    "encodec",
    {
        "num_filters": 4,
        "hidden_size": 8,
        "codebook_dim": 8,
        "codebook_size": 8,
        "num_lstm_layers": 1,
        "upsampling_ratios": [2, 2],
        "num_residual_layers": 1,
        "kernel_size": 3,
        "last_kernel_size": 3,
        "target_bandwidths": [1.5],
        "sampling_rate": 96,
    },
    family=SPEECH,
    head="Model",
    inputs=lambda: {"input_values": torch.randn(2, 1, 32)},
    outputs=("audio_values",),
)
