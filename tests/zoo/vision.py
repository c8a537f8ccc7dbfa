"""Vision models of ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo.decoders import COMMON
from zoo.encoders import build
from zoo.entry import TRANSFORMERS, WIDTH, Catalogue, image, tokens

CATALOGUE = Catalogue(TRANSFORMERS)


def vision(
    name: str,
    options: Mapping[str, Any],
    side: int = 16,
    *,
    kind: str = "",
    family: str = "vision transformer",
    head: str = "ModelForImageClassification",
    inputs: Callable[[], Any] | None = None,
    **facts: Any,
) -> None:
    CATALOGUE.add(
        name,
        family,
        lambda: build(kind or name, head, dict(options), inputs or (lambda: {"pixel_values": image(side)})),
        **{"outputs": ("logits",) if head != "Model" else ("last_hidden_state",), "floor": 0.9, **facts},
    )


BODY = {
    "hidden_size": WIDTH,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
vision("vit", BODY)
vision("deit", BODY, head="Model")
vision("beit", {**BODY, "use_relative_position_bias": True, "use_absolute_position_embeddings": False})
vision("data2vec-vision", {**BODY, "use_relative_position_bias": True})
vision("dinov2", {**BODY, "mlp_ratio": 2})
vision("dinov2 (SwiGLU)", {**BODY, "mlp_ratio": 2, "use_swiglu_ffn": True}, kind="dinov2")
vision("dinov2_with_registers", {**BODY, "mlp_ratio": 2, "num_register_tokens": 2})
vision("dinov3_vit", BODY, head="Model")
vision("vit_msn", BODY)
vision("ijepa", BODY)
vision("siglip", {"vision_config": BODY, "text_config": {**COMMON, "projection_size": WIDTH}})
CLIP_TEXT = {**COMMON, "projection_dim": 10, "hidden_size": 12, "intermediate_size": 14}
vision(
    "clip",
    {"vision_config": BODY, "text_config": CLIP_TEXT, "projection_dim": 10},
    family="image and text",
    head="Model",
    inputs=lambda: {"pixel_values": image(16), "input_ids": tokens()},
    outputs=("logits_per_image",),
)
vision(
    "siglip (both)",
    {"vision_config": BODY, "text_config": {**COMMON, "projection_size": WIDTH}},
    kind="siglip",
    family="image and text",
    head="Model",
    inputs=lambda: {"pixel_values": image(16), "input_ids": tokens()},
    outputs=("logits_per_image",),
)
vision(
    "blip",
    {"vision_config": BODY, "text_config": {**CLIP_TEXT, "encoder_hidden_size": WIDTH}, "projection_dim": 10},
    family="image and text",
    head="Model",
    inputs=lambda: {"pixel_values": image(16), "input_ids": tokens()},
    outputs=("logits_per_image",),
)
vision(
    "vilt",
    {**COMMON, **BODY, "num_images": -1, "max_image_length": -1},
    family="image and text",
    head="Model",
    inputs=lambda: {"pixel_values": image(16), "input_ids": tokens()},
)

WINDOWS = {
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 2,
    "image_size": 16,
    "patch_size": 2,
    "mlp_ratio": 2.0,
}
vision("swin", WINDOWS, family="windowed transformer")
vision("swinv2", WINDOWS, family="windowed transformer")
vision(
    "swin2sr",
    {
        "embed_dim": 8,
        "depths": [2],
        "num_heads": [2],
        "window_size": 2,
        "image_size": 8,
        "mlp_ratio": 2.0,
        "upscale": 2,
        "num_feat": 8,
    },
    8,
    family="windowed transformer",
    head="ModelForImageToImage",
    outputs=("reconstruction",),
)
vision(
    "focalnet",
    {
        "embed_dim": 8,
        "hidden_sizes": [8, 12],
        "depths": [1, 1],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
        "image_size": 16,
        "patch_size": 2,
        "mlp_ratio": 2.0,
    },
    family="windowed transformer",
)

STAGES = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 12],
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "num_attention_heads": [2, 3],
    "mlp_ratios": [2, 2],
}
vision("segformer", {**STAGES, "decoder_hidden_size": 10}, head="ModelForSemanticSegmentation")
vision(
    "pvt",
    {
        "num_encoder_blocks": 4,
        "depths": [1] * 4,
        "sequence_reduction_ratios": [2, 2, 1, 1],
        "hidden_sizes": [8, 12, 16, 20],
        "num_attention_heads": [1, 2, 4, 5],
        "mlp_ratios": [2] * 4,
        "image_size": 64,
    },
    64,
)
vision("pvt_v2", {**STAGES, "sr_ratios": [2, 1], "num_encoder_blocks": 2, "image_size": 16})
THREE = {
    "patch_sizes": [3] * 3,
    "patch_stride": [2] * 3,
    "patch_padding": [1] * 3,
    "mlp_ratio": [2.0] * 3,
    "attention_drop_rate": [0.0] * 3,
    "drop_rate": [0.0] * 3,
    "drop_path_rate": [0.0] * 3,
    "qkv_bias": [True] * 3,
    "qkv_projection_method": ["dw_bn"] * 3,
    "kernel_qkv": [3] * 3,
    "padding_kv": [1] * 3,
    "stride_kv": [2] * 3,
    "padding_q": [1] * 3,
    "stride_q": [1] * 3,
}
STAGES = {"embed_dim": [8, 12, 16], "depth": [1, 2, 3], "num_heads": [1, 2, 4], "cls_token": [False, False, True]}
vision("cvt", {**THREE, **STAGES}, 32)
vision(
    "levit",
    {
        "image_size": 32,
        "hidden_sizes": [8, 12, 16],
        "num_attention_heads": [2, 3, 4],
        "depths": [1, 1, 1],
        "key_dim": [4, 4, 4],
        "mlp_ratio": [2, 2, 2],
        "attention_ratio": [2, 2, 2],
    },
    32,
    head="Model",
)
vision(
    "poolformer",
    {
        "depths": [1, 1],
        "hidden_sizes": [8, 12],
        "num_encoder_blocks": 2,
        "patch_sizes": [3, 3],
        "strides": [2, 2],
        "padding": [1, 1],
        "mlp_ratio": 2.0,
    },
)
vision(
    "mobilevit",
    {
        "hidden_sizes": [8, 12, 16],
        "neck_hidden_sizes": [4, 6, 8, 10, 12, 14, 16],
        "image_size": 32,
        "num_attention_heads": 2,
        "expand_ratio": 2.0,
    },
    64,
)

CONV = "convolutional"
vision("convnext", {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "patch_size": 4}, family=CONV)
vision("convnextv2", {"hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2, "patch_size": 4}, family=CONV)
vision("resnet", {"embedding_size": 6, "hidden_sizes": [8, 16], "depths": [1, 2]}, family=CONV)
vision(
    "regnet", {"embedding_size": 6, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4, "layer_type": "y"}, family=CONV
)
vision("mobilenet_v1", {"depth_multiplier": 0.25, "min_depth": 4}, 32, family=CONV)
vision("mobilenet_v2", {"depth_multiplier": 0.25, "min_depth": 4, "depth_divisible_by": 4}, 32, family=CONV)
vision(
    "efficientnet",
    {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320, "depth_divisor": 4, "image_size": 32},
    32,
    family=CONV,
)
vision("bit", {"hidden_sizes": [32, 64], "depths": [1, 1], "embedding_size": 32, "num_groups": 8}, 32, family=CONV)
FOUR_STAGES = {"depths": [1] * 4, "num_heads": [1, 2, 2, 2], "out_features": [f"stage{number}" for number in (1, 2, 3, 4)]}
vision(
    "mask2former",
    {
        "backbone_config": {"model_type": "swin", **WINDOWS, **FOUR_STAGES},
        "hidden_dim": 32,
        "feature_size": 32,
        "mask_feature_size": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "num_attention_heads": 2,
        "num_queries": 4,
        "dim_feedforward": 12,
        "encoder_feedforward_dim": 12,
        "feature_strides": [2, 4, 8, 16],
    },
    32,
    family="segmentation",
    head="ModelForUniversalSegmentation",
    outputs=("masks_queries_logits",),
)
vision(
    "detr",
    {
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 6,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "out_features": ["stage2"],
        },
        "d_model": WIDTH,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 12,
        "decoder_ffn_dim": 11,
        "num_queries": 3,
    },
    32,
    family="detection",
    head="ModelForObjectDetection",
)
vision(
    "videomae",
    {**BODY, "num_frames": 4, "tubelet_size": 2},
    family="video",
    head="ModelForVideoClassification",
    inputs=lambda: {"pixel_values": image(16, 4 * 3).reshape(2, 4, 3, 16, 16)},
)
