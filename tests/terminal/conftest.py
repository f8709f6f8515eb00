"""Run commands in an empty folder, without a network, with the default model loaded once."""

import inspect
import socket

import pytest
from one_run import Runs, share_runs


@pytest.fixture(autouse=True)
def _empty_folder_without_network(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.chdir(tmp_path)


_RUNS = Runs()


@pytest.fixture(autouse=True)
def _models_run_once(request, model, monkeypatch):
    """Run a model once on the same texts, except where a test changes something."""
    changes = "monkeypatch" in inspect.signature(request.function).parameters
    _RUNS.anew = changes or bool({"_scale_off", "noisy"} & {*request.fixturenames})
    share_runs(monkeypatch, _RUNS, model=model)
