#!/usr/bin/env python3
"""A step of fine-tuning a RoBERTa or BERT with Shoal beside one with transformers and
PyTorch: forward, loss, backward, clipping and AdamW, from the same weights and on the
same tokens, taking turns in one process.

    text_step.py MODEL [--data ../shared/data/glue] [--parts step,epoch]

step   32 sequences of 128 tokens. The losses of the first five steps, without dropout,
       must agree to 1e-4 before anything is timed; then the best of --repeats, without
       dropout and with it (of the attention's weights neither has any)
epoch  the task RTE as it is: ours packs a batch, PyTorch pads it to its longest; the sum
       of all batches, or of the first --batches, each taken by both in turn

Run it with a Python that has torch 2.13, transformers and tokenizers, on a quiet machine.
The exit code is 1 when losses differ or a bar is missed."""
import argparse
import csv
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_void_p
from pathlib import Path

import numpy
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from library import WITH_BACKWARD  # noqa: E402
from train_step_library import Config, Loss, ModelInputs, Parameter  # noqa: E402
from train_step_library import OptimizerConfig, TrainingLibrary  # noqa: E402

CLASSES, RATE, CLIP, DECAY, FIRST_ROW = 2, 1e-4, 1.0, 0.01, 2
BARS = {"step": 0.95, "epoch": 0.75}


class Ours:
    def __init__(self, options, dropout, rows):
        self.library = TrainingLibrary(options.library, options.threads)
        c, check = self.library.c, self.library.check
        c.shoal_text_model_config.argtypes = [c_void_p, c_char_p, POINTER(Config)]
        c.shoal_text_model_load.argtypes = [c_void_p, c_char_p, c_void_p]
        config = Config(outputs=CLASSES, pooling=FIRST_ROW)
        check(c.shoal_attention_parse(self.library.context, options.attention.encode(),
                                      byref(config.attention)))
        folder = str(options.model).encode()
        check(c.shoal_text_model_config(self.library.context, folder, byref(config)))
        config.dropout = dropout
        self.model, self.optimizer = c_void_p(), c_void_p()
        check(c.shoal_model_create(self.library.context, byref(config), 1, 32, rows,
                                   WITH_BACKWARD, byref(self.model)))
        check(c.shoal_text_model_load(self.library.context, folder, self.model))
        adam = OptimizerConfig(1, 0.9, 0.999, 1e-8, DECAY, 4, 0)
        check(c.shoal_optimizer_create(self.model, byref(adam), byref(self.optimizer)))
        self.steps = 0

    def parameters(self):
        """{name: array}, where the model has them."""
        found, one = {}, Parameter()
        while self.library.c.shoal_model_parameter(self.model, len(found), byref(one)):
            shape = tuple(one.shape[:one.rank])
            found[one.name.decode()] = numpy.ctypeslib.as_array(one.values, shape)
        return found

    def step(self, sequences, labels):
        c, check = self.library.c, self.library.check
        offsets = numpy.cumsum([0] + [len(s) for s in sequences]).astype(numpy.int64)
        tokens = numpy.concatenate(sequences).astype(numpy.int32)
        targets = numpy.asarray(labels, numpy.int32)
        inputs = ModelInputs(batch=len(sequences), offsets=offsets.ctypes.data,
                             tokens=tokens.ctypes.data, training=1, step=self.steps)
        out, loss, norm = c_void_p(), Loss(), c_double()
        check(c.shoal_model_forward(self.model, byref(inputs), byref(out)))
        check(c.shoal_cross_entropy(self.library.context, len(sequences), CLASSES, out,
                                    targets.ctypes.data, out, byref(loss)))
        check(c.shoal_model_backward(self.model, byref(inputs), out, None))
        check(c.shoal_gradients_clip(self.model, CLIP, byref(norm)))
        check(c.shoal_optimizer_step(self.optimizer, RATE))
        self.steps += 1
        return loss.mean

    def destroy(self):
        self.library.c.shoal_optimizer_destroy(self.optimizer)
        self.library.c.shoal_model_destroy(self.model)


