"""What the tests share: where the data is, and models that are small and random."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def data(*parts: str) -> Path:
    """A file of the shared data, or a skip that says where it was looked for."""
    base = Path(os.environ.get("SHOAL_DATA") or ROOT.parent / "shared" / "data")
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}: set SHOAL_DATA to the folder that has it")
    return path
