"""Inputs that no signature tells, by architecture: as few as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from architectures.media import Request

Given = dict[str, Any]
BATCH, LENGTH = 2, 16


def _tokens(request: Request, *shape: int, below: int = 90) -> torch.Tensor:
    return torch.randint(3, below, shape, generator=request.generator)


def _csm(request: Request, given: Given) -> Given:
    codebooks = request.config.num_codebooks
    return {"input_ids": _tokens(request, BATCH, LENGTH, codebooks), "input_values": None}


def _decision(request: Request, given: Given) -> Given:
    config = request.config
    return {
        "states": request.normal(BATCH, LENGTH, config.state_dim),
        "actions": request.normal(BATCH, LENGTH, config.act_dim),
        "rewards": request.normal(BATCH, LENGTH, 1),
        "returns_to_go": request.normal(BATCH, LENGTH, 1),
        "timesteps": torch.arange(LENGTH).expand(BATCH, -1),
        "input_ids": None,
    }


def _codes_of_decoder(request: Request, given: Given) -> Given:
    codebooks = request.config.decoder.num_codebooks
    return {"decoder_input_ids": _tokens(request, BATCH * codebooks, 10, below=60)}


def _dia(request: Request, given: Given) -> Given:
    channels = request.config.decoder_config.num_channels
    return {"decoder_input_ids": _tokens(request, BATCH, 10, channels)}


def _high_resolution(request: Request, given: Given) -> Given:
    size = request.config.high_res_vision_config.image_size
    return {"high_res_pixel_values": request.normal(BATCH, 3, size, size)}


def _qformer(request: Request, given: Given) -> Given:
    return {
        "qformer_input_ids": _tokens(request, BATCH, 6),
        "qformer_attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
    }


def _lxmert(request: Request, given: Given) -> Given:
    config = request.config
    return {
        "visual_feats": request.normal(BATCH, 9, config.visual_feat_dim),
        "visual_pos": request.normal(BATCH, 9, config.visual_pos_dim),
        "visual_attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
    }


def _mllama(request: Request, given: Given) -> Given:
    size = request.config.vision_config.image_size
    length = given["input_ids"].shape[1]
    tiles = request.config.vision_config.max_num_tiles
    return {
        "pixel_values": request.normal(BATCH, 1, tiles, 3, size, size),
        "aspect_ratio_ids": torch.tensor([[6], [1]]),
        "aspect_ratio_mask": torch.tensor([[[1] * tiles], [[1] + [0] * (tiles - 1)]]),
        "cross_attention_mask": torch.ones(BATCH, length, 1, tiles, dtype=torch.long),
    }


def _idefics(request: Request, given: Given) -> Given:
    size = request.config.vision_config.image_size
    mask = torch.ones(BATCH, LENGTH, 2, dtype=torch.long)
    mask[:, :8, 1] = 0
    return {
        "pixel_values": request.normal(BATCH, 2, 3, size, size),
        "image_attention_mask": mask,
    }


def _timesfm(request: Request, given: Given) -> Given:
    values = request.normal(BATCH, request.config.context_length)
    return {
        "past_values": values,
        "past_values_padding": torch.zeros(BATCH, values.shape[1], dtype=torch.long),
        "freq": torch.zeros(BATCH, 1, dtype=torch.long),
    }


def _tapas(request: Request, given: Given) -> Given:
    kinds = len(request.config.type_vocab_sizes)
    return {"token_type_ids": _tokens(request, BATCH, LENGTH, kinds, below=4) % 2}


def _perceiver(request: Request, given: Given) -> Given:
    return {"inputs": request.normal(BATCH, LENGTH, request.config.d_model), "input_ids": None}


def _speecht5(request: Request, given: Given) -> Given:
    width = request.config.hidden_size
    return {
        "input_values": request.normal(BATCH, LENGTH, width),
        "decoder_input_values": request.normal(BATCH, 10, width),
        "attention_mask": torch.tensor([[1] * LENGTH, [1] * 12 + [0] * 4]),
    }


def _seggpt(request: Request, given: Given) -> Given:
    pixels = given["pixel_values"]
    return {
        "prompt_pixel_values": request.normal(*pixels.shape),
        "prompt_masks": request.normal(*pixels.shape),
    }


def _oneformer(request: Request, given: Given) -> Given:
    return {"task_inputs": _tokens(request, BATCH, request.config.task_seq_len)}


def _omdet(request: Request, given: Given) -> Given:
    return {
        "classes_input_ids": _tokens(request, 5, 6),
        "classes_attention_mask": torch.ones(5, 6, dtype=torch.long),
        "tasks_input_ids": _tokens(request, BATCH, 8),
        "tasks_attention_mask": torch.ones(BATCH, 8, dtype=torch.long),
        "classes_structure": torch.tensor([3, 2]),
    }


def _merge_sizes(request: Request, given: Given) -> Given:
    return {"image_merge_sizes": torch.ones(len(given["image_grid_thw"]), dtype=torch.long)}


def _retrieved(request: Request, given: Given) -> Given:
    documents = request.config.n_docs
    return {
        "context_input_ids": _tokens(request, BATCH * documents, LENGTH),
        "context_attention_mask": torch.ones(BATCH * documents, LENGTH, dtype=torch.long),
        "doc_scores": request.normal(BATCH, documents),
    }


def _videomt(request: Request, given: Given) -> Given:
    size = request.config.image_size
    return {"pixel_values_videos": request.normal(BATCH, 2, 3, size, size), "pixel_values": None}


def _blt(request: Request, given: Given) -> Given:
    return {"use_cache": False}


def _one_alone(request: Request, given: Given) -> Given:
    return {name: value[:1] for name, value in given.items()}


def _channels_of_tokens(request: Request, given: Given) -> Given:
    return {"input_ids": _tokens(request, BATCH, LENGTH, request.config.num_codebooks + 1)}


def _flamingo(request: Request, given: Given) -> Given:
    return {"placeholders": [10, 7]}  # of 40 frames and of 30, halved twice


def _fuyu(request: Request, given: Given) -> Given:
    return {"pixel_values": None, "image_patches": None} | {
        "pixel_values": request.normal(BATCH, 4, 3 * request.config.patch_size**2)
    }


def _kosmos(request: Request, given: Given) -> Given:
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    mask[:, 1 : 1 + request.config.latent_query_num] = True
    return {"image_embeds_position_mask": mask}


def _glm_image(request: Request, given: Given) -> Given:
    grids = given["image_grid_thw"]
    target = torch.tensor([[1, 4, 4]])
    return {
        "image_grid_thw": torch.cat([grids[:1], target, grids[1:], target]),
        "images_per_sample": torch.tensor([2, 2]),
        "placeholders": grids.prod(-1).tolist(),
    }


@torch.no_grad()
def _video_session(request: Request, given: Given) -> Given:
    """The second frame of a video in whose first one object was pointed at."""
    module = __import__(type(request.model).__module__, fromlist=["*"])
    kind = next(v for n, v in vars(module).items() if n.endswith("InferenceSession"))
    owner = getattr(request.config, "tracker_config", request.config)
    size = owner.prompt_encoder_config.image_size
    session = kind(
        video=request.normal(2, 3, size, size), video_height=size, video_width=size,
        dtype=torch.float32,
    )
    session.cache.get_vision_features = lambda frame: None  # see each frame anew, at each run
    if hasattr(session, "prompts"):
        session.add_prompt("a thing")
        session.prompt_input_ids[0] = _tokens(request, 1, 6)
        session.prompt_attention_masks[0] = torch.ones(1, 6, dtype=torch.long)
        return {"inference_session": session, "frame_idx": 0}
    index = session.obj_id_to_idx(1)
    points = torch.tensor([[[[size / 2, size / 3]]]])
    session.add_point_inputs(
        index, 0, {"point_coords": points, "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
    )
    session.obj_with_new_inputs = [1]
    request.model(session, frame_idx=0)
    return {"inference_session": session, "frame_idx": 1}


def _pi0(request: Request, given: Given) -> Given:
    width = request.config.dit_config.hidden_size
    return {"action_embeds": request.normal(BATCH, 5, width)}


def _colqwen2(request: Request, given: Given) -> Given:
    counts = given["image_grid_thw"].prod(-1).tolist()
    rows = given["pixel_values"].split(counts)
    return {"pixel_values": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def _audio_chunks(request: Request, given: Given) -> Given:
    features = given["input_features"]
    return {"chunk_sample_lengths": torch.tensor([64 * 160, 48 * 160])[: len(features)]}


def _granite_deep(request: Request, given: Given) -> Given:
    return {"placeholders": [15, 15]}


def _stacked_frames(request: Request, given: Given) -> Given:
    mask = torch.ones(BATCH, 32, dtype=torch.bool)
    mask[1, 24:] = False
    width = request.config.encoder_config.num_mel_bins * 4
    return {"input_features": request.normal(BATCH, 32, width), "attention_mask": mask}


def _inkling2(request: Request, given: Given) -> Given:
    config = request.config.vision_config
    side = config.patch_size * config.spatial_merge_size
    return {
        "pixel_values": request.normal(10, side, side, 3),
        "image_grid_thw": torch.tensor([[1, 2, 2], [1, 2, 3]]),
    }


def _inkling(request: Request, given: Given) -> Given:
    config = request.config.vision_config
    shape = (config.temporal_patch_size, config.patch_size, config.patch_size)
    return {"pixel_values": request.normal(8, *shape, 3), "placeholders": [4, 4]}


def _two_cameras(request: Request, given: Given) -> Given:
    size = request.config.vlm_config.vision_config.image_size
    mask = torch.ones(BATCH, 2, dtype=torch.bool)
    return {
        "pixel_values": request.normal(BATCH, 2, 3, size, size),
        "pixel_attention_mask": mask,
        "placeholders": [32, 32],
    } | _pi0(request, given)


def _molmo2(request: Request, given: Given) -> Given:
    config = request.config.vision_config
    patches = (config.image_size[0] // config.patch_size) ** 2
    pooling = torch.arange(patches).reshape(-1, 4)  # 4 patches become one vector
    rows = len(pooling)
    return {
        "pixel_values": request.normal(BATCH, patches, 3 * config.patch_size**2),
        "image_token_pooling": torch.cat([pooling, pooling + patches]),
        "image_grids": torch.tensor([[0, 0, 1, rows]] * BATCH),
        "image_num_crops": torch.tensor([1, 1]),
    }


def _grid_hw(request: Request, given: Given) -> Given:
    patch = request.config.vision_config.patch_size
    return {
        "pixel_values": request.normal(40, 3 * patch**2),
        "image_grid_hw": torch.tensor([[4, 4], [4, 6]]),
    }


def _neomme(request: Request, given: Given) -> Given:
    return {"pixel_values": request.normal(8, request.config.patch_dim), "placeholders": [4, 4]}


def _diarization(request: Request, given: Given) -> Given:
    config = request.config.audio_config
    width = config.num_mel_bins
    return {"input_features": request.normal(BATCH, 128, width), "attention_mask": None}


def _jev(request: Request, given: Given) -> Given:
    return {
        "input_ids": given["input_ids"][:1],
        "attention_mask": None,
        "marks": torch.tensor([[6, 12]]),
        "num_options": torch.tensor([[2, 2]]),
        "question_type_ids": torch.tensor([[1, 1]]),
    }


def _draft(request: Request, given: Given) -> Given:
    config = request.config
    return {
        "noise_embeds": request.normal(BATCH, config.block_size, config.hidden_size),
        "context_hidden_states": request.normal(
            BATCH, LENGTH, config.hidden_size * len(config.target_layer_ids)
        ),
        "attention_mask": {"full_attention": None, "sliding_attention": None},
    }


def _drafter(request: Request, given: Given) -> Given:
    config = request.config
    states = {
        kind: (request.normal(BATCH, 2, LENGTH, 16), request.normal(BATCH, 2, LENGTH, 16))
        for kind in ("full_attention", "sliding_attention")
    }
    return {
        "input_ids": None,
        "inputs_embeds": request.normal(BATCH, 1, 2 * config.backbone_hidden_size),
        "position_ids": torch.full((BATCH, 1), LENGTH - 1),
        "shared_kv_states": states,
    }


def _without_sound(request: Request, given: Given) -> Given:
    return _grid_hw(request, given) | dict.fromkeys(
        name for name in given if name.startswith("input_features")
    )


def _wave_and_features(request: Request, given: Given) -> Given:
    return {
        "input_values": request.normal(BATCH, 1, 320 * 20),
        "input_features": request.normal(BATCH, 20, 160),
    } | dict.fromkeys(("padding_mask", "attention_mask", "input_features_mask"))


def _stacked_bank(request: Request, given: Given) -> Given:
    mask = torch.ones(BATCH, 16, dtype=torch.bool)
    mask[1, 12:] = False
    return {"input_features": request.normal(BATCH, 16, 560), "input_features_mask": mask}


def _protein(request: Request, given: Given) -> Given:
    module = __import__(type(request.model).__module__, fromlist=["*"])
    tokens, each = 8, 3
    atoms = tokens * each
    zeros = torch.zeros(BATCH, tokens, dtype=torch.long)
    order = torch.arange(tokens).expand(BATCH, -1)
    owner = torch.arange(tokens).repeat_interleave(each).expand(BATCH, -1)
    names = {field for field in module.EsmFold2AtomInputs.__dataclass_fields__}
    drawn = {
        "ref_pos": request.normal(BATCH, atoms, 3),
        "ref_charge": torch.zeros(BATCH, atoms),
        "atom_attention_mask": torch.ones(BATCH, atoms, dtype=torch.bool),
        "ref_element": _tokens(request, BATCH, atoms, below=20),
        "ref_atom_name_chars": _tokens(request, BATCH, atoms, 4, below=40),
        "ref_space_uid": owner,
        "atom_to_token": owner,
    }
    return {
        "token_index": order, "residue_index": order, "asym_id": zeros, "sym_id": zeros,
        "entity_id": zeros, "mol_type": zeros,
        "res_type": _tokens(request, BATCH, tokens, below=20),
        "token_bonds": torch.zeros(BATCH, tokens, tokens, 1),
        "attention_mask": torch.ones(BATCH, tokens, dtype=torch.bool),
        "atom_inputs": module.EsmFold2AtomInputs(**{name: drawn[name] for name in names}),
        "input_ids": _tokens(request, BATCH, tokens, below=20),
    }  # fmt: skip


def _strip_of_patches(request: Request, given: Given) -> Given:
    patch = request.config.vision_config.patch_size
    return {
        "pixel_values": request.normal(1, 3, patch, 48 * patch),
        "target_sizes": torch.tensor([[4, 4], [4, 8]]),
    }


def _mel(request: Request, given: Given) -> Given:
    padding = torch.zeros(BATCH, 64, dtype=torch.bool)
    padding[1, 48:] = True
    return {"audio_mel": request.normal(BATCH, 64, 128), "audio_mel_mask": padding}


SPECIAL: dict[str, Callable[[Request, Given], Given]] = {
    "blt": _blt,
    "csm": _csm,
    "decision_transformer": _decision,
    "deepseek_vl_hybrid": _high_resolution,
    "dia": _dia,
    "edgetam_video": _video_session,
    "dots3_note": _audio_chunks,
    "fuyu": _fuyu,
    "granite4_vision": _granite_deep,
    "granite_speech5_ctc": _stacked_frames,
    "inkling2": _inkling2,
    "inkling_mm_model": _inkling,
    "jev": _jev,
    "molmo2": _molmo2,
    "muse_glimmer_assistant": _draft,
    "esmfold2": _protein,
    "fun_asr_nano": _stacked_bank,
    "nemotron_h_omni": _without_sound,
    "neucodec": _wave_and_features,
    "xcodec2": _wave_and_features,
    "gemma4_assistant": _drafter,
    "gemma4_unified_assistant": _drafter,
    "neomme": _neomme,
    "gemma3n_audio": _mel,
    "glm_image": _glm_image,
    "idefics": _idefics,
    "instructblip": _qformer,
    "instructblipvideo": _qformer,
    "kosmos-2": _kosmos,
    "kyutai_speech_to_text": _channels_of_tokens,
    "lxmert": _lxmert,
    "minicpm_ocr": _strip_of_patches,
    "minicpmv4_6": _strip_of_patches,
    "minicpmv4_7": _strip_of_patches,
    "mllama": _mllama,
    "musicflamingo": _flamingo,
    "musicgen": _codes_of_decoder,
    "musicgen_melody": _codes_of_decoder,
    "omdet-turbo": _omdet,
    "oneformer": _oneformer,
    "perceiver": _perceiver,
    "pi0": _two_cameras,
    "qwen2_audio": _flamingo,
    "rag": _retrieved,
    "sam2_video": _video_session,
    "sam3_tracker_video": _video_session,
    "sam3_video": _video_session,
    "seggpt": _seggpt,
    "speecht5": _speecht5,
    "tapas": _tapas,
    "timesfm": _timesfm,
    "tvp": _one_alone,
    "video_llama_3": _merge_sizes,
    "videomt": _videomt,
}

# The same, of the inputs in which the placeholders already stand.
LATE: dict[str, Callable[[Request, Given], Given]] = {
    "colqwen2": _colqwen2,
}
