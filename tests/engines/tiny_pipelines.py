"""Diffusers pipelines small enough for a test: real classes, random weights, saved as folders.

Nothing is downloaded: the tokenizer's vocabulary is made here.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

__all__ = [
    "controlnet", "dance_diffusion", "dit", "flux", "lora", "sd3", "sdxl", "stable_audio", "stable_diffusion", "wan",
    "z_image",
]  # fmt: skip

_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789 ,.!?'"]


def _tokenizer(folder: Path, length: int = 77):
    """CLIP's, with letters for words."""
    from transformers import CLIPTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    words = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=length, pad_token="<|endoftext|>"
    )


def _t5_tokenizer(length: int = 512):
    """T5's, with letters for words."""
    from transformers import T5Tokenizer

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary = [*special, ("\u2581", -1.0), *((letter, -2.0) for letter in _LETTERS)]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=length)


def _qwen_tokenizer():
    """Qwen's, with bytes for words."""
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    words = [*bytes_to_unicode().values(), "<|endoftext|>"]
    tokenizer = Qwen2Tokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


def _text_encoder(vocabulary: int, kind: str = "CLIPTextModel"):
    import transformers

    torch.manual_seed(1)
    config = transformers.CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=77, bos_token_id=0, eos_token_id=vocabulary - 1, pad_token_id=vocabulary - 1,
        projection_dim=32,
    )  # fmt: skip
    return getattr(transformers, kind)(config).eval()


def _t5_encoder(vocabulary: int, kind: str = "T5EncoderModel", width: int = 32):
    import transformers

    torch.manual_seed(4)
    config = getattr(transformers, kind.replace("EncoderModel", "Config"))(
        vocab_size=vocabulary, d_model=width, d_kv=8, d_ff=37, num_layers=2, num_heads=4
    )
    return getattr(transformers, kind)(config).eval()


def _vae(channels: int = 4, **config):
    from diffusers import AutoencoderKL

    torch.manual_seed(2)
    return AutoencoderKL(
        block_out_channels=(16, 16), in_channels=3, out_channels=3, latent_channels=channels, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **config,
    ).eval()  # fmt: skip


_BLOCKS = {
    "block_out_channels": (16, 32), "layers_per_block": 1, "in_channels": 4, "norm_num_groups": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "attention_head_dim": 8,
}  # fmt: skip


def _unet(**config):
    from diffusers import UNet2DConditionModel

    torch.manual_seed(3)
    return UNet2DConditionModel(
        **_BLOCKS, up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), out_channels=4, sample_size=16,
        **{"cross_attention_dim": 32, **config},
    ).eval()  # fmt: skip


def _ddim():
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
    )


def _flow(**config):
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(**config)


def _saved(folder: Path, pipeline) -> Path:
    pipeline.save_pretrained(folder)
    return folder


def _stable_diffusion_parts(folder: Path):
    tokenizer = _tokenizer(folder / "tokenizer")
    return {
        "tokenizer": tokenizer, "text_encoder": _text_encoder(len(tokenizer)), "vae": _vae(), "unet": _unet(),
        "scheduler": _ddim(), "safety_checker": None, "feature_extractor": None, "requires_safety_checker": False,
    }  # fmt: skip


def stable_diffusion(folder: Path) -> Path:
    """A text-to-image pipeline of 32 x 32 pixels, latents of 16 x 16."""
    from diffusers import StableDiffusionPipeline

    return _saved(folder, StableDiffusionPipeline(**_stable_diffusion_parts(folder)))


def controlnet(folder: Path) -> Path:
    """The same, with a picture of 32 x 32 that leads it."""
    from diffusers import ControlNetModel, StableDiffusionControlNetPipeline

    torch.manual_seed(5)
    net = ControlNetModel(**_BLOCKS, cross_attention_dim=32, conditioning_embedding_out_channels=(16, 32)).eval()
    for block in (*net.controlnet_down_blocks, net.controlnet_mid_block, net.controlnet_cond_embedding.conv_out):
        torch.nn.init.normal_(block.weight, std=0.2)  # they begin as zeros, which would lead nowhere
    return _saved(folder, StableDiffusionControlNetPipeline(**_stable_diffusion_parts(folder), controlnet=net))


def sdxl(folder: Path) -> Path:
    """Two text encoders, and conditions on the size in a mapping of tensors."""
    from diffusers import StableDiffusionXLPipeline

    tokenizer = _tokenizer(folder / "tokenizer")
    unet = _unet(
        cross_attention_dim=64, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=32 + 6 * 8, use_linear_projection=True,
    )  # fmt: skip
    pipeline = StableDiffusionXLPipeline(
        tokenizer=tokenizer, tokenizer_2=tokenizer, text_encoder=_text_encoder(len(tokenizer)),
        text_encoder_2=_text_encoder(len(tokenizer), "CLIPTextModelWithProjection"), vae=_vae(), unet=unet,
        scheduler=_ddim(), add_watermarker=False,
    )  # fmt: skip
    return _saved(folder, pipeline)


def flux(folder: Path) -> Path:
    """A transformer over packed latents, with position ids and guidance as a number per row."""
    from diffusers import FluxPipeline, FluxTransformer2DModel

    tokenizer, second = _tokenizer(folder / "tokenizer"), _t5_tokenizer()
    torch.manual_seed(3)
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=True,
    ).eval()  # fmt: skip
    pipeline = FluxPipeline(
        tokenizer=tokenizer, text_encoder=_text_encoder(len(tokenizer)), tokenizer_2=second,
        text_encoder_2=_t5_encoder(len(second)), vae=_vae(4, shift_factor=0.1), transformer=transformer,
        scheduler=_flow(),
    )  # fmt: skip
    return _saved(folder, pipeline)


