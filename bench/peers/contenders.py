"""The contenders: each is prepared for one problem and then called repeatedly, forward or
forward and backward. Shapes: B batch, H heads, N positions, D features.
"""
import ctypes
import math

import numpy
import torch


class Contender:
    name = ""
    ours = False
    modes = ("forward", "train")
    growth = 4  # of the time when N doubles, to estimate the next length

    def load(self, data, mode):
        """The inputs in a suitable layout, and what is created once per program: neither
        timed nor counted as memory.
        """

    def prepare(self, mode):
        """What is created once per problem: not timed, but counted as memory."""

    def call(self, mode):
        """The timed call; returns nothing."""
        raise NotImplementedError

    def clear(self):
        """Between calls, not timed."""

    def release(self):
        """Releases what prepare created."""
        self.__dict__.clear()


# ---- Shoal  --------------------


class Shoal(Contender):
    ours = True

    def __init__(self, library, kind):
        self.library, self.kind = library, kind
        self.name = f"shoal {kind}"
        self.growth = 4 if kind == "full" else 2

    def load(self, data, mode):
        self.data = data

    def prepare(self, mode):
        data = self.data
        b, h, n, d = data.q.shape
        shared = self.kind.startswith("lsh") or self.kind == "shared-full"
        self.plan = self.library.plan(self.kind, b, h, n, d, mode == "train")
        self.k = 0 if shared else data.k.data_ptr()
        self.out = torch.empty_like(data.v)
        if mode == "train":
            self.dq, self.dk, self.dv = (torch.empty_like(data.q) for _ in range(3))

    def call(self, mode):
        data = self.data
        self.plan.forward(data.q.data_ptr(), self.k, data.v.data_ptr(),
                          self.out.data_ptr())
        if mode == "train":
            self.plan.backward(self.out.data_ptr(), data.dout.data_ptr(),
                               self.dq.data_ptr(), self.dk.data_ptr(),
                               self.dv.data_ptr())

    def release(self):
        self.plan.destroy()
        for name in ("data", "plan", "out", "dq", "dk", "dv"):
            self.__dict__.pop(name, None)

    def array(self, pointer, count):
        """A copy of int32 numbers owned by the plan; None if there are none."""
        if not pointer:
            return None
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        return torch.from_numpy(numpy.ctypeslib.as_array(
            (ctypes.c_int32 * count).from_address(address)).astype("int64"))


# ---- PyTorch  --------------------


class Differentiable(Contender):
    """Leaves with gradients; backward through the result of attend()."""

    def tensors(self, data):
        return data.q, data.k, data.v, data.dout

    def load(self, data, mode):
        q, k, v, self.dout = self.tensors(data)
        self.leaves = [t.detach().requires_grad_(mode == "train") for t in (q, k, v)]

    def attend(self, q, k, v):
        raise NotImplementedError

    def call(self, mode):
        if mode == "train":
            self.attend(*self.leaves).backward(self.dout)
        else:
            with torch.no_grad():
                self.result = self.attend(*self.leaves)

    def clear(self):
        self.result = None
        for leaf in self.leaves:
            leaf.grad = None

    def release(self):
        self.leaves = self.dout = self.result = None


class TorchSDPA(Differentiable):
    name = "torch sdpa"

    def attend(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


class TorchPlain(Differentiable):
    """As written in the paper: the whole N x N matrix."""

    name = "torch plain"

    def attend(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        return torch.matmul(torch.softmax(scores, -1), v)


# ---- ONNX Runtime  --------------------


class OnnxRuntime(Contender):
    name = "onnxruntime"
    modes = ("forward",)

    def __init__(self, threads):
        import onnx  # noqa: F401, both must be there
        import onnxruntime  # noqa: F401
        self.threads = threads

    def model(self, b, h, n, d):
        from onnx import TensorProto, helper
        def tensor(name):
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [b, n, h * d])
        node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["out"],
                                domain="com.microsoft", num_heads=h)
        graph = helper.make_graph([node], "attention", [tensor(x) for x in "qkv"],
                                  [tensor("out")])
        return helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])

    def load(self, data, mode):
        import onnxruntime
        b, h, n, d = data.q.shape
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        self.session = onnxruntime.InferenceSession(
            self.model(b, h, n, d).SerializeToString(), options,
            providers=["CPUExecutionProvider"])
        # [B][N][H D], its own layout.
        self.feeds = {name: t.transpose(1, 2).reshape(b, n, h * d).contiguous().numpy()
                      for name, t in (("q", data.q), ("k", data.k), ("v", data.v))}

    def call(self, mode):
        self.result = self.session.run(None, self.feeds)[0]

    def clear(self):
        self.result = None

    def release(self):
        self.session = self.feeds = self.result = None


# ---- The authors' package  --------------------


class FastTransformers(Differentiable):
    """Inputs in its own layout, [B][N][H][D]."""

    def __init__(self, name, make, growth):
        self.name, self.make, self.growth = f"fast-transformers {name}", make, growth

    def tensors(self, data):
        return [t.transpose(1, 2).contiguous() for t in
                (data.q, data.k, data.v, data.dout)]

    def load(self, data, mode):
        from fast_transformers.masking import FullMask, LengthMask
        super().load(data, mode)
        b, _, n, _ = data.q.shape
        lengths = LengthMask(torch.full((b,), n, dtype=torch.int64), max_len=n)
        self.masks = FullMask(n), lengths, lengths
        self.module = self.make(n)
        self.module.train(mode == "train")

    def attend(self, q, k, v):
        return self.module(q, k, v, *self.masks)

    def release(self):
        super().release()
        self.module = self.masks = None


def fast_transformers(kinds):
    """The authors' kinds with the same names as ours and the paper's settings: 100
    clusters, 63 bits, 10 iterations, 32 top keys, chunks of 32, no dropout.
    """
    from fast_transformers.attention import (ClusteredAttention, FullAttention,
                                             ImprovedClusteredAttention,
                                             ReformerAttention)

    def reformer(rounds):
        def make(n):  # as many buckets as chunks
            bits = max(1, round(math.log2(max(2, n // 32))))
            return ReformerAttention(chunk_size=32, bits=bits, rounds=rounds,
                                     attention_dropout=0.0)
        return make

    def clustered(n):
        return ClusteredAttention(100, iterations=10, bits=63, attention_dropout=0.0)

    def improved(n):
        return ImprovedClusteredAttention(100, iterations=10, bits=63, topk=32,
                                          attention_dropout=0.0)

    theirs = {"full": (lambda n: FullAttention(attention_dropout=0.0), 4),
              "clustered-100": (clustered, 2), "i-clustered-100": (improved, 2),
              "lsh-1": (reformer(1), 2), "lsh-4": (reformer(4), 2)}
    return [FastTransformers(kind, *theirs[kind]) for kind in kinds if kind in theirs]
