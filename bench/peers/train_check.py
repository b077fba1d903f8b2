"""Loss and every gradient of whole models against PyTorch on the same weights.

    python train_check.py build/tests/test_models_cases

The test program writes its cases (weights, tokens, targets, loss, gradients) as .npy
files to a temporary folder; here the same models are built from PyTorch's own functions,
each sequence alone, and differentiated by autograd in float64. Exits 1 when a number is
further than 1e-4, relative to the largest of its array, from that. PyTorch's own distance
in float32 is printed beside it, and is no measure: it is rounding too.
"""

import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.nn.functional as F

CASES = ["pre_gelu", "post_gelu", "pre_relu_learned", "post_relu_mean", "pre_gelu_first",
         "shared_projection", "shared_full", "clustered_few"]
TOLERANCE = 1e-4
HEAD_POSITIONS, HEAD_MEAN = 0, 1


class Case:
    def __init__(self, folder, dtype):
        arrays = {path.name[:-4]: numpy.load(path) for path in folder.glob("*.npy")}
        (self.layers, self.heads, self.post, self.relu, self.learned, self.shared,
         self.head) = (int(x) for x in arrays.pop("settings"))
        self.lengths = arrays.pop("lengths").tolist()
        self.tokens = torch.from_numpy(arrays.pop("tokens")).long()
        self.targets = torch.from_numpy(arrays.pop("targets")).long()
        self.loss = float(arrays.pop("loss")[0])
        self.gradients = {name[len("gradient."):]: value for name, value in arrays.items()
                          if name.startswith("gradient.")}
        self.weights = {name: torch.from_numpy(arrays[name]).to(dtype).requires_grad_()
                        for name in self.gradients}
        self.dtype = dtype

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, x, name):
        scale = self.weights[name + ".scale"]
        return F.layer_norm(x, scale.shape, scale, self.weights[name + ".shift"], 1e-5)

    def attention(self, x, prefix):
        def heads(y):
            return y.view(len(y), self.heads, -1).transpose(0, 1)
        query = self.linear(x, prefix + "query")
        key = query if self.shared else self.linear(x, prefix + "key")
        value = self.linear(x, prefix + "value")
        out = F.scaled_dot_product_attention(heads(query)[None], heads(key)[None],
                                             heads(value)[None])[0]
        return self.linear(out.transpose(0, 1).reshape(len(x), -1), prefix + "output")

    def forward_branch(self, x, prefix):
        activate = F.relu if self.relu else F.gelu
        return self.linear(activate(self.linear(x, prefix + "widen")), prefix + "narrow")

    def encode(self, tokens):
        table = self.weights["embedding.weight"]
        size = table.shape[1]
        x = math.sqrt(size) * F.embedding(tokens, table)
        if self.learned:
            x = x + self.weights["positions.weight"][:len(tokens)]
        else:
            x = x + sinusoids(len(tokens), size).to(self.dtype)
        for layer in range(self.layers):
            prefix = f"encoder.layers.{layer}."
            for branch, inner, norm in ((self.attention, "attention.", "attention_norm"),
                                        (self.forward_branch, "feed_forward.",
                                         "forward_norm")):
                if self.post:
                    x = self.norm(x + branch(x, prefix + inner), prefix + norm)
                else:
                    x = x + branch(self.norm(x, prefix + norm), prefix + inner)
        return x if self.post else self.norm(x, "encoder.final_norm")

    def run(self):
        rows = [self.encode(part) for part in self.tokens.split(self.lengths)]
        if self.head == HEAD_POSITIONS:
            rows = torch.cat(rows)
        elif self.head == HEAD_MEAN:
            rows = torch.stack([x.mean(0) for x in rows])
        else:
            rows = torch.stack([x[0] for x in rows])
        loss = F.cross_entropy(self.linear(rows, "output"), self.targets, ignore_index=-1)
        loss.backward()
        return float(loss.detach())


def sinusoids(length, size):
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.stack([angles.sin(), angles.cos()], dim=2).reshape(length, size)


def distance(ours, exact):
    """The largest of all numbers and whose it is. Both are (loss, {name: gradient}).

    A gradient that is 0 in exact arithmetic (a key's bias moves every score of a query
    alike) is measured against the whole model's."""
    worst, where = abs(ours[0] - exact[0]) / abs(exact[0]), "loss"
    whole = max(abs(gradient).max() for gradient in exact[1].values())
    for name, expected in exact[1].items():
        size = max(abs(expected).max(), 1e-3 * whole)
        error = abs(ours[1][name] - expected).max() / size
        if not error <= worst:
            worst, where = error, name
    return worst, where


def torch_result(folder, dtype):
    case = Case(folder, dtype)
    loss = case.run()
    return loss, {name: w.grad.double().numpy() for name, w in case.weights.items()}


def check_case(folder):
    """Whether it is within the tolerance."""
    exact = torch_result(folder, torch.float64)
    case = Case(folder, torch.float64)
    worst, where = distance((case.loss, case.gradients), exact)
    theirs, _ = distance(torch_result(folder, torch.float32), exact)
    fine = worst <= TOLERANCE
    print(f"{'ok' if fine else 'not ok'} {folder.name}: loss and {len(exact[1])} "
          f"gradients, worst {worst:.1e} ({where}); PyTorch in float32 {theirs:.1e}")
    return fine


def main(program):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in CASES:
            (folder / name).mkdir()
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, SHOAL_NN_CASES=temporary,
                                CMOCKA_MESSAGE_OUTPUT="TAP"))
        return 0 if all([check_case(folder / name) for name in CASES]) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
