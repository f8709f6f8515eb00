"""Fixtures of the tests with real models."""

import pytest
import torch
from fetched import load


@pytest.fixture(scope="session")
def smollm2():
    return load("smollm2", torch.float32)
