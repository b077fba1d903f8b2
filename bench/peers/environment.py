"""The virtual environment of the comparison: created once, outside the sources, and
reused. Packages that cannot be installed are reported and skipped.
"""
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

REQUIRED = ["torch==2.13.0", "numpy", "setuptools<81", "wheel", "ninja"]
ONNX = ["onnxruntime", "onnx"]
SPEECH = ["kaldi-native-fbank", "soundfile"]
TEXT = {"embed": ["torch==2.13.0", "transformers", "sentence-transformers", "tokenizers",
                  "onnxruntime", "onnx", "ctranslate2", "openvino"],
        "long-texts": ["torch==2.13.0", "transformers", "matplotlib"], "text-kinds": []}
AUTHORS = "pytorch-fast-transformers==0.4.0"
NATIVE_FLAGS = "-march=native -O3"


class Environment:
    """FOLDER/venv with the package as published, FOLDER/native with it built natively."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.native = folder / "native"
        self.record = folder / "installed.json"
        self.notes = {}

    def make(self):
        """Installs what is missing; returns {part: "" or the reason why it is
        missing}."""
        if self.record.exists():
            self.notes = json.loads(self.record.read_text())
            return self.notes
        self.folder.mkdir(parents=True, exist_ok=True)
        print(f"making the virtual environment in {self.folder} (once, some minutes)",
              file=sys.stderr)
        venv.create(self.folder / "venv", with_pip=True)
        why = self.install("required", REQUIRED)
        if why:
            raise SystemExit(f"bench/peers: {', '.join(REQUIRED)}: {why}")
        self.notes["onnxruntime"] = self.install("onnxruntime", ONNX)
        build = ["--no-build-isolation", "--no-deps", "--no-cache-dir", AUTHORS]
        self.notes["shipped"] = self.install("shipped", build)
        self.notes["native"] = self.install(
            "native", ["--target", str(self.native), *build],
            CFLAGS=NATIVE_FLAGS, CXXFLAGS=NATIVE_FLAGS)
        self.record.write_text(json.dumps(self.notes, indent=2))
        return self.notes

    def make_for(self, script):
        """Installs what one script in this folder needs."""
        if not self.python.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            venv.create(self.folder / "venv", with_pip=True)
        packages = ["numpy"] + (SPEECH if script == "fbank" else
                                TEXT.get(script, REQUIRED[:1]))
        why = self.install(script, packages)
        if why:
            raise SystemExit(f"bench/peers: {', '.join(packages)}: {why}")

    def install(self, name, arguments, **variables):
        """Runs pip with a log; returns "" or the line that says why it failed."""
        log = self.folder / f"{name}.log"
        print(f"  {name}: {log}", file=sys.stderr)
        with open(log, "w", encoding="utf-8") as out:
            code = subprocess.run(
                [self.python, "-m", "pip", "install", *arguments], stdout=out,
                stderr=subprocess.STDOUT, env={**os.environ, "PATH": without_nvcc(),
                                               **variables}, check=False).returncode
        if code == 0:
            return ""
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()
                 if "rror" in line and "note:" not in line]
        return f"pip failed, see {log}: {lines[-1] if lines else ''}"


def without_nvcc():
    """The comparison is for processors, but the package would build for graphics cards if
    it finds nvcc, even without its libraries.
    """
    folders = os.environ.get("PATH", "").split(os.pathsep)
    kept = [f for f in folders if not shutil.which("nvcc", path=f)]
    return os.pathsep.join(kept + ["/usr/bin", "/bin"])


def run_inside(folder, packages, script, variables=None):
    """Runs the script again with --inside, with the Python of a virtual environment that
    has the packages; returns its exit code.
    """
    python, mark = folder / "venv" / "bin" / "python", folder / "packages.json"
    if not mark.exists() or json.loads(mark.read_text()) != packages:
        print(f"making the virtual environment in {folder} (once)", file=sys.stderr)
        venv.create(folder / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        mark.write_text(json.dumps(packages) + "\n")
    return subprocess.run([python, script, *sys.argv[1:], "--inside"],
                          env={**os.environ, **(variables or {})}, check=False).returncode
