"""Inputs that no signature tells, by architecture: as few as can be."""

from __future__ import annotations

from collections.abc import Callable

from architectures.media import Given, Request
from architectures.special import pictures, sounds, texts

SPECIAL: dict[str, Callable[[Request, Given], Given]] = {
    "blt": texts.blt,
    "csm": texts.csm,
    "decision_transformer": texts.decision,
    "deepseek_vl_hybrid": pictures.high_resolution,
    "dia": texts.dia,
    "dots3_note": sounds.audio_chunks,
    "edgetam_video": sounds.video_session,
    "esmfold2": texts.protein,
    "fun_asr_nano": sounds.stacked_bank,
    "fuyu": pictures.fuyu,
    "gemma3n_audio": sounds.mel,
    "gemma4_assistant": texts.drafter,
    "gemma4_unified_assistant": texts.drafter,
    "glm_image": pictures.glm_image,
    "granite4_vision": pictures.granite_deep,
    "granite_speech5_ctc": sounds.stacked_frames,
    "idefics": pictures.idefics,
    "inkling2": pictures.inkling2,
    "inkling_mm_model": pictures.inkling,
    "instructblip": pictures.qformer,
    "instructblipvideo": pictures.qformer,
    "jev": texts.jev,
    "kosmos-2": pictures.kosmos,
    "kyutai_speech_to_text": texts.channels_of_tokens,
    "lxmert": pictures.lxmert,
    "minicpm_ocr": pictures.strip_of_patches,
    "minicpmv4_6": pictures.strip_of_patches,
    "minicpmv4_7": pictures.strip_of_patches,
    "mllama": pictures.mllama,
    "molmo2": pictures.molmo2,
    "muse_glimmer_assistant": texts.draft,
    "musicflamingo": sounds.flamingo,
    "musicgen": texts.codes_of_decoder,
    "musicgen_melody": texts.codes_of_decoder,
    "nemotron_h_omni": pictures.without_sound,
    "neomme": pictures.neomme,
    "neucodec": sounds.wave_and_features,
    "omdet-turbo": pictures.omdet,
    "oneformer": pictures.oneformer,
    "perceiver": texts.perceiver,
    "pi0": pictures.two_cameras,
    "qwen2_audio": sounds.flamingo,
    "rag": texts.retrieved,
    "sam2_video": sounds.video_session,
    "sam3_tracker_video": sounds.video_session,
    "sam3_video": sounds.video_session,
    "seggpt": pictures.seggpt,
    "speecht5": sounds.speecht5,
    "tapas": texts.tapas,
    "timesfm": texts.timesfm,
    "tvp": pictures.one_alone,
    "video_llama_3": pictures.merge_sizes,
    "videomt": sounds.videomt,
    "xcodec2": sounds.wave_and_features,
}

# The same, of the inputs in which the placeholders already stand.
LATE: dict[str, Callable[[Request, Given], Given]] = {
    "colqwen2": pictures.colqwen2,
}
