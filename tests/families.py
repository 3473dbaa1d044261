"""Tiny networks of transformers with deformable attention, with random weights and without any download."""

import torch
import transformers as t
from torch import nn

SIZE = 64  # of the images


def _resnet(kind: type = t.ResNetConfig) -> t.PretrainedConfig:
    return kind(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1] * 4, layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip


def _swin(first: int = 1) -> t.SwinConfig:
    return t.SwinConfig(
        image_size=SIZE, embed_dim=8, depths=[1] * 4, num_heads=[2] * 4, window_size=4, drop_path_rate=0.0,
        out_features=[f"stage{n}" for n in range(first, 5)],
    )  # fmt: skip


# What the descendants of RT-DETR have in common.
_RT = dict(
    encoder_hidden_dim=16, encoder_in_channels=[12, 16, 20], encoder_ffn_dim=16, encoder_attention_heads=2, d_model=16,
    num_queries=7, decoder_in_channels=[16, 16, 16], decoder_ffn_dim=16, decoder_n_points=2, decoder_layers=2,
    decoder_attention_heads=2, num_denoising=0, num_labels=3, hidden_expansion=0.5,
)  # fmt: skip


def deformable_detr(**options) -> nn.Module:
    config = t.DeformableDetrConfig(
        backbone_config=_resnet(), d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=7, num_labels=3, dropout=0.0,
        encoder_n_points=3, decoder_n_points=2, **options,
    )  # fmt: skip
    return t.DeformableDetrForObjectDetection(config)


def rt_detr() -> nn.Module:
    return t.RTDetrForObjectDetection(t.RTDetrConfig(backbone_config=_resnet(t.RTDetrResNetConfig), **_RT))


def rt_detr_v2(**options) -> nn.Module:
    return t.RTDetrV2ForObjectDetection(
        t.RTDetrV2Config(backbone_config=_resnet(t.RTDetrResNetConfig), **_RT, **options)
    )


def _hgnet(first: int = 2) -> t.HGNetV2Config:
    return t.HGNetV2Config(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1] * 4, stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 12, 16], stage_mid_channels=[4, 4, 4, 4], stage_out_channels=[8, 12, 16, 20],
        stage_num_blocks=[1] * 4, stage_numb_of_layers=[1] * 4, stage_light_block=[False] * 4,
        stage_downsample=[False, True, True, True], stage_kernel_size=[3] * 4,
        out_features=[f"stage{n}" for n in range(first, 5)],
    )  # fmt: skip


_FINE = _RT | dict(decoder_n_points=[3, 6, 3], lqe_hidden_dim=8, max_num_bins=8)


def d_fine(**options) -> nn.Module:
    return t.DFineForObjectDetection(t.DFineConfig(backbone_config=_hgnet(), **_FINE | options))


def deimv2() -> nn.Module:
    return t.Deimv2ForObjectDetection(t.Deimv2Config(backbone_config=_hgnet(), **_FINE))


def mask2former() -> nn.Module:
    config = t.Mask2FormerConfig(
        backbone_config=_swin(), feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=16,
        encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=16, num_queries=7, num_labels=3,
    )  # fmt: skip
    return t.Mask2FormerForUniversalSegmentation(config)


def oneformer() -> nn.Module:
    config = t.OneFormerConfig(
        backbone_config=_swin(), conv_dim=32, mask_dim=32, hidden_dim=32, encoder_feedforward_dim=16, encoder_layers=1,
        decoder_layers=2, num_attention_heads=2, dim_feedforward=16, num_queries=7, num_labels=3, query_dec_layers=1,
        task_seq_len=8, text_encoder_width=32, text_encoder_num_layers=1, text_encoder_vocab_size=50, dropout=0.0,
        text_encoder_context_length=8, is_training=False,
    )  # fmt: skip
    return t.OneFormerForUniversalSegmentation(config)


