#!/usr/bin/env python3
"""Records results of transformers and PyTorch's autograd for test_text_training.c: the
encoders of record_models.py with a head for classes, and BERT's with one for spans. For
each a file with the tokens of a few pairs, targets, the head's weights under our names,
logits, loss and every gradient. Run it with a Python that has torch, transformers,
tokenizers and safetensors; the result is checked in.
"""
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
PAIRS = [("Attention in linear time.", "a"), ("a", "queries huddle into clusters"),
         ("each cluster attends once", "Attention in linear time, once and once")]
CLASSES = 3
OWN = {"classifier.dense.weight": "head.weight", "classifier.dense.bias": "head.bias",
       "classifier.out_proj.weight": "output.weight",
       "classifier.out_proj.bias": "output.bias", "classifier.weight": "output.weight",
       "classifier.bias": "output.bias", "qa_outputs.weight": "output.weight",
       "qa_outputs.bias": "output.bias", "bert.pooler.dense.weight": "head.weight",
       "bert.pooler.dense.bias": "head.bias"}


def record(model, tokenizer, spans):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in OWN:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    out = {"own." + OWN[name]: value.detach().clone()
           for name, value in model.named_parameters() if name in OWN}
    ids, types, offsets, targets, logits, total = [], [], [0], [], [], 0
    for at, pair in enumerate(PAIRS):
        got = tokenizer.encode(*pair)
        given = {"input_ids": torch.tensor([got.ids]),
                 "token_type_ids": torch.tensor([got.type_ids])}
        if spans:
            wanted = (at + 1, min(at + 3, len(got.ids) - 1))
            result = model(**given, start_positions=torch.tensor([wanted[0]]),
                           end_positions=torch.tensor([wanted[1]]))
            logits.append(torch.stack([result.start_logits[0], result.end_logits[0]], 1))
            targets += wanted
        else:
            result = model(**given, labels=torch.tensor([at % CLASSES]))
            logits.append(result.logits)
            targets.append(at % CLASSES)
        (result.loss / len(PAIRS)).backward()
        total += result.loss.item() / len(PAIRS)
        ids += got.ids
        types += got.type_ids
        offsets.append(len(ids))
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            out["gradient." + name] = parameter.grad.clone()
    out.update(ids=torch.tensor(ids, dtype=torch.int32),
               types=torch.tensor(types, dtype=torch.int32),
               offsets=torch.tensor(offsets, dtype=torch.int64),
               targets=torch.tensor(targets, dtype=torch.int32),
               logits=torch.cat(logits).detach(),
               loss=torch.tensor([total], dtype=torch.float64))
    return out


def main():
    torch.manual_seed(2)
    for name, kind, spans in (
            ("bert", transformers.BertForSequenceClassification, False),
            ("bert", transformers.BertForQuestionAnswering, True),
            ("roberta", transformers.RobertaForSequenceClassification, False)):
        more = {} if spans else {"num_labels": CLASSES}
        model = kind.from_pretrained(HERE / name, dtype=torch.float32, **more).eval()
        tokenizer = Tokenizer.from_file(str(HERE / name / "tokenizer.json"))
        made = {key: value.contiguous()
                for key, value in record(model, tokenizer, spans).items()}
        save_file(made, str(HERE / name / ("spans" if spans else "classes")) +
                  ".safetensors")


if __name__ == "__main__":
    main()
