"""Speech, with the real model if it is available, and the mirror of shoal_speech.h."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

import shoal
from conftest import DATA, ROOT, data, needs
from shoal import _speech

TALK = DATA / "speech" / "1088-134315-0043.flac"


@pytest.fixture(autouse=True)
def library():
    needs("speech")


@pytest.fixture
def speech():
    data("speech", TALK.name)
    with shoal.Speech(data("models", "ggml-tiny.bin")) as opened:
        yield opened


def test_structures_match_the_header(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = []
    for name, mirror in _speech.STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in mirror._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <shoal_speech.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\n}\n"
    )
    program = str(tmp_path / "a")
    subprocess.run(
        [compiler, f"-I{ROOT / 'include'}", str(source), "-o", program], check=True
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True)
    expected = dict(line.split() for line in printed.stdout.splitlines())
    for name, mirror in _speech.STRUCTURES.items():
        assert ctypes.sizeof(mirror) == int(expected[name]), name
        for field, _ in mirror._fields_:
            offset = getattr(mirror, field).offset
            assert offset == int(expected[f"{name}.{field}"]), (name, field)


def test_words(speech):
    segments = list(speech.transcribe(TALK, language="en", words=True))
    text = shoal.join_text(segments)
    assert text.startswith(" ") and "Fisher went back to the library" in text
    assert all(a.end <= b.begin + 0.5 for a, b in zip(segments, segments[1:]))
    for segment in segments:
        assert segment.text == segment.text.strip() and segment.space == " "
        assert "".join(word.text for word in segment.words) == shoal.join_text([segment])
        for word in segment.words:
            assert 0 <= word.begin <= word.end <= 13.5 and 0 < word.probability <= 1
    assert speech.language == "en"
    part = list(speech.transcribe(TALK, language="en", offset=6, duration=5))
    assert part and all(6 <= segment.begin <= segment.end <= 11 for segment in part)


def test_samples_and_leaving(speech):
    silence = np.zeros(5 * 16000)
    assert list(speech.transcribe(silence)) == []
    segments = speech.transcribe(TALK)
    assert next(segments).text
    with pytest.raises(shoal.ShoalError, match="one recording at a time"):
        next(speech.transcribe(TALK))
    segments.close()
    assert next(speech.transcribe(TALK)).text


def test_refusals(speech, tmp_path):
    with pytest.raises(shoal.ShoalError, match="No such file"):
        shoal.Speech(tmp_path / "model")
    with pytest.raises(shoal.ShoalError, match="dimensions"):
        speech.transcribe(np.zeros((2, 100)))
    bad = tmp_path / "talk.xyz"
    bad.write_text("no sound")
    with pytest.raises(shoal.ShoalError, match="ffmpeg -i"):
        list(speech.transcribe(bad))
    with pytest.raises(shoal.ShoalError, match="language"):
        list(speech.transcribe(TALK, language="klingon"))
    speech.close()
    with pytest.raises(shoal.ShoalError, match="closed"):
        speech.transcribe(TALK)
