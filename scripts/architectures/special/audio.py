"""Inputs of audio and video models that cannot be inferred from a signature."""

from __future__ import annotations

import torch

from architectures.media import BATCH, LENGTH, Inputs, Request


def speecht5(request: Request, inputs: Inputs) -> Inputs:
    """Speech vectors for the encoder and the decoder."""
    width = request.config.hidden_size
    return {
        "input_values": request.normal(BATCH, LENGTH, width),
        "decoder_input_values": request.normal(BATCH, 10, width),
        "attention_mask": torch.tensor([[1] * LENGTH, [1] * 12 + [0] * 4]),
    }


def audio_chunks(request: Request, inputs: Inputs) -> Inputs:
    """The length of each audio chunk."""
    features = inputs["input_features"]
    return {"chunk_sample_lengths": torch.tensor([64 * 160, 48 * 160])[: len(features)]}


def stacked_frames(request: Request, inputs: Inputs) -> Inputs:
    """Four stacked frames."""
    mask = torch.ones(BATCH, 32, dtype=torch.bool)
    mask[1, 24:] = False
    width = request.config.encoder_config.num_mel_bins * 4
    return {"input_features": request.normal(BATCH, 32, width), "attention_mask": mask}


def flamingo(request: Request, inputs: Inputs) -> Inputs:
    """The number of vectors for 40 and 30 frames after halving twice."""
    return {"placeholders": [10, 7]}  # 40 and 30 frames, halved twice


def wave_and_features(request: Request, inputs: Inputs) -> Inputs:
    """Audio as samples and as features."""
    return {
        "input_values": request.normal(BATCH, 1, 320 * 20),
        "input_features": request.normal(BATCH, 20, 160),
    } | dict.fromkeys(("padding_mask", "attention_mask", "input_features_mask"))


def stacked_bank(request: Request, inputs: Inputs) -> Inputs:
    """Seven stacked frames."""
    mask = torch.ones(BATCH, 16, dtype=torch.bool)
    mask[1, 12:] = False
    return {"input_features": request.normal(BATCH, 16, 560), "input_features_mask": mask}


def mel(request: Request, inputs: Inputs) -> Inputs:
    """Audio frames; the second clip is padded."""
    padding = torch.zeros(BATCH, 64, dtype=torch.bool)
    padding[1, 48:] = True
    return {"audio_mel": request.normal(BATCH, 64, 128), "audio_mel_mask": padding}


def videomt(request: Request, inputs: Inputs) -> Inputs:
    """Two frames of a video."""
    size = request.config.image_size
    return {"pixel_values_videos": request.normal(BATCH, 2, 3, size, size), "pixel_values": None}


@torch.no_grad()
def video_session(request: Request, inputs: Inputs) -> Inputs:
    """The second frame of a video; an object was clicked in the first frame."""
    module = __import__(type(request.model).__module__, fromlist=["*"])
    kind = next(v for n, v in vars(module).items() if n.endswith("InferenceSession"))
    owner = getattr(request.config, "tracker_config", request.config)
    size = owner.prompt_encoder_config.image_size
    session = kind(
        video=request.normal(2, 3, size, size),
        video_height=size,
        video_width=size,
        dtype=torch.float32,
    )
    session.cache.get_vision_features = lambda frame: None  # recompute frame features in each run
    if hasattr(session, "prompts"):
        session.add_prompt("a thing")
        session.prompt_input_ids[0] = request.tokens(1, 6)
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