def sd3(folder: Path) -> Path:
    """A transformer over plain latents, and three text encoders, the last of which one may leave out."""
    from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline

    tokenizer, third = _tokenizer(folder / "tokenizer"), _t5_tokenizer()
    torch.manual_seed(3)
    transformer = SD3Transformer2DModel(
        sample_size=16, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=64, pooled_projection_dim=64, out_channels=4,
    ).eval()  # fmt: skip
    clip = _text_encoder(len(tokenizer), "CLIPTextModelWithProjection")
    pipeline = StableDiffusion3Pipeline(
        tokenizer=tokenizer, text_encoder=clip, tokenizer_2=tokenizer, text_encoder_2=clip, tokenizer_3=third,
        text_encoder_3=_t5_encoder(len(third), width=64), vae=_vae(4, shift_factor=0.1), transformer=transformer,
        scheduler=_flow(),
    )  # fmt: skip
    return _saved(folder, pipeline)


def z_image(folder: Path) -> Path:
    """A transformer that takes lists of tensors, one per row, of texts as long as they are."""
    from diffusers import ZImagePipeline, ZImageTransformer2DModel
    from transformers import Qwen3Config, Qwen3Model

    tokenizer = _qwen_tokenizer()
    torch.manual_seed(3)
    transformer = ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=16,
        axes_dims=[8, 4, 4], axes_lens=[256, 32, 32],
    ).eval()  # fmt: skip
    for token in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.ones_(token)  # they are made of whatever was in memory
    encoder = Qwen3Model(
        Qwen3Config(
            hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            vocab_size=len(tokenizer), max_position_embeddings=512,
        )
    ).eval()  # fmt: skip
    pipeline = ZImagePipeline(
        tokenizer=tokenizer, text_encoder=encoder, vae=_vae(4, shift_factor=0.1), transformer=transformer,
        scheduler=_flow(),
    )  # fmt: skip
    return _saved(folder, pipeline)


def dit(folder: Path) -> Path:
    """Of classes, not texts."""
    from diffusers import DiTPipeline, DiTTransformer2DModel

    torch.manual_seed(3)
    transformer = DiTTransformer2DModel(
        sample_size=16, num_layers=2, patch_size=4, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, num_embeds_ada_norm=1000,
    ).eval()  # fmt: skip
    return _saved(folder, DiTPipeline(transformer=transformer, vae=_vae(), scheduler=_ddim()))


def wan(folder: Path) -> Path:
    """Films: latents of five dimensions."""
    from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel

    tokenizer = _t5_tokenizer()
    torch.manual_seed(3)
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16,
        text_dim=32, freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    ).eval()  # fmt: skip
    pipeline = WanPipeline(
        tokenizer=tokenizer, text_encoder=_t5_encoder(len(tokenizer), "UMT5EncoderModel"), vae=vae,
        transformer=transformer, scheduler=_flow(shift=7.0),
    )  # fmt: skip
    return _saved(folder, pipeline)


def stable_audio(folder: Path) -> Path:
    """Sound of a text, two channels, 800 samples per second."""
    from diffusers import (
        AutoencoderOobleck,
        EDMDPMSolverMultistepScheduler,
        StableAudioDiTModel,
        StableAudioPipeline,
        StableAudioProjectionModel,
    )  # fmt: skip

    tokenizer = _t5_tokenizer(25)
    torch.manual_seed(3)
    transformer = StableAudioDiTModel(
        sample_size=64, in_channels=3, num_layers=2, attention_head_dim=4, num_key_value_attention_heads=2,
        out_channels=3, cross_attention_dim=4, time_proj_dim=8, global_states_input_dim=8, cross_attention_input_dim=4,
    ).eval()  # fmt: skip
    vae = AutoencoderOobleck(
        encoder_hidden_size=6, downsampling_ratios=[2, 4], decoder_channels=3, decoder_input_channels=3,
        audio_channels=2, channel_multiples=[2, 4], sampling_rate=800,
    ).eval()  # fmt: skip
    projection = StableAudioProjectionModel(text_encoder_dim=32, conditioning_dim=4, min_value=0, max_value=32)
    pipeline = StableAudioPipeline(
        tokenizer=tokenizer, text_encoder=_t5_encoder(len(tokenizer)), projection_model=projection.eval(), vae=vae,
        transformer=transformer, scheduler=EDMDPMSolverMultistepScheduler(solver_order=2),
    )  # fmt: skip
    return _saved(folder, pipeline)


def dance_diffusion(folder: Path) -> Path:
    """Sound of nothing: no prompt, no guidance."""
    from diffusers import DanceDiffusionPipeline, IPNDMScheduler, UNet1DModel

    torch.manual_seed(3)
    unet = UNet1DModel(
        block_out_channels=(32, 64), extra_in_channels=64, sample_size=512, sample_rate=800, in_channels=2,
        out_channels=2, flip_sin_to_cos=True, use_timestep_embedding=False, time_embedding_type="fourier",
        mid_block_type="UNetMidBlock1D", down_block_types=("DownBlock1DNoSkip", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1DNoSkip"),
    ).eval()  # fmt: skip
    return _saved(folder, DanceDiffusionPipeline(unet=unet, scheduler=IPNDMScheduler()))


def lora(folder: Path, seed: int) -> Path:
    """An adapter for the unet of ``stable_diffusion``."""
    from diffusers import StableDiffusionPipeline
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    unet = _unet()
    torch.manual_seed(seed)
    unet.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v", "conv1"], init_lora_weights="gaussian"))
    for name, weights in unet.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=get_peft_model_state_dict(unet))
    return folder
