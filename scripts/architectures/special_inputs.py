"""Inputs that no signature tells, by architecture: as few as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from architectures.media import Request

SPECIAL: dict[str, Callable[[Request, dict[str, Any]], dict[str, Any]]] = {}
