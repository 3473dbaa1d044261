"""Tiny Hugging Face models with deformable attention, with random weights and without any download."""

import torch
import transformers as t
from torch import nn

SIZE = 64  # of the images


def _resnet(kind: type = t.ResNetConfig) -> dict:
    stages = ["stage2", "stage3", "stage4"]
    config = kind(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1] * 4, layer_type="basic", out_features=stages
    )
    return dict(backbone_config=config)


def _swin(first: int = 1) -> dict:
    stages = [f"stage{n}" for n in range(first, 5)]
    sizes = dict(image_size=SIZE, embed_dim=8, depths=[1] * 4, num_heads=[2] * 4, window_size=4, drop_path_rate=0.0)
    return dict(backbone_config=t.SwinConfig(**sizes, out_features=stages))


def _hgnet(first: int = 2) -> dict:
    config = t.HGNetV2Config(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1] * 4, stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 12, 16], stage_mid_channels=[4, 4, 4, 4], stage_out_channels=[8, 12, 16, 20],
        stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4, stage_light_block=[False] * 4,
        stage_downsample=[False, True, True, True], stage_kernel_size=[3] * 4,
        out_features=[f"stage{n}" for n in range(first, 5)],
    )  # fmt: skip
    return dict(backbone_config=config)


def _vit(kind: type, **options) -> dict:
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=SIZE, out_indices=[1, 2])
    return dict(backbone_config=kind(**sizes, **options))


# What several networks have in common.
_DETR = dict(
    d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=7, dropout=0.0, decoder_n_points=2,
)  # fmt: skip
_BERT = t.BertConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=2000,
    max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
_DINO = _DETR | dict(text_config=_BERT, encoder_n_points=2, max_text_len=16, fusion_droppath=0.0, num_feature_levels=4)
_RT = dict(
    encoder_hidden_dim=16, encoder_in_channels=[12, 16, 20], encoder_ffn_dim=16, encoder_attention_heads=2, d_model=16,
    num_queries=7, decoder_in_channels=[16, 16, 16], decoder_ffn_dim=16, decoder_n_points=2, decoder_layers=2,
    decoder_attention_heads=2, num_denoising=0, num_labels=3, hidden_expansion=0.5,
)  # fmt: skip
_FINE = _RT | dict(decoder_n_points=[3, 6, 3], lqe_hidden_dim=8, max_num_bins=8)
_LW = dict(
    d_model=16, decoder_ffn_dim=16, decoder_layers=2, decoder_self_attention_heads=2, decoder_cross_attention_heads=2,
    num_queries=7, group_detr=2, c2f_num_blocks=1, decoder_n_points=2, num_labels=3,
)  # fmt: skip
_MASKS = dict(
    hidden_dim=32, encoder_feedforward_dim=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2,
    dim_feedforward=16, num_queries=7, num_labels=3,
)  # fmt: skip
_ONEFORMER = _MASKS | dict(
    conv_dim=32, mask_dim=32, query_dec_layers=1, task_seq_len=8, text_encoder_width=32, text_encoder_num_layers=1,
    text_encoder_vocab_size=50, dropout=0.0, text_encoder_context_length=8, is_training=False,
)  # fmt: skip
_CLIP = t.CLIPTextConfig(
    hidden_size=16, intermediate_size=16, projection_dim=16, num_hidden_layers=1, num_attention_heads=2,
    vocab_size=50, max_position_embeddings=16, bos_token_id=0, eos_token_id=49,
)  # fmt: skip
_OMDET = dict(
    text_config=_CLIP, image_size=SIZE, text_projection_in_dim=16, text_projection_out_dim=16,
    task_encoder_hidden_dim=16, class_embed_dim=16, num_queries=7, encoder_hidden_dim=32,
    encoder_in_channels=[16, 32, 64], vision_features_channels=[32, 32, 32], encoder_attention_heads=2,
    encoder_dim_feedforward=16, decoder_hidden_dim=32, decoder_num_heads=2, decoder_num_layers=2,
    decoder_dim_feedforward=16, decoder_num_points=2, apply_layernorm_after_vision_backbone=False,
)  # fmt: skip
_LAYOUT = _RT | dict(
    mask_feature_channels=[8, 8], x4_feat_dim=8, num_prototypes=4, gp_dropout_value=0.0, global_pointer_head_size=4
)
_LW_VIT = dict(pretrain_image_size=SIZE, num_windows=4, window_block_indices=[0])

