"""``torchvision`` and ``timm``: their models at the smallest inputs they take; ``timm`` ones are narrowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.entry import TIMM, TORCHVISION, Catalogue, image

_NAMES: list[torch.library.Library] = []
VISION, TIMM_MODELS = Catalogue(TORCHVISION), Catalogue(TIMM)


def without_kernels() -> None:
    """torchvision's own kernels want the CUDA build of torch; its Python part only wants two names to exist."""
    if torch.version.cuda or _NAMES:
        return
    _NAMES.append(torch.library.Library("torchvision", "FRAGMENT"))
    for name in ("nms", "qnms"):
        _NAMES[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def from_torchvision(name: str, side: int, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    without_kernels()
    import torchvision

    return torchvision.models.get_model(name, weights=None, **options), (image(side),)


def from_timm(name: str, side: int, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    without_kernels()
    import timm

    return timm.create_model(name, pretrained=False, num_classes=7, **options), (image(side),)


TEN = {"num_classes": 7}
AUXILIARY = {**TEN, "aux_logits": False, "init_weights": False}
for name, side, options in (
    ("resnet18", 32, TEN),
    ("resnet50", 32, TEN),
    ("resnext50_32x4d", 32, TEN),
    ("vgg13_bn", 32, TEN),
    ("alexnet", 64, TEN),
    ("densenet121", 32, TEN),
    ("mobilenet_v2", 32, TEN),
    ("mobilenet_v3_small", 32, TEN),
    ("mobilenet_v3_large", 32, TEN),
    ("mnasnet0_5", 32, TEN),
    ("efficientnet_b0", 32, TEN),
    ("efficientnet_v2_s", 32, TEN),
    ("shufflenet_v2_x0_5", 32, TEN),
    ("regnet_x_400mf", 32, TEN),
    ("regnet_y_400mf", 32, TEN),
    ("squeezenet1_1", 32, TEN),
    ("googlenet", 32, AUXILIARY),
    ("inception_v3", 80, AUXILIARY),
    ("convnext_tiny", 32, TEN),
    ("swin_t", 32, TEN),
    ("swin_v2_t", 32, TEN),
    ("maxvit_t", 224, TEN),
):
    VISION.add(
        name, "image classifier", lambda name=name, side=side, options=options: from_torchvision(name, side, options), floor=0.9
    )
VISION.add("vit_b_16 (narrow)", "image classifier", lambda: _narrow_vit(), floor=0.9)
for name in ("fcn_resnet50", "deeplabv3_resnet50", "lraspp_mobilenet_v3_large"):
    options = {"weights_backbone": None, "num_classes": 5}
    VISION.add(name, "segmentation", lambda name=name, options=options: from_torchvision(name, 32, options), floor=0.9)
for name, side in (("r3d_18", 16), ("mc3_18", 16), ("r2plus1d_18", 16)):
    VISION.add(
        name,
        "video",
        lambda name=name, side=side: (from_torchvision(name, side, TEN)[0], (torch.randn(2, 3, 4, side, side),)),
        floor=0.9,
    )


def _narrow_vit() -> tuple[nn.Module, Any]:
    without_kernels()
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=4, hidden_dim=16, mlp_dim=12, num_classes=7), (
        image(16),
    )


VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 4}
for name, side, options in (
    ("vit_tiny_patch16_224", 16, VIT),
    ("deit_tiny_distilled_patch16_224", 16, VIT),
    ("eva02_tiny_patch14_224", 16, VIT),
    ("beit_base_patch16_224", 16, VIT),
    ("cait_xxs24_224", 16, VIT),
    ("xcit_nano_12_p16_224", 32, {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 4}),
    ("mixer_s32_224", 32, {"img_size": 32}),
    ("gmlp_ti16_224", 32, {"img_size": 32}),
    ("resmlp_12_224", 32, {"img_size": 32}),
    ("convnext_atto", 32, {"depths": (1, 1, 1, 1), "dims": (6, 8, 10, 12)}),
    ("convnextv2_atto", 32, {"depths": (1, 1, 1, 1), "dims": (6, 8, 10, 12)}),
    ("swin_tiny_patch4_window7_224", 32, {"img_size": 32, "window_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4)}),
    ("pvt_v2_b0", 32, {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 20, 24), "num_heads": (1, 2, 4, 8)}),
    (
        "twins_svt_small",
        32,
        {"img_size": 32, "depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 4, 8), "wss": (2, 2, 2, 1)},
    ),
    ("edgenext_xx_small", 32, {}),
    ("mobilevit_xxs", 32, {}),
    ("mobilevitv2_050", 32, {}),
    ("efficientformer_l1", 224, {}),
    ("levit_128s", 224, {}),
    ("repvgg_a0", 32, {}),
    ("resnest14d", 32, {}),
    ("seresnet18", 32, {}),
    ("skresnet18", 32, {}),
    ("res2net50_14w_8s", 32, {}),
    ("gcresnet50t", 32, {}),
    ("dla34", 32, {}),
    ("hrnet_w18_small", 32, {}),
    ("cspresnet50", 32, {}),
    ("dpn48b", 32, {}),
    ("vovnet39a", 32, {}),
    ("ghostnet_050", 32, {}),
    ("tf_efficientnet_b0", 32, {}),
    ("mobilenetv4_conv_small", 32, {}),
    ("fbnetc_100", 32, {}),
    ("rexnet_100", 32, {}),
    ("hardcorenas_a", 32, {}),
    ("nf_resnet50", 32, {}),
    ("resnetv2_50", 32, {}),
    ("botnet26t_256", 64, {"img_size": 64}),
    ("halonet26t", 256, {}),
    ("coatnet_nano_rw_224", 32, {"img_size": 32}),
    ("inception_v4", 96, {}),
    ("xception41", 32, {}),
    ("focalnet_tiny_srf", 32, {}),
    ("davit_tiny", 32, {}),
    ("efficientvit_b0", 32, {}),
    ("tiny_vit_5m_224", 224, {}),
    ("starnet_s1", 32, {}),
    ("fasternet_t0", 32, {}),
):
    TIMM_MODELS.add(
        name, "image classifier", lambda name=name, side=side, options=options: from_timm(name, side, options), floor=0.5
    )
