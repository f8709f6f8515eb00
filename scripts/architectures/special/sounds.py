"""Inputs of models of sounds or videos that no signature tells."""

from __future__ import annotations

import torch

from architectures.media import BATCH, LENGTH, Given, Request


def speecht5(request: Request, given: Given) -> Given:
    """Vectors of speech, in and out."""
    width = request.config.hidden_size
    return {
        "input_values": request.normal(BATCH, LENGTH, width),
        "decoder_input_values": request.normal(BATCH, 10, width),
        "attention_mask": torch.tensor([[1] * LENGTH, [1] * 12 + [0] * 4]),
    }


def audio_chunks(request: Request, given: Given) -> Given:
    """The length of each piece of sound."""
    features = given["input_features"]
    return {"chunk_sample_lengths": torch.tensor([64 * 160, 48 * 160])[: len(features)]}


def stacked_frames(request: Request, given: Given) -> Given:
    """Four frames side by side."""
    mask = torch.ones(BATCH, 32, dtype=torch.bool)
    mask[1, 24:] = False
    width = request.config.encoder_config.num_mel_bins * 4
    return {"input_features": request.normal(BATCH, 32, width), "attention_mask": mask}


def flamingo(request: Request, given: Given) -> Given:
    """How many vectors 40 frames and 30 become, halved twice."""
    return {"placeholders": [10, 7]}  # of 40 frames and of 30, halved twice


def wave_and_features(request: Request, given: Given) -> Given:
    """A sound as samples and as features."""
    return {
        "input_values": request.normal(BATCH, 1, 320 * 20),
        "input_features": request.normal(BATCH, 20, 160),
    } | dict.fromkeys(("padding_mask", "attention_mask", "input_features_mask"))


def stacked_bank(request: Request, given: Given) -> Given:
    """Seven frames side by side."""
    mask = torch.ones(BATCH, 16, dtype=torch.bool)
    mask[1, 12:] = False
    return {"input_features": request.normal(BATCH, 16, 560), "input_features_mask": mask}


def mel(request: Request, given: Given) -> Given:
    """Frames of a sound; the second one is padded."""
    padding = torch.zeros(BATCH, 64, dtype=torch.bool)
    padding[1, 48:] = True
    return {"audio_mel": request.normal(BATCH, 64, 128), "audio_mel_mask": padding}


def videomt(request: Request, given: Given) -> Given:
    """Two frames of a video."""
    size = request.config.image_size
    return {"pixel_values_videos": request.normal(BATCH, 2, 3, size, size), "pixel_values": None}


@torch.no_grad()
def video_session(request: Request, given: Given) -> Given:
    """The second frame of a video in whose first one object was pointed at."""
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
    session.cache.get_vision_features = lambda frame: None  # see each frame anew, at each run
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
