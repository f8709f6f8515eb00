"""Inputs that cannot be inferred from a signature, by architecture. Keep this list short."""

from __future__ import annotations

from collections.abc import Callable

from architectures.media import Inputs, Request
from architectures.special import audio, images, texts

SPECIAL: dict[str, Callable[[Request, Inputs], Inputs]] = {
    "blt": texts.blt,
    "csm": texts.csm,
    "decision_transformer": texts.decision,
    "deepseek_vl_hybrid": images.high_resolution,
    "dia": texts.dia,
    "dots3_note": audio.audio_chunks,
    "edgetam_video": audio.video_session,
    "esmfold2": texts.protein,
    "fun_asr_nano": audio.stacked_bank,
    "fuyu": images.fuyu,
    "gemma3n_audio": audio.mel,
    "gemma4_assistant": texts.drafter,
    "gemma4_unified_assistant": texts.drafter,
    "glm_image": images.glm_image,
    "granite4_vision": images.granite_deep,
    "granite_speech5_ctc": audio.stacked_frames,
    "idefics": images.idefics,
    "inkling2": images.inkling2,
    "inkling_mm_model": images.inkling,
    "instructblip": images.qformer,
    "instructblipvideo": images.qformer,
    "jev": texts.jev,
    "kosmos-2": images.kosmos,
    "kyutai_speech_to_text": texts.channels_of_tokens,
    "lxmert": images.lxmert,
    "minicpm_ocr": images.row_of_patches,
    "minicpmv4_6": images.row_of_patches,
    "minicpmv4_7": images.row_of_patches,
    "mllama": images.mllama,
    "molmo2": images.molmo2,
    "muse_glimmer_assistant": texts.draft,
    "musicflamingo": audio.flamingo,
    "musicgen": texts.codes_of_decoder,
    "musicgen_melody": texts.codes_of_decoder,
    "nemotron_h_omni": images.without_sound,
    "neomme": images.neomme,
    "neucodec": audio.wave_and_features,
    "omdet-turbo": images.omdet,
    "oneformer": images.oneformer,
    "perceiver": texts.perceiver,
    "pi0": images.two_cameras,
    "qwen2_audio": audio.flamingo,
    "rag": texts.retrieved,
    "sam2_video": audio.video_session,
    "sam3_tracker_video": audio.video_session,
    "sam3_video": audio.video_session,
    "seggpt": images.seggpt,
    "speecht5": audio.speecht5,
    "tapas": texts.tapas,
    "timesfm": texts.timesfm,
    "tvp": images.one_alone,
    "video_llama_3": images.merge_sizes,
    "videomt": audio.videomt,
    "xcodec2": audio.wave_and_features,
}

# Inputs that are added after the placeholders.
LATE: dict[str, Callable[[Request, Inputs], Inputs]] = {
    "colqwen2": images.colqwen2,
}

# By the name of a class with a head, in full.
CLASSES: dict[str, Callable[[Request, Inputs], Inputs]] = {
    "LongformerFor(QuestionAnswering|MultipleChoice)": texts.separated,
    "LukeForEntity.*": texts.entities,
}
