#!/usr/bin/env python3
"""Writes the corpora of the fuzz targets of data files.

Run it in this directory; it fills safetensors/, ggml/, hf/ and lexicon/. Names that begin
with ok- are valid inputs, those that begin with bad- have one error.
"""
import json
import os
import struct


def save(folder, name, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


# ---- safetensors ---------------------------------------------------------------------


def wrap(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    two = {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 3], 0, 24),
           "b.weight": tensor("I16", [5], 24, 34)}
    data = bytes(range(34))
    cases = {
        "ok-two": wrap(two, data),
        "ok-empty": wrap({}),
        "ok-padded": wrap(b"{}      "),
        "ok-scalar": wrap({"s": tensor("F64", [], 0, 8)}, bytes(8)),
        "ok-nothing-in-it": wrap({"e": tensor("U8", [0, 7], 0, 0)}),
        "ok-types": wrap({t: tensor(t, [1], 0 + i, 1 + i) for i, t in
                          enumerate(["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"])},
                         bytes(5)),
        "bad-length-huge": wrap({}, length=2**64 - 1),
        "bad-length-over": wrap({}, length=100),
        "bad-length-zero": wrap(b""),
        "bad-json": wrap(b'{"a":'),
        "bad-array": wrap(b"[]"),
        "bad-space-first": wrap(b" {}"),
        "bad-deep": wrap(b'{"a":' + b"[" * 5000),
        "bad-metadata": wrap({"__metadata__": {"a": 1}}),
        "bad-twice": wrap(b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},'
                          b'"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', b"x"),
        "bad-type": wrap({"a": tensor("F31", [1], 0, 4)}, bytes(4)),
        "bad-real": wrap(b'{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}',
                         b"x"),
        "bad-overflow": wrap({"a": tensor("U8", [2**33, 2**33], 0, 0)}),
        "bad-overlap": wrap({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)},
                            b"xyz"),
        "bad-gap": wrap({"a": tensor("U8", [1], 0, 1), "b": tensor("U8", [1], 2, 3)},
                        b"xyz"),
        "bad-trailing": wrap({"a": tensor("U8", [1], 0, 1)}, b"xy"),
        "bad-utf8": wrap(b'{"\xff":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}',
                         b"x"),
        "bad-cut": wrap(two, data)[:-1],
        "bad-nothing": b"",
    }
    for name, content in cases.items():
        save("safetensors", name, content)


# ---- ggml ----------------------------------------------------------------------------


def weight(name, dims, kind=0, fill=None):
    count = 1
    for size in dims:
        count *= size
    data = bytes(count * (2 if kind else 4)) if fill is None else fill
    text = name.encode()
    return struct.pack("<3i", len(dims), len(text), kind) + \
        struct.pack("<%di" % len(dims), *dims) + text + data


def ggml():
    sizes = [51865, 1500, 2, 1, 1, 8, 2, 1, 1, 80, 1]
    head = struct.pack("<12i", 0x67676D6C, *sizes)
    filters = struct.pack("<2i", 80, 201)
    norm = weight("encoder.ln_post.weight", [2])
    cases = {
        "bad-cut-sizes": head[:-3],
        "bad-cut-filters": head + filters + bytes(100),
        "bad-filters": head + struct.pack("<2i", 81, 201),
        "bad-magic": b"lmgg" + head[4:],
        "bad-quantised": head[:-4] + struct.pack("<i", 2002),
        "bad-vocabulary": struct.pack("<2i", 0x67676D6C, -1) + head[8:],
        "bad-tensor-one": b"T" + norm,
        "bad-tensor-twice": b"T" + norm + norm,
        "bad-tensor-convolution": b"T" + weight("encoder.conv2.weight", [3, 2, 2], 1),
        "bad-tensor-type": b"T" + weight("encoder.ln_post.weight", [2], 2, b""),
        "bad-tensor-huge": b"T" + weight("encoder.ln_post.weight", [2**31 - 1] * 4, 0,
                                         b""),
        "bad-tensor-negative": b"T" + weight("encoder.ln_post.weight", [-2], 0, b""),
        "bad-tensor-rank": b"T" + struct.pack("<3i", 5, 1, 0),
        "bad-tensor-name": b"T" + struct.pack("<4i", 1, 2**31 - 1, 0, 2),
        "bad-tensor-zero-in-name": b"T" + weight("encoder\0ln", [2]),
        "bad-tensor-none": b"T",
    }
    for name, content in cases.items():
        save("ggml", name, content)


