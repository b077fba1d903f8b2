#!/usr/bin/env python3
"""Hidden states and vectors of texts beside transformers' (PyTorch, float32). Run it with
a Python that has torch, transformers, tokenizers and numpy.

    text.py FOLDER... [--build build] [--data ../shared/data] [--texts 200]
        Hidden states on texts of SQuAD and GLUE (odd ones pairs), packed, and the Pearson
        correlation on the first 500 rows of STS-B's dev set.
    text.py modern [--lengths 1,2,17,127,128,129,1000,8192]
        ModernBERT of several shapes with random weights, tied to no folder.
    text.py xlm-roberta
        XLM-R with random weights and the Unigram tokenizer of tests/models/text: also
        vectors, each side with its own ids.

The difference of a text is the largest of a hidden state, over the largest value."""
import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer as Theirs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from text_library import TextEncoder, TextLibrary  # noqa: E402
from tokens import sentences  # noqa: E402

LIMIT = 1e-5
MODERN = [  # several shapes; the last is the published one's, with fewer layers
    dict(hidden_size=48, num_attention_heads=3, intermediate_size=40,
         num_hidden_layers=4, vocab_size=100),
    dict(hidden_size=64, num_attention_heads=2, intermediate_size=96,
         num_hidden_layers=5, vocab_size=300, local_attention=32),
    dict(hidden_size=768, num_attention_heads=12, intermediate_size=1152,
         num_hidden_layers=4, vocab_size=500)]


def difference(ours, theirs):
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def theirs_of(model, ids, types=None):
    with torch.no_grad():
        given = {"input_ids": torch.tensor([ids])}
        if types is not None:
            given["token_type_ids"] = torch.tensor([types])
        return model(**given).last_hidden_state[0].numpy()


def some_texts(data, count):
    """Short and long texts: a regular sample of the sentences."""
    every = [text for i, text in enumerate(sentences(data)) if i % 997 == 0]
    random.Random(4).shuffle(every)
    return every[:count]


def compare_folder(folder, given):
    library = TextLibrary(given.build, given.threads)
    encoder = TextEncoder(library, folder)
    tokenizer = Theirs.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(512, encoder.info.positions))
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    texts = some_texts(given.data, given.texts)
    encodings = [tokenizer.encode(text, texts[i - 1] if i % 2 else None)
                 for i, text in enumerate(texts)]
    worst, at = 0.0, 0
    while at < len(encodings):  # packed: as many as fit the encoder's rows
        batch, rows = [], 0
        while at < len(encodings) and rows + len(encodings[at].ids) <= encoder.info.rows:
            rows += len(encodings[at].ids)
            batch.append(encodings[at])
            at += 1
        ours = encoder.forward([one.ids for one in batch],
                               [one.type_ids for one in batch])
        first = 0
        for one in batch:
            theirs = theirs_of(model, one.ids, one.type_ids)
            worst = max(worst, difference(ours[first:first + len(one.ids)], theirs))
            first += len(one.ids)
    good = worst <= LIMIT
    print(f"{folder}: {len(encodings)} texts, largest difference {worst:.2e} "
          f"{'ok' if good else 'TOO LARGE'}; STS-B {pearson(library, folder, given):.1f}")
    return good


def pearson(library, folder, given):
    """x 100; e5 wants its prefix, granite its first token."""
    name = Path(folder).name
    encoder = TextEncoder(library, folder, pooling=2 if "granite" in name else 0)
    rows = (given.data / "glue/STS-B/sts-dev.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in rows.split("\n") if line][:500]
    prefix = "query: " if "e5" in name else ""
    left, right = (encoder.embed([prefix + row[i] for row in rows]) for i in (5, 6))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(
        right, axis=1)
    return 100 * np.corrcoef(cosines, [float(row[4]) for row in rows])[0, 1]


def compare_modern(given):
    good = True
    for number, shape in enumerate(MODERN):
        torch.manual_seed(number)
        config = transformers.ModernBertConfig(
            **shape, max_position_embeddings=8192, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, cls_token_id=1, sep_token_id=2, attn_implementation="sdpa")
        model = transformers.ModernBertModel(config).eval()
        with torch.no_grad():  # far from the small first weights: every part counts
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.add_(0.3 * torch.randn_like(parameter))
                else:
                    parameter.mul_(3)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            good &= compare_lengths(model, folder, shape, given)
    return good


def compare_xlm_roberta(given):
    torch.manual_seed(1)
    source = ROOT / "tests/models/text/unigram/tokenizer.json"
    config = transformers.XLMRobertaConfig(
        hidden_size=96, num_attention_heads=6, num_hidden_layers=5, intermediate_size=160,
        vocab_size=Theirs.from_file(str(source)).get_vocab_size(), type_vocab_size=1,
        max_position_embeddings=514, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    model = transformers.XLMRobertaModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shutil.copy(source, folder)
        return compare_folder(folder, given) & compare_vectors(model, folder, given)


def compare_vectors(model, folder, given):
    """Means of hidden states, from the texts themselves."""
    tokenizer = Theirs.from_file(str(Path(folder) / "tokenizer.json"))
    encoder = TextEncoder(TextLibrary(given.build, given.threads), folder)
    texts = [text for text in some_texts(given.data, given.texts)
             if len(tokenizer.encode(text).ids) <= encoder.info.positions]
    theirs = np.stack([theirs_of(model, tokenizer.encode(text).ids).mean(0)
                       for text in texts])
    found = difference(encoder.embed(texts), theirs)
    print(f"{len(texts)} vectors: {found:.2e} {'ok' if found <= LIMIT else 'TOO LARGE'}")
    return found <= LIMIT


def compare_lengths(model, folder, shape, given):
    library = TextLibrary(given.build, given.threads)
    encoder = TextEncoder(library, folder, rows=16384)
    draw = np.random.default_rng(3)
    lengths = [int(part) for part in given.lengths.split(",")]
    sequences = [draw.integers(0, shape["vocab_size"], n) for n in lengths]
    ours = encoder.forward(sequences)
    first, good = 0, True
    for n, ids in zip(lengths, sequences):
        found = difference(ours[first:first + n], theirs_of(model, ids.tolist()))
        first += n
        good &= found <= LIMIT
        print(f"ModernBERT {shape['hidden_size']} x {shape['num_hidden_layers']}, "
              f"{n} tokens: {found:.2e} {'ok' if found <= LIMIT else 'TOO LARGE'}")
    return good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="of models, modern, or xlm-roberta")
    parser.add_argument("--build", default=ROOT / "build", type=Path)
    parser.add_argument("--data", default=ROOT / ".." / "shared" / "data", type=Path)
    parser.add_argument("--texts", default=200, type=int)
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--lengths", default="1,2,17,127,128,129,1000,8192")
    given = parser.parse_args()
    good = True
    made = {"modern": compare_modern, "xlm-roberta": compare_xlm_roberta}
    for folder in given.folders:
        good &= made[folder](given) if folder in made else compare_folder(folder, given)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