class Theirs:
    def __init__(self, options, dropout, ours):
        import transformers
        transformers.logging.set_verbosity_error()
        config = transformers.AutoConfig.from_pretrained(options.model)
        config.hidden_dropout_prob = dropout
        config.attention_probs_dropout_prob = 0.0
        config.classifier_dropout = dropout
        config.num_labels = CLASSES
        config._attn_implementation = "sdpa"
        kind = transformers.AutoModelForSequenceClassification
        self.model = kind.from_pretrained(options.model, config=config,
                                          dtype=torch.float32).train()
        self.take_head(ours)
        self.padding = config.pad_token_id
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE,
                                           weight_decay=DECAY, fused=True)

    def take_head(self, ours):
        """The same first weights of what the folder does not have."""
        given = ours.parameters()
        model = self.model
        if hasattr(model.classifier, "dense"):
            pairs = [(model.classifier.dense, "head"), (model.classifier.out_proj,
                                                        "output")]
        else:
            pairs = [(model.bert.pooler.dense, "head"), (model.classifier, "output")]
        with torch.no_grad():
            for layer, name in pairs:
                layer.weight.copy_(torch.from_numpy(given[name + ".weight"]))
                layer.bias.copy_(torch.from_numpy(given[name + ".bias"]))

    def step(self, sequences, labels):
        longest = max(map(len, sequences))
        ids = torch.full((len(sequences), longest), self.padding)
        mask = torch.zeros((len(sequences), longest), dtype=torch.long)
        for row, tokens in enumerate(sequences):
            ids[row, :len(tokens)] = torch.from_numpy(tokens.astype(numpy.int64))
            mask[row, :len(tokens)] = 1
        given = {"input_ids": ids}
        if not bool(mask.all()):
            given["attention_mask"] = mask
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(**given, labels=torch.tensor(labels)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.item()


def pair(options, dropout, rows):
    ours = Ours(options, dropout, rows)
    return ours, Theirs(options, dropout, ours)


def timed(call, *arguments):
    time.sleep(0.2)  # the other's threads stop spinning
    begun = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - begun, result


def compare_losses(first, second, what):
    worst = max(abs(a - b) for a, b in zip(first, second))
    print(f"{what}: losses differ by {worst:.1e}")
    return worst <= 1e-4


def compare_step(options):
    draw = numpy.random.default_rng(1)
    rows = [draw.integers(10, 20000, 128) for _ in range(32)]
    labels = [int(x) for x in draw.integers(0, CLASSES, 32)]
    good, ratios = True, {}
    for dropout in (0.0, 0.1):
        ours, theirs = pair(options, dropout, 32 * 128)
        if dropout == 0:
            good = compare_losses([ours.step(rows, labels) for _ in range(5)],
                                  [theirs.step(rows, labels) for _ in range(5)],
                                  "five steps of 32 x 128 tokens")
        times = [(timed(ours.step, rows, labels)[0], timed(theirs.step, rows, labels)[0])
                 for _ in range(options.repeats)]
        best = [min(column) for column in zip(*times)]
        ratios[dropout] = best[0] / best[1]
        print(f"dropout {dropout}: ours {best[0]:.3f} s, PyTorch {best[1]:.3f} s, "
              f"ratio {ratios[dropout]:.3f}")
        ours.destroy()
    return good and (options.quick or max(ratios.values()) <= BARS["step"])


def read_rte(options):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    with open(options.data / "RTE" / "train.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    order = numpy.random.default_rng(2).permutation(len(rows))
    return [(numpy.array(tokenizer.encode(rows[i]["sentence1"],
                                          rows[i]["sentence2"]).ids),
             int(rows[i]["label"])) for i in order]


def compare_epoch(options):
    examples = read_rte(options)
    batches = [examples[i:i + 32] for i in range(0, len(examples), 32)]
    batches = batches[:options.batches or None]
    ours, theirs = pair(options, 0.0, 32 * 128)
    sums, losses = [0.0, 0.0], ([], [])
    for batch in batches:
        rows, labels = [row for row, _ in batch], [label for _, label in batch]
        for which, call in enumerate((ours.step, theirs.step)):
            seconds, loss = timed(call, rows, labels)
            sums[which] += seconds
            losses[which].append(loss)
    ratio = sums[0] / sums[1]
    good = compare_losses(losses[0][:5], losses[1][:5], "five batches of RTE")
    print(f"{len(batches)} batches of RTE: ours {sums[0]:.1f} s, "
          f"PyTorch {sums[1]:.1f} s, ratio {ratio:.3f}")
    ours.destroy()
    return good and (options.quick or ratio <= BARS["epoch"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", type=Path, help="Hugging Face folder of a BERT or RoBERTa")
    add("--data", type=Path, default=ROOT.parent / "shared" / "data" / "glue")
    add("--parts", default="step,epoch", help="(default: %(default)s)")
    add("--attention", default="full", help="ours (default: %(default)s)")
    add("--threads", type=int, default=2, help="(default: %(default)s)")
    add("--repeats", type=int, default=5, help="(default: %(default)s)")
    add("--batches", type=int, default=0, help="of RTE (default: 0, all)")
    add("--library", type=Path, default=ROOT / "build" / "libshoal-models.so")
    add("--quick", action="store_true", help="no bars: does it work?")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts = {"step": compare_step, "epoch": compare_epoch}
    good = [parts[name](options) for name in options.parts.split(",")]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