# ---- Hugging Face --------------------------------------------------------------------


def hugging_face():
    config = {
        "model_type": "whisper", "activation_function": "gelu", "vocab_size": 51865,
        "max_source_positions": 1500, "d_model": 8, "encoder_attention_heads": 2,
        "encoder_layers": 1, "max_target_positions": 448, "decoder_attention_heads": 2,
        "decoder_layers": 1, "num_mel_bins": 80, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "scale_embedding": False,
    }
    cases = {
        "ok-config": b"c" + json.dumps(config).encode(),
        "bad-config-real": b"c" + json.dumps({**config, "d_model": 8.0}).encode(),
        "bad-config-huge": b"c" + json.dumps({**config, "d_model": 2**40}).encode(),
        "bad-config-beyond": b"c" + json.dumps({**config, "d_model": 2**70}).encode(),
        "bad-config-text": b"cwhisper",
        "bad-vocabulary-short": b"v" + json.dumps({"!": 0, "\u0120a": 1}).encode(),
        "bad-vocabulary-same": b"v" + json.dumps({"!": 0, "a": 0}).encode(),
        "bad-vocabulary-spelling": b"v" + json.dumps({"\u4f60": 0}).encode(),
        "bad-vocabulary-number": b"v" + json.dumps({"!": -1}).encode(),
        "bad-tokenizer": b"v" + json.dumps({"model": {"vocab": {"!": 0}}}).encode(),
        "ok-suppress": b"s" + json.dumps({"suppress_tokens": [1, 2, 7],
                                          "begin_suppress_tokens": [220, 50257]})
                       .encode(),
        "bad-suppress": b"s" + json.dumps({"suppress_tokens": [1] * 300}).encode(),
        "ok-added": b"a" + json.dumps({"<|en|>": 50259, "<|zh|>": 50260}).encode(),
        "bad-added": b"a" + json.dumps({"<|en|>": 1}).encode(),
        "ok-special": b"t" + json.dumps({"added_tokens": [
            {"id": 50364, "content": "<|0.00|>"}]}).encode(),
        "ok-name": b"nmodel.encoder.layers.3.self_attn.q_proj.weight",
        "ok-name-outside": b"nmodel.decoder.embed_tokens.weight",
        "bad-name": b"nmodel.encoder.layers.99999.fc1.weight",
    }
    for name, content in cases.items():
        save("hf", name, content)


# ---- Lexicons: what is asked for, then the file --------------------------------------


def lexicon():
    cases = {
        "ok-kaldi": b" THE DH AH\nTHE DH IY\n\nCAT\tK AE T\r\n!SIL SIL",
        "ok-probabilities": b" a 1.0 A\na 0.25 B\nb 1 B\n",
        "ok-cmudict": b" ;;; x\n## y\nTHE  DH AH0\nTHE(2)  DH IY1 # weak\n(1) W AH1",
        "ok-stress": b"sTHE  DH AH0\nTHE(1)  DH AH1\nthe DH IY0\n",
        "ok-given": b"gx A B\ny SIL\n",
        "ok-numbers": b" one 1 2\ntwo 2 1\n",
        "bad-empty": b" ",
        "bad-comments": b" ;;; a\n## b\n\n",
        "bad-no-phones": b" THE DH AH\nCAT\n",
        "bad-only-a-comment": b" THE # DH AH\n",
        "bad-some-probabilities": b" a 1.0 A\nb B\n",
        "bad-more-probabilities": b" a 1.0 0.5 A\n",
        "bad-nul": b" a A\nb\0 B\n",
        "bad-latin": b" d\xe9j\xe0 D EY\n",
        "bad-long-phone": b" a " + b"A" * 64,
        "bad-long-line": b" a A\nb" + b" B" * 40000,
        "bad-phones": b"\n".join([b" a A"] + [b"w P%d" % i for i in range(4200)]),
        "bad-variants": b"\n".join([b" a A"] + [b"w P%d" % i for i in range(1100)]),
        "bad-not-given": b"gx A B\ny C\n",
    }
    for name, data in cases.items():
        save("lexicon", name, data)


safetensors()
ggml()
hugging_face()
lexicon()
