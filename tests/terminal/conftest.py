"""Run commands in an empty folder, without a network, with the default model loaded once."""

import inspect
import socket

import pytest
from one_run import Runs

import attnviz


@pytest.fixture(autouse=True)
def _empty_folder_without_network(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _default_model_loaded_once(model, monkeypatch):
    load = attnviz.load

    def load_once(name=None, **how):
        plain = name is None and how.get("device") in (None, "auto") and how.get("dtype") is None
        return model if plain else load(name, **how)

    monkeypatch.setattr("attnviz.pipeline.attend.load", load_once)


_RUNS = Runs()


@pytest.fixture(autouse=True)
def _models_run_once(request, monkeypatch):
    """Run a model once on the same texts, except where a test changes something."""
    changes = "monkeypatch" in inspect.signature(request.function).parameters
    _RUNS.anew = changes or bool({"_scale_off", "noisy"} & {*request.fixturenames})
    monkeypatch.setattr("attnviz.pipeline.attend.run", _RUNS)
