"""A real server, in a thread or started as a user starts it, and its clients."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from attnviz.interactive.serve import Cancelled, Handlers, JobQueue, Site, _Server  # noqa: F401

_LINK = re.compile(r"(http://\S+)/\?token=(\S+)")


@dataclass
class Served:
    """A running server: its process, or its site in a thread of this one; its address and link."""

    process: subprocess.Popen | None = None
    address: str = ""
    link: str = ""
    site: Site | None = None

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    def read_link(self):
        """Wait for the link on standard output."""
        for line in self.process.stdout:
            if found := _LINK.search(line):
                self.address, self.link = found[1], found[0]
                return self.link
        pytest.fail(f"no link; {self.process.stderr.read()}")

    @contextmanager
    def enter(self):
        """Yield a client with the cookie, which sends requests as our page does."""
        with self.stranger(headers={"Origin": self.address}) as client:
            assert client.get(self.link).status_code == 303
            yield client

    def stranger(self, **how):
        """Return a client without the cookie."""
        return httpx2.Client(
            base_url=self.address, timeout=60, trust_env=False, verify=False, **how
        )

    def raw(self, request):
        """Send raw bytes; return the complete response."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.settimeout(20)
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # rejected before the whole request was read
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode("latin-1")

    def memory_mb(self):
        pid = self.process.pid if self.process else os.getpid()
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def end(self, number=signal.SIGTERM):
        """Send a signal; return the exit code and the standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextmanager
def serving(*options, port=0, **how):
    command = [sys.executable, "-m", "attnviz", "serve", "--port", str(port), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how
    )
    served = Served(process)
    try:
        served.read_link()
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def serving_in_thread(*models, max_tokens=64):
    """Yield a server in a thread of this process, which starts at once; then wait for its end."""
    handlers = Handlers({model.name: model for model in models}, max_tokens)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        site = Site(handlers, JobQueue(32, 120), listener.getsockname()[1])
        server = _Server(site)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(None, site.origins[0], site.link(), site)
        finally:
            server.should_exit = True
            thread.join()


def wait_until_idle(served):
    """Wait for the runs that were canceled: their thread shares figures and warnings with tests."""
    end = time.monotonic() + 60
    while served.site.jobs.jobs:
        assert time.monotonic() < end
        time.sleep(0.02)