FAMILIES = {
    "deformable_detr": (t.DeformableDetrForObjectDetection, _resnet() | _DETR | dict(encoder_n_points=3, num_labels=3)),
    "rt_detr": (t.RTDetrForObjectDetection, _resnet(t.RTDetrResNetConfig) | _RT),
    "rt_detr_v2": (t.RTDetrV2ForObjectDetection, _resnet(t.RTDetrResNetConfig) | _RT),
    "d_fine": (t.DFineForObjectDetection, _hgnet() | _FINE),
    "deimv2": (t.Deimv2ForObjectDetection, _hgnet() | _FINE),
    "mask2former": (
        t.Mask2FormerForUniversalSegmentation, _swin() | _MASKS | dict(feature_size=32, mask_feature_size=32),
    ),
    "oneformer": (t.OneFormerForUniversalSegmentation, _swin() | _ONEFORMER),
    "grounding_dino": (t.GroundingDinoForObjectDetection, _swin() | _DINO),
    "mm_grounding_dino": (t.MMGroundingDinoForObjectDetection, _swin() | _DINO),
    "omdet_turbo": (t.OmDetTurboForObjectDetection, _swin(first=2) | _OMDET),
    "lw_detr": (
        t.LwDetrForObjectDetection, _vit(t.LwDetrViTConfig, **_LW_VIT) | _LW | dict(projector_scale_factors=[2.0, 0.5]),
    ),
    "rf_detr": (
        t.RfDetrForObjectDetection, _vit(t.RfDetrDinov2Config, patch_size=16, num_windows=2) | _LW | dict(dropout=0.0),
    ),
    "pp_doclayout_v3": (t.PPDocLayoutV3ForObjectDetection, _hgnet(1) | _LAYOUT),
}  # fmt: skip


def _clear_caches(model, _) -> None:
    """Clear OmDet-Turbo's caches of text embeddings, which keep a graph that was freed."""
    for lru in (model.language_cache_class, model.language_cache_prompt):
        lru.cache.clear()
        lru.current_load = 0


def inputs(family: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, SIZE, SIZE, generator=generator)
    if family in ("grounding_dino", "mm_grounding_dino"):
        ids = torch.tensor([[101, 7, 8, 1012, 9, 1012, 102]] * 2)
        return dict(pixel_values=images, input_ids=ids)
    if family == "omdet_turbo":
        words = torch.randint(1, 49, (4, 5), generator=generator)
        tasks = torch.randint(1, 49, (2, 5), generator=generator)
        return dict(
            pixel_values=images, classes_input_ids=words, classes_attention_mask=torch.ones_like(words),
            tasks_input_ids=tasks, tasks_attention_mask=torch.ones_like(tasks), classes_structure=torch.tensor([2, 2]),
        )  # fmt: skip
    if family == "oneformer":
        return dict(pixel_values=images, task_inputs=torch.randint(0, 50, (2, 8), generator=generator))
    return dict(pixel_values=images)


def build(family: str, **options) -> nn.Module:
    """Return a network in evaluation mode whose points are not at whole pixels, where derivatives jump."""
    torch.manual_seed(0)
    kind, sizes = FAMILIES[family]
    model = kind(kind.config_class(**sizes | options)).eval()
    if family == "omdet_turbo":
        model.register_forward_pre_hook(_clear_caches)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Initial weights are so small that nothing depends on the attention.
            if parameter.dim() > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            elif name.endswith("weight"):
                parameter.normal_(1, 0.1)
            if "sampling_offsets" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model
