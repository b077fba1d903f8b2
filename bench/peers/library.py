"""libshoal through ctypes, as far as the comparison needs it. The structures mirror
include/shoal.h field by field; a shoal_attention stays opaque, in a larger block.
"""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint, c_uint64, c_void_p
from pathlib import Path

WITH_BACKWARD = 1


class Sized(ctypes.Structure):
    """A configuration struct, whose first field is its size."""

    def __init__(self, *values, **fields):
        super().__init__(ctypes.sizeof(self), *values, **fields)


class Strides(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("position", c_int64)]


class Problem(Sized):
    _fields_ = [("size", c_size_t),
                ("batch", c_int64), ("heads", c_int64), ("kv_heads", c_int64),
                ("queries", c_int64), ("keys", c_int64), ("dim", c_int64),
                ("value_dim", c_int64), ("scale", c_float), ("packed", c_int),
                ("causal", c_int), ("dropout", c_float), ("dtype", c_int),
                ("q_strides", POINTER(Strides)), ("k_strides", POINTER(Strides)),
                ("v_strides", POINTER(Strides)), ("out_strides", POINTER(Strides))]


class PairStrides(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("query", c_int64),
                ("key", c_int64)]


class Inputs(Sized):
    _fields_ = [("size", c_size_t), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p),
                ("query_lengths", c_void_p), ("key_lengths", c_void_p),
                ("query_offsets", c_void_p), ("key_offsets", c_void_p),
                ("clusters", c_void_p), ("state", c_void_p),
                ("key_bias", c_void_p), ("key_bias_strides", POINTER(Strides)),
                ("bias", c_void_p), ("mask", c_void_p),
                ("bias_strides", POINTER(PairStrides)),
                ("mask_strides", POINTER(PairStrides)), ("dropout_seed", c_uint64)]


class Gradients(Sized):
    _fields_ = [("size", c_size_t),
                ("out", c_void_p), ("dout", c_void_p), ("dq", c_void_p),
                ("dk", c_void_p), ("dv", c_void_p), ("dbias", c_void_p),
                ("dkey_bias", c_void_p)]


class Options(Sized):
    _fields_ = [("size", c_size_t),
                ("threads", c_int), ("isa", c_char_p), ("allocate", c_void_p),
                ("release", c_void_p), ("user", c_void_p),
                ("crossover", c_int)]


# python/tests/test_native.py compares these with the header.
STRUCTURES = {"shoal_strides": Strides, "shoal_problem": Problem,
              "shoal_pair_strides": PairStrides, "shoal_inputs": Inputs,
              "shoal_gradients": Gradients, "shoal_options": Options}


class Error(RuntimeError):
    pass


class Library:
    """One context with a number of threads."""

    ATTENTION_BYTES = 256  # a shoal_attention is much smaller; it is opaque here

    def __init__(self, path: Path, threads: int):
        self.c = ctypes.CDLL(str(path))
        self._declare()
        self.context = c_void_p()
        options = Options(threads=threads)
        self.check(self.c.shoal_context_create(byref(options), byref(self.context)))

    def _declare(self):
        c = self.c
        c.shoal_version.restype = c_char_p
        c.shoal_context_message.restype = c_char_p
        c.shoal_context_message.argtypes = [c_void_p]
        c.shoal_context_isa.restype = c_char_p
        c.shoal_context_isa.argtypes = [c_void_p]
        c.shoal_context_create.argtypes = [POINTER(Options), POINTER(c_void_p)]
        c.shoal_attention_parse.argtypes = [c_void_p, c_char_p, c_void_p]
        c.shoal_plan_create.argtypes = [c_void_p, POINTER(Problem), c_void_p, c_uint,
                                        POINTER(c_void_p)]
        c.shoal_plan_destroy.argtypes = [c_void_p]
        c.shoal_plan_destroy.restype = None
        c.shoal_plan_workspace.argtypes = [c_void_p]
        c.shoal_plan_workspace.restype = c_size_t
        c.shoal_forward.argtypes = [c_void_p, POINTER(Inputs), c_void_p]
        c.shoal_backward.argtypes = [c_void_p, POINTER(Inputs), POINTER(Gradients)]
        for name in ("shoal_plan_clusters", "shoal_plan_top_keys"):
            function = getattr(c, name)
            function.argtypes = [c_void_p, c_void_p]
            function.restype = POINTER(c_int32)

    def check(self, status):
        if status != 0:
            message = self.c.shoal_context_message(self.context) if self.context else b""
            raise Error(message.decode() or f"status {status}")

    @property
    def version(self):
        return self.c.shoal_version().decode()

    @property
    def isa(self):
        return self.c.shoal_context_isa(self.context).decode()

    def plan(self, kind: str, batch, heads, length, dim, backward, causal=0,
             dtype=0) -> "Plan":
        attention = ctypes.create_string_buffer(self.ATTENTION_BYTES)
        self.check(self.c.shoal_attention_parse(self.context, kind.encode(), attention))
        problem = Problem(batch=batch, heads=heads, queries=length, keys=length, dim=dim,
                          value_dim=dim, causal=causal, dtype=dtype)
        handle = c_void_p()
        self.check(self.c.shoal_plan_create(self.context, byref(problem), attention,
                                             WITH_BACKWARD if backward else 0,
                                             byref(handle)))
        return Plan(self, handle)


class Plan:
    def __init__(self, library, handle):
        self.library, self.handle = library, handle

    def forward(self, q, k, v, out, **masks):
        """Addresses of contiguous float32 arrays; k is 0 if the kind uses the queries as
        keys. masks: further fields of the inputs.
        """
        self.inputs = Inputs(q=q, k=k or None, v=v, **masks)
        self.library.check(
            self.library.c.shoal_forward(self.handle, byref(self.inputs), out))

    def backward(self, out, dout, dq, dk, dv):
        gradients = Gradients(out=out, dout=dout, dq=dq, dk=dk, dv=dv)
        self.library.check(self.library.c.shoal_backward(
            self.handle, byref(self.inputs), byref(gradients)))

    def groups(self):
        """Pointer to int32 [batch][heads][queries], or a null pointer."""
        return self.library.c.shoal_plan_clusters(self.handle, None)

    def top_keys(self):
        """Pointer to int32 [batch][heads][clusters][topk], or a null pointer."""
        return self.library.c.shoal_plan_top_keys(self.handle, None)

    def destroy(self):
        self.library.c.shoal_plan_destroy(self.handle)
        self.handle = None
