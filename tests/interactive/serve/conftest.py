"""One server for all tests, and a client that has opened its page."""

import pytest
import torch
from transformers import BertConfig, BertModel

from tests.interactive.serve.live_server import serving


@pytest.fixture(scope="package")
def small(tokenizer, tmp_path_factory):
    """Return the folder of a small model with the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "small"
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**shape, intermediate_size=64, vocab_size=len(tokenizer))
    torch.manual_seed(0)
    model = BertModel(config).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            for projection in (layer.attention.self.query, layer.attention.self.key):
                projection.weight.mul_(30)  # so that no two texts have similar maps
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="package")
def server(small):
    names = ("--model", "all-MiniLM-L6-v2", "--model", str(small))
    with serving(*names, "--max-tokens", "64") as served:
        yield served


@pytest.fixture(scope="package")
def reader(server):
    """Return a client that has opened the page."""
    with server.enter() as client:
        yield client
