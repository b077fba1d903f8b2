"""The same model, data and optimizer in PyTorch, as one would write them there: joined
projections, scaled_dot_product_attention, nn.LayerNorm, F.gelu, torch.optim.RAdam with
its foreach implementation. Shapes: B batch, N positions, M features of a row."""
import math

import numpy
import torch
import torch.nn.functional as F
from torch import nn

IGNORED = -1
SYMBOLS, MASK = 10, 11


class Layer(nn.Module):
    """Pre-norm: x += attention(norm(x)); x += feed-forward(norm(x))."""

    def __init__(self, size, heads, wide):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.projections = nn.Linear(size, 3 * size)
        self.output = nn.Linear(size, size)
        self.widen, self.narrow = nn.Linear(size, wide), nn.Linear(wide, size)

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = self.projections(self.attention_norm(x)).view(
            batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, size))
        return x + self.narrow(F.gelu(self.widen(self.forward_norm(x))))


class Encoder(nn.Module):
    """Tokens [B][N] to logits [B][N][outputs], with a trainer's weights."""

    def __init__(self, weights, heads, length):
        super().__init__()
        vocabulary, size = weights["embedding.weight"].shape
        wide = len(weights["encoder.layers.0.feed_forward.widen.bias"])
        layers = sum(name.endswith("widen.bias") for name in weights)
        self.scale = math.sqrt(size)
        self.embedding = nn.Embedding(vocabulary, size)
        self.layers = nn.ModuleList(Layer(size, heads, wide) for _ in range(layers))
        self.final_norm = nn.LayerNorm(size)
        self.output = nn.Linear(size, len(weights["output.bias"]))
        self.register_buffer("positions", sinusoids(length, size))
        self.take(weights)

    @torch.no_grad()
    def take(self, weights):
        weights = {name: torch.from_numpy(value) for name, value in weights.items()}
        def linear(module, name):
            module.weight.copy_(weights[name + ".weight"])
            module.bias.copy_(weights[name + ".bias"])
        def norm(module, name):
            module.weight.copy_(weights[name + ".scale"])
            module.bias.copy_(weights[name + ".shift"])
        self.embedding.weight.copy_(weights["embedding.weight"])
        for i, layer in enumerate(self.layers):
            prefix = f"encoder.layers.{i}."
            for part in ("weight", "bias"):
                getattr(layer.projections, part).copy_(torch.cat(
                    [weights[f"{prefix}attention.{name}.{part}"]
                     for name in ("query", "key", "value")]))
            linear(layer.output, prefix + "attention.output")
            linear(layer.widen, prefix + "feed_forward.widen")
            linear(layer.narrow, prefix + "feed_forward.narrow")
            norm(layer.attention_norm, prefix + "attention_norm")
            norm(layer.forward_norm, prefix + "forward_norm")
        norm(self.final_norm, "encoder.final_norm")
        linear(self.output, "output")

    def forward(self, tokens):
        x = self.scale * self.embedding(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.output(self.final_norm(x))


def sinusoids(length, size):
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.stack([angles.sin(), angles.cos()], dim=2).reshape(length, size).float()


class TorchTrainer:
    """A step is forward, backward, clipping and R-Adam, as the trainer of Shoal does."""

    def __init__(self, weights, heads, length):
        self.model = Encoder(weights, heads, length)
        self.optimizer = torch.optim.RAdam(
            self.model.parameters(), lr=2e-4, weight_decay=0.01,
            decoupled_weight_decay=True, foreach=True)

    def step(self, tokens, targets):
        """Loss and norm of the gradient, as tensors."""
        self.optimizer.zero_grad()
        logits = self.model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                               ignore_index=IGNORED)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 10, foreach=True)
        self.optimizer.step()
        return loss.detach(), norm


# ---- The masked copy, number by number as cli/train_copy.c makes it -------------------

STREAM = 1000
GOLDEN = 0x9e3779b97f4a7c15
WORD = (1 << 64) - 1


def mix(x):
    x = x ^ (x >> numpy.uint64(30))
    x = x * numpy.uint64(0xbf58476d1ce4e5b9)
    x = x ^ (x >> numpy.uint64(27))
    x = x * numpy.uint64(0x94d049bb133111eb)
    return x ^ (x >> numpy.uint64(31))


def random_bits(seeds, counters):
    """Arrays of uint64, element by element."""
    seeds, counters = numpy.broadcast_arrays(numpy.asarray(seeds, numpy.uint64),
                                             numpy.asarray(counters, numpy.uint64))
    key = mix(seeds + numpy.uint64(GOLDEN * (STREAM + 1) & WORD))
    counted = (counters + numpy.uint64(1)) * numpy.uint64(GOLDEN)
    return mix(mix(key + counted) ^ key)


def random_below(seeds, counters, bound):
    """The upper half of bits x bound, in halves of 32 bits; bound < 2^32."""
    bits, bound = random_bits(seeds, counters), numpy.uint64(bound)
    half, low = numpy.uint64(32), numpy.uint64(0xffffffff)
    return ((bits >> half) * bound + ((bits & low) * bound >> half)) >> half


def copy_batch(seed, number, batch, length):
    """Tokens and targets [batch][2 (length + 1)] of a training batch."""
    split = random_bits([seed], 0)
    keys = random_bits(random_bits(split, number), numpy.arange(batch))
    tokens = numpy.zeros((batch, 2 * (length + 1)), numpy.int64)
    targets = numpy.full_like(tokens, IGNORED)
    wanted = numpy.full(batch, max(1, (4 * length + 5) // 10), numpy.uint64)
    rows = numpy.arange(batch)
    for i in range(length):
        symbol = 1 + random_below(keys, 3 * i, SYMBOLS).astype(numpy.int64)
        masked = random_below(keys, 3 * i + 1, length - i) < wanted
        copy = random_below(keys, 3 * i + 2, 2).astype(numpy.int64)
        wanted -= masked.astype(numpy.uint64)
        tokens[:, 1 + i] = tokens[:, 2 + i + length] = symbol
        place = 1 + i + copy * (length + 1)
        tokens[rows[masked], place[masked]] = MASK
        targets[rows[masked], place[masked]] = symbol[masked]
    return torch.from_numpy(tokens), torch.from_numpy(targets)