def _text() -> t.BertConfig:
    return t.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=2000,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def _dino(config: type, model: type) -> nn.Module:
    return model(
        config(
            backbone_config=_swin(), text_config=_text(), d_model=32, encoder_layers=1, decoder_layers=2, num_queries=7,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, dropout=0.0,
            encoder_n_points=2, decoder_n_points=2, max_text_len=16, fusion_droppath=0.0, num_feature_levels=4,
        )
    )  # fmt: skip


def grounding_dino() -> nn.Module:
    return _dino(t.GroundingDinoConfig, t.GroundingDinoForObjectDetection)


def mm_grounding_dino() -> nn.Module:
    return _dino(t.MMGroundingDinoConfig, t.MMGroundingDinoForObjectDetection)


def omdet_turbo() -> nn.Module:
    text = t.CLIPTextConfig(
        hidden_size=16, intermediate_size=16, projection_dim=16, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=50, max_position_embeddings=16, bos_token_id=0, eos_token_id=49,
    )  # fmt: skip
    config = t.OmDetTurboConfig(
        backbone_config=_swin(first=2), text_config=text, image_size=SIZE, text_projection_in_dim=16,
        text_projection_out_dim=16, task_encoder_hidden_dim=16, class_embed_dim=16, num_queries=7,
        encoder_hidden_dim=32, encoder_in_channels=[16, 32, 64], vision_features_channels=[32, 32, 32],
        encoder_attention_heads=2, encoder_dim_feedforward=16, decoder_hidden_dim=32, decoder_num_heads=2,
        decoder_num_layers=2, decoder_dim_feedforward=16, decoder_num_points=2,
        apply_layernorm_after_vision_backbone=False,
    )  # fmt: skip
    model = t.OmDetTurboForObjectDetection(config)
    model.register_forward_pre_hook(_clear_caches)  # of text embeddings, which keep a graph that was freed
    return model


def _clear_caches(model, _) -> None:
    for lru in (model.language_cache_class, model.language_cache_prompt):
        lru.cache.clear()
        lru.current_load = 0


def lw_detr() -> nn.Module:
    backbone = t.LwDetrViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=SIZE, pretrain_image_size=SIZE,
        num_windows=4, out_indices=[1, 2], window_block_indices=[0],
    )  # fmt: skip
    config = t.LwDetrConfig(
        backbone_config=backbone, d_model=16, decoder_ffn_dim=16, decoder_layers=2, decoder_self_attention_heads=2,
        decoder_cross_attention_heads=2, num_queries=7, group_detr=2, projector_scale_factors=[2.0, 0.5],
        c2f_num_blocks=1, decoder_n_points=2, num_labels=3,
    )  # fmt: skip
    return t.LwDetrForObjectDetection(config)


def rf_detr() -> nn.Module:
    backbone = t.RfDetrDinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=SIZE, patch_size=16, num_windows=2,
        out_indices=[1, 2],
    )  # fmt: skip
    config = t.RfDetrConfig(
        backbone_config=backbone, d_model=16, decoder_ffn_dim=16, decoder_layers=2, decoder_self_attention_heads=2,
        decoder_cross_attention_heads=2, num_queries=7, group_detr=2, c2f_num_blocks=1, decoder_n_points=2,
        num_labels=3, dropout=0.0,
    )  # fmt: skip
    return t.RfDetrForObjectDetection(config)


def pp_doclayout_v3() -> nn.Module:
    config = t.PPDocLayoutV3Config(
        backbone_config=_hgnet(1), **_RT, mask_feature_channels=[8, 8], x4_feat_dim=8, num_prototypes=4,
        gp_dropout_value=0.0, global_pointer_head_size=4,
    )  # fmt: skip
    return t.PPDocLayoutV3ForObjectDetection(config)


FAMILIES = {
    f.__name__: f
    for f in (
        deformable_detr, rt_detr, rt_detr_v2, d_fine, deimv2, mask2former, oneformer, grounding_dino, mm_grounding_dino,
        omdet_turbo, lw_detr, rf_detr, pp_doclayout_v3,
    )
}  # fmt: skip


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
    model = FAMILIES[family](**options).eval()
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
