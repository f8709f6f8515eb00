"""The files used in cases: texts, images, audio, worked examples, and unusable paths."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

import attnviz
from robustness.running.families import saved
from robustness.running.pretrained import MODELS, sparse_file

Make = Callable[[Path], object]


def prepare(folder: Path, named: str) -> None:
    """Create everything that a command line or a call uses."""
    for name, make in {**FILES, **MODELS}.items():
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", named):
            make(folder / name)


def text(content: str) -> Make:
    """Return a function that writes a text."""
    return lambda path: path.write_bytes(content.encode())


def folder(mode: int = 0o700) -> Make:
    """Return a function that creates a folder."""
    return lambda path: (path.mkdir(), path.chmod(mode))


def link(target: str) -> Make:
    """Return a function that creates a link."""
    return lambda path: path.symlink_to(target)


def picture(width: int, height: int, mode: str = "RGB") -> Make:
    """Return a function that writes an image."""

    def make(path: Path) -> None:
        pixels = np.arange(width * height * 3, dtype=np.uint64) * 7 % 251
        image = Image.fromarray(pixels.astype(np.uint8).reshape(height, width, 3))
        image.convert(mode).save(path)

    return make


def frames(path: Path) -> None:
    """Write an animation of three frames."""
    several = [Image.new("RGB", (40, 40), (80 * n, 10, 10)) for n in range(3)]
    several[0].save(path, save_all=True, append_images=several[1:])


def truncated(make: Make) -> Make:
    """Return a function that writes the first half of a file."""

    def cut(path: Path) -> None:
        make(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


def bomb(path: Path) -> None:
    """Write a PNG of a few bytes that claims to have 60,000 × 60,000 pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )  # fmt: skip


def sound(seconds: float) -> Make:
    """Return a function that writes a tone."""
    tone = np.sin(np.arange(int(seconds * 16_000)) / 20) / 2
    return lambda path: soundfile.write(path, tone, 16_000)


def result(path: Path) -> None:
    """Save the complete result of a run."""
    attnviz.save_result(attnviz.attend("the train", model=saved("bert")), path)


FILES: dict[str, Make] = {
    # texts
    "words.txt": text("the train left the station"),
    "bom.txt": text("\ufeffthe train left"),
    "binary.txt": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "nul.txt": text("the train\0left"),
    "100000.txt": text("train " * 100_000),
    "huge.txt": sparse_file(2**26 + 1),
    "folder.txt": folder(),
    "sentences.txt": text("the train left\n\nthe train went home\n"),
    # images
    "photo.png": picture(60, 40),
    "dot.png": picture(1, 1),
    "line.png": picture(20_000, 1),
    "clear.png": picture(40, 40, "RGBA"),
    "cmyk.jpg": picture(40, 40, "CMYK"),
    "deep.png": picture(40, 40, "I;16"),
    "moving.gif": frames,
    "empty.png": text(""),
    "half.png": truncated(picture(60, 40)),
    "bomb.png": bomb,
    # audio
    "tone.wav": sound(1.0),
    "silence.wav": sound(0.0),
    "click.wav": sound(0.005),
    "half.wav": truncated(sound(1.0)),
    # worked examples
    "own.json": text(
        '{"tokens": ["a", "b"], "X": [[1, 0], [0, 1]], "W_q": [[1, 0], [0, 1]], '
        '"W_k": [[1, 0], [0, 1]], "W_v": [[1, 1], [0, 1]]}'
    ),
    # results
    "kept.safetensors": result,
    # output locations
    "old.png": picture(2, 2),
    "old.json": text('{"old": 1}'),
    "afolder": folder(),
    "locked": folder(0o500),
    "sealed": folder(0o000),
    "link.png": link("real.png"),
    "null.png": link("/dev/null"),
    "nowhere.png": link("no/such/folder/real.png"),
    "loop.png": link("loop.png"),
}
