#!/usr/bin/env python3
"""Records results of transformers for test_text_encoder.c: tiny encoders with random
weights (float32, float16, bfloat16) beside the tokenizers of record.py, and for each
expected.safetensors with ids, types, hidden states and mean vectors of a few texts. Run
it with a Python that has torch, transformers, tokenizers and safetensors; the result is
checked in.
"""
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
TEXTS = ["Attention in linear time.", "a", "", "Ünïcödé, and 中文 'tis",
         "queries huddle into clusters, each cluster attends once " * 2]
SMALL = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=3,
             intermediate_size=20)


def models(words):
    yield "bert", "wordpiece", torch.float32, transformers.BertModel(
        transformers.BertConfig(**SMALL, vocab_size=words["wordpiece"],
                                max_position_embeddings=64))
    yield "roberta", "byte-pairs", torch.float16, transformers.RobertaModel(
        transformers.RobertaConfig(**SMALL, vocab_size=words["byte-pairs"],
                                   max_position_embeddings=80, pad_token_id=1,
                                   type_vocab_size=1))
    yield "modern", "byte-pairs", torch.bfloat16, transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **SMALL, vocab_size=words["byte-pairs"], max_position_embeddings=96,
            local_attention=8, pad_token_id=1, bos_token_id=0, eos_token_id=2,
            cls_token_id=0, sep_token_id=2))
    yield "xlm-roberta", "unigram", torch.float32, transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig(**SMALL, vocab_size=words["unigram"],
                                      max_position_embeddings=96, pad_token_id=1,
                                      type_vocab_size=1))


def expected(model, tokenizer, pairs):
    out = {"ids": [], "types": [], "offsets": [0], "hidden": [], "vectors": []}
    for text in TEXTS:
        got = tokenizer.encode(text, TEXTS[0] if pairs else None)
        given = {"input_ids": torch.tensor([got.ids])}
        if pairs:
            given["token_type_ids"] = torch.tensor([got.type_ids])
        with torch.no_grad():
            hidden = model(**given).last_hidden_state[0]
        out["ids"] += got.ids
        out["types"] += got.type_ids
        out["offsets"].append(len(out["ids"]))
        out["hidden"].append(hidden)
        out["vectors"].append(hidden.mean(0))
    return {"ids": torch.tensor(out["ids"], dtype=torch.int32),
            "types": torch.tensor(out["types"], dtype=torch.int32),
            "offsets": torch.tensor(out["offsets"], dtype=torch.int64),
            "hidden": torch.cat(out["hidden"]), "vectors": torch.stack(out["vectors"])}


def main():
    torch.manual_seed(1)
    words = {}
    for name in ("wordpiece", "byte-pairs", "unigram"):
        made = Tokenizer.from_file(str(HERE / name / "tokenizer.json"))
        words[name] = made.get_vocab_size()
    for name, tokens, dtype, model in models(words):
        folder = HERE / name
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.eval().to(dtype).save_pretrained(folder)
        model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = Tokenizer.from_file(str(HERE / tokens / "tokenizer.json"))
        shutil.copy(HERE / tokens / "tokenizer.json", folder / "tokenizer.json")
        save_file(expected(model, tokenizer, False), str(folder / "expected.safetensors"))
        if name == "bert":
            save_file(expected(model, tokenizer, True), str(folder / "pairs.safetensors"))


if __name__ == "__main__":
    main()
