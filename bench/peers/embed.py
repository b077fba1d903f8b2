#!/usr/bin/env python3
"""Vectors of texts beside sentence-transformers (PyTorch), ONNX Runtime, CTranslate2 and
OpenVINO, all float32, and in lower precision: ONNX Runtime's dynamic int8 (int8),
CTranslate2's int8, OpenVINO's bfloat16, and our own two. Time, memory and whether they
are the same.

    embed.py FOLDER [--work DIR] [--parts sentences,contexts] [--engines shoal,torch,...]

sentences  the first 500 of STS-B's dev part
contexts   the first 200 of SQuAD's dev part

Texts of at most --most tokens, tokenized, batches of 32 sorted by length (ours: packed),
the mean of the rows. An engine has a process of its own, which stays; they take turns,
and the best time of each counts. Memory is the process's peak. What the peers read is
made of the folder once, in --work. Vectors must agree with ours (cosine 0.9999) before a
time is printed, but for lower precisions, whose cosine is. Needs torch,
sentence-transformers,
onnxruntime, ctranslate2, openvino, onnx and tokenizers, and a quiet machine. The exit
code is 1 where a bar is missed."""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
ENGINES = ["shoal", "torch", "onnxruntime", "ctranslate2", "openvino", "int8"]
LOWER = ["int8", "shoal-int8", "shoal-bfloat16", "ctranslate2-int8", "openvino-bfloat16"]
BARS = {"sentences": 1.05, "contexts": 1.2}
BATCH = 32


def texts_of(data, part):
    if part == "sentences":
        lines = (data / "glue/STS-B/sts-dev.tsv").read_text(encoding="utf-8").split("\n")
        return [line.split("\t")[5] for line in lines if line][:500]
    articles = json.loads((data / "squad/dev-v1.1.json").read_text())["data"]
    return [one["context"] for article in articles for one in article["paragraphs"]][:200]


# ---- What the peers read ---------------------------------------------------------------

