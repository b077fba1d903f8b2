#!/usr/bin/env python3
"""Queries, keys and values of a BERT encoder (a Hugging Face folder) on one text.

usage: dump_bert.py MODEL TEXT.txt -o DIR [-n 512] [-s SKIP] [-l 0 3 5]

DIR/layerL_{q,k,v}.npy: float32 [1, heads, N, dim], before any scaling, as `shoal quality` reads
them. Needs numpy, safetensors and tokenizers."""
import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer


def norm(x, w, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
    return x * w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model"), p.add_argument("text")
    p.add_argument("-o", required=True, help="folder for the arrays")
    p.add_argument("-n", type=int, default=512, help="tokens, first and last included")
    p.add_argument("-s", type=int, default=0, help="tokens of the text to skip")
    p.add_argument("-l", type=int, nargs="+", default=[0, 3, 5], help="layers")
    a = p.parse_args()
    w = load_file(str(Path(a.model) / "model.safetensors"))
    heads = json.loads((Path(a.model) / "config.json").read_text())["num_attention_heads"]
    tokenizer = Tokenizer.from_file(str(Path(a.model) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.encode(Path(a.text).read_text(), add_special_tokens=False).ids
    ids = [101, *ids[a.s:a.s + a.n - 2], 102]
    e = "embeddings."
    x = (w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][:len(ids)]
         + w[e + "token_type_embeddings.weight"][0])
    x = norm(x, w, e + "LayerNorm")
    Path(a.o).mkdir(parents=True, exist_ok=True)
    for layer in range(max(a.l) + 1):
        b = f"encoder.layer.{layer}."

        def linear(x, name):
            return x @ w[b + name + ".weight"].T + w[b + name + ".bias"]
        q, k, v = (linear(x, f"attention.self.{n}").reshape(len(x), heads, -1).transpose(1, 0, 2)
                   for n in ("query", "key", "value"))
        if layer in a.l:
            for name, t in zip("qkv", (q, k, v)):
                np.save(Path(a.o) / f"layer{layer}_{name}.npy", np.ascontiguousarray(t[None], np.float32))
        s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        s = np.exp(s - s.max(-1, keepdims=True))
        y = (s @ v / s.sum(-1, keepdims=True)).transpose(1, 0, 2).reshape(x.shape)
        x = norm(x + linear(y, "attention.output.dense"), w, b + "attention.output.LayerNorm")
        x = norm(x + linear(gelu(linear(x, "intermediate.dense")), "output.dense"), w, b + "output.LayerNorm")
    print(f"{len(ids)} tokens")


if __name__ == "__main__":
    main()