def prepare(folder, work):
    """model.onnx, int8.onnx and a CTranslate2 folder."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "model.onnx").exists():
        import torch
        import transformers

        class Hidden(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = transformers.AutoModel.from_pretrained(
                    folder, dtype=torch.float32, attn_implementation="eager").eval()

            def forward(self, ids, mask, types):
                return self.model(input_ids=ids, attention_mask=mask,
                                  token_type_ids=types).last_hidden_state

        ones = torch.ones((2, 16), dtype=torch.long)
        names = ["input_ids", "attention_mask", "token_type_ids"]
        axes = {name: {0: "batch", 1: "length"} for name in names + ["hidden"]}
        torch.onnx.export(Hidden(), (ones, ones, 0 * ones), str(work / "new.onnx"),
                          input_names=names, output_names=["hidden"], dynamic_axes=axes,
                          opset_version=17, dynamo=False)
        os.replace(work / "new.onnx", work / "model.onnx")
    if not (work / "int8.onnx").exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic
        quantize_dynamic(str(work / "model.onnx"), str(work / "new.onnx"),
                         weight_type=QuantType.QInt8)
        os.replace(work / "new.onnx", work / "int8.onnx")
    if not (work / "ctranslate2").exists():
        import ctranslate2
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(work / "ctranslate2"), force=True)


# ---- Engines: each a function from texts to vectors ------------------------------------

def ours(given, precision="float32"):
    from text_library import PRECISIONS, TextEncoder, TextLibrary
    encoder = TextEncoder(TextLibrary(given.build, given.threads), given.folder,
                          window=given.most, long_texts=1,  # cut
                          precision=PRECISIONS.index(precision))
    return encoder.embed


def sentence_transformers(given):
    import torch
    torch.set_num_threads(given.threads)
    from sentence_transformers import SentenceTransformer, models
    words = models.Transformer(str(given.folder), max_seq_length=given.most)
    pooled = models.Pooling(words.get_word_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[words, pooled], device="cpu")
    return lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def in_batches(given, run):
    """run(ids, mask, types), arrays [batch][length], gives hidden states."""
    import numpy as np
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer.json"))
    tokenizer.enable_truncation(given.most)
    tokenizer.enable_padding()

    def embed(texts):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        vectors = [None] * len(texts)
        for first in range(0, len(order), BATCH):
            some = order[first:first + BATCH]
            encoded = tokenizer.encode_batch([texts[i] for i in some])
            ids, mask, types = (np.array([getattr(one, name) for one in encoded],
                                         dtype=np.int64)
                                for name in ("ids", "attention_mask", "type_ids"))
            hidden = run(ids, mask, types)
            weight = mask[:, :, None].astype(np.float32)
            pooled = (hidden * weight).sum(1) / weight.sum(1)
            for i, vector in zip(some, pooled):
                vectors[i] = vector
        return np.stack(vectors)
    return embed


def onnxruntime(given, name="model.onnx"):
    import onnxruntime as runtime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = given.threads
    session = runtime.InferenceSession(str(given.work / name), options,
                                       providers=["CPUExecutionProvider"])
    return in_batches(given, lambda ids, mask, types: session.run(
        ["hidden"], {"input_ids": ids, "attention_mask": mask,
                     "token_type_ids": types})[0])


def int8(given):
    return onnxruntime(given, "int8.onnx")


def ctranslate2(given, kind="float32"):
    import ctranslate2 as runtime
    import numpy as np
    encoder = runtime.Encoder(str(given.work / "ctranslate2"), device="cpu",
                              compute_type=kind, inter_threads=1,
                              intra_threads=given.threads)

    def run(ids, mask, types):
        lengths = mask.sum(1)
        rows = [row[:n].tolist() for row, n in zip(ids, lengths)]
        return np.asarray(encoder.forward_batch(rows).last_hidden_state)
    return in_batches(given, run)


def openvino(given, kind="f32"):
    import openvino as runtime
    model = runtime.Core().compile_model(
        str(given.work / "model.onnx"), "CPU",
        {"INFERENCE_NUM_THREADS": given.threads, "INFERENCE_PRECISION_HINT": kind,
         "PERFORMANCE_HINT": "LATENCY"})
    request = model.create_infer_request()
    return in_batches(given, lambda ids, mask, types: request.infer(
        {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})[0])


MAKERS = {"shoal": ours, "torch": sentence_transformers, "onnxruntime": onnxruntime,
          "ctranslate2": ctranslate2, "openvino": openvino, "int8": int8,
          "shoal-int8": lambda given: ours(given, "int8"),
          "shoal-bfloat16": lambda given: ours(given, "bfloat16"),
          "ctranslate2-int8": lambda given: ctranslate2(given, "int8"),
          "openvino-bfloat16": lambda given: openvino(given, "bf16")}


def peak_megabytes():
    for line in Path("/proc/self/status").read_text().split("\n"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    return float("nan")


def work_off(given):
    """A process of one engine: a line says a part, the answer is a line of JSON."""
    import numpy as np
    embed = MAKERS[given.worker](given)
    parts = {part: texts_of(given.data, part)[:given.texts or None]
             for part in given.parts.split(",")}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        texts = parts[line.strip()]
        begun = time.perf_counter()
        vectors = embed(texts)
        seconds = time.perf_counter() - begun
        np.save(given.work / f"{given.worker}-{line.strip()}.npy", vectors)
        print(json.dumps({"seconds": seconds, "texts": len(texts),
                          "peak": peak_megabytes()}), flush=True)


# ---- Turns -----------------------------------------------------------------------------

class Worker:
    def __init__(self, engine):
        variables = dict(os.environ, OMP_NUM_THREADS=str(GIVEN.threads),
                         TOKENIZERS_PARALLELISM="false")
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", engine],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
        self.answer()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"an engine ended: {self.process.args[-1]}")

    def run(self, part):
        time.sleep(0.2)  # the other's threads stop spinning
        self.process.stdin.write(part + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def cosines(engine, part):
    import numpy as np
    a, b = (np.load(GIVEN.work / f"{name}-{part}.npy").astype(np.float64)
            for name in (engine, "shoal"))
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def compare(part, workers):
    best = {engine: workers[engine].run(part) for engine in workers}  # warm
    for _ in range(GIVEN.repeats):
        for engine, worker in workers.items():
            turn = worker.run(part)
            best[engine]["seconds"] = min(turn["seconds"], best[engine]["seconds"])
            best[engine]["peak"] = turn["peak"]
    good, rates = True, {}
    for engine, one in best.items():
        found = cosines(engine, part)
        same = engine in LOWER or found.min() > 0.9999
        good &= bool(same)
        rates[engine] = one["texts"] / one["seconds"]
        print(f"{part}: {engine}: {rates[engine]:.1f} texts/s, "
              f"peak {one['peak']:.0f} MB, cosine with ours {found.mean():.5f}, "
              f"least {found.min():.5f}{'' if same else ' DIFFERENT'}", flush=True)
    peers = [rates[engine] for engine in rates if engine not in ["shoal", *LOWER]]
    if "shoal" not in rates or not peers:
        return good
    ratio = rates["shoal"] / max(peers)
    print(f"{part}: {ratio:.3f} times the fastest of float32 (bar {BARS[part]})",
          flush=True)
    return good and (GIVEN.quick or ratio >= BARS[part])


def main():
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--worker", "prepare"],
                   check=True)
    workers = {engine: Worker(engine) for engine in GIVEN.engines.split(",")}
    good = all([compare(part, workers) for part in GIVEN.parts.split(",")])
    for worker in workers.values():
        worker.close()
    sys.exit(0 if good else 1)


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path, help="Hugging Face folder of a BERT")
    add("--build", type=Path, default=ROOT / "build")
    add("--data", type=Path, default=ROOT.parent / "shared" / "data")
    add("--work", type=Path, default=Path("/tmp/shoal-peers"))
    add("--parts", default="sentences,contexts", help="(default: %(default)s)")
    add("--engines", default=",".join(ENGINES), help="(default: %(default)s)")
    add("--most", type=int, default=256, help="tokens of a text (default: %(default)s)")
    add("--threads", type=int, default=2, help="(default: %(default)s)")
    add("--repeats", type=int, default=5, help="(default: %(default)s)")
    add("--texts", type=int, default=0, help="of a part (default: 0, all)")
    add("--quick", action="store_true", help="no bars: does it work?")
    add("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    GIVEN = options()
    if GIVEN.worker == "prepare":
        prepare(GIVEN.folder, GIVEN.work)
    elif GIVEN.worker:
        work_off(GIVEN)
    else:
        main()
