"""A training step of Shoal through ctypes, made of the parts of include/shoal_models.h:
only what the comparison needs. The structures are the header's, field by field."""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy

from library import WITH_BACKWARD, Error, Library, Sized

SYMBOLS, MASK = 10, 11
HEADS, RATE, CLIP = 6, 2e-4, 10


class Attention(ctypes.Structure):
    _fields_ = [("kind", c_int), ("clusters", c_int32), ("topk", c_int32),
                ("bits", c_int32), ("iterations", c_int32), ("rounds", c_int32),
                ("window", c_int32), ("rank", c_int32), ("clustering", c_int32),
                ("normaliser", c_int32), ("keyclusters", c_int32),
                ("block", c_int32), ("pool", c_int32), ("near", c_int32),
                ("tolerance", c_float), ("seed", c_uint64), ("reserved", c_int32 * 8)]


class Config(Sized):
    _fields_ = [("size", c_size_t),
                ("vocabulary", c_int64), ("features", c_int64), ("outputs", c_int64),
                ("max_length", c_int64), ("layers", c_int64), ("heads", c_int64),
                ("head_dim", c_int64), ("feed_forward", c_int64),
                ("attention", Attention), ("shared_qk", c_int32), ("norm", c_int32),
                ("activation", c_int32), ("positions", c_int32), ("pooling", c_int32),
                ("dropout", c_float), ("form", c_int32), ("types", c_int64),
                ("convolutions", c_int64), ("epsilon", c_float),
                ("reserved", c_int32 * 15)]


class ModelInputs(Sized):
    _fields_ = [("size", c_size_t),
                ("batch", c_int64), ("offsets", c_void_p), ("tokens", c_void_p),
                ("types", c_void_p), ("features", c_void_p), ("wanted", c_void_p),
                ("wanted_count", c_int64), ("training", c_int32), ("accumulate", c_int32),
                ("step", c_int64), ("first_row", c_int64), ("first_sequence", c_int64)]


class Loss(ctypes.Structure):
    _fields_ = [("mean", c_double), ("counted", c_int64), ("correct", c_int64)]


class Parameter(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dimensions", c_int), ("shape", c_int64 * 8),
                ("values", POINTER(c_float)), ("gradients", POINTER(c_float))]


class TrainingLibrary(Library):
    """The library with what training needs of it."""

    def __init__(self, path: Path, threads: int):
        super().__init__(path, threads)
        if not hasattr(self.c, "shoal_model_create"):
            raise Error(f"{path} has no models: it must be libshoal-models")
        handle, inputs = POINTER(c_void_p), POINTER(ModelInputs)
        for name, result, arguments in (
                ("model_create", c_int, [c_void_p, POINTER(Config), c_uint64, c_int64,
                                         c_int64, c_uint, handle]),
                ("model_destroy", None, [c_void_p]),
                ("model_workspace", c_size_t, [c_void_p]),
                ("model_forward", c_int, [c_void_p, inputs, handle]),
                ("model_backward", c_int, [c_void_p, inputs, c_void_p, c_void_p]),
                ("model_parameter", c_int, [c_void_p, c_int, POINTER(Parameter)]),
                ("cross_entropy", c_int, [c_void_p, c_int64, c_int64, c_void_p, c_void_p,
                                          c_void_p, POINTER(Loss)]),
                ("gradients_clip", c_int, [c_void_p, c_double, POINTER(c_double)]),
                ("optimizer_create", c_int, [c_void_p, c_void_p, handle]),
                ("optimizer_destroy", None, [c_void_p]),
                ("optimizer_workspace", c_size_t, [c_void_p]),
                ("optimizer_step", c_int, [c_void_p, c_double])):
            function = getattr(self.c, "shoal_" + name)
            function.restype, function.argtypes = result, arguments


class Trainer:
    """The masked copy as `shoal train copy` has it, with R-Adam."""

    def __init__(self, library: TrainingLibrary, attention, length, batch, seed):
        self.library, self.batch, self.positions = library, batch, 2 * (length + 1)
        self.offsets = numpy.arange(batch + 1, dtype=numpy.int64) * self.positions
        config = Config(vocabulary=MASK + 1, outputs=SYMBOLS + 1,
                        max_length=self.positions, layers=4, heads=HEADS, head_dim=32,
                        feed_forward=768)
        library.check(library.c.shoal_attention_parse(
            library.context, attention.encode(), byref(config.attention)))
        self.model, self.optimizer = c_void_p(), c_void_p()
        library.check(library.c.shoal_model_create(
            library.context, byref(config), seed, batch, batch * self.positions,
            WITH_BACKWARD, byref(self.model)))
        library.check(library.c.shoal_optimizer_create(self.model, None,
                                                       byref(self.optimizer)))

    def step(self, tokens, targets):
        """Loss and norm of the gradient; tokens and targets [batch][positions]. Only the
        rows that count are asked of the model."""
        c, check = self.library.c, self.library.check
        tokens = numpy.ascontiguousarray(tokens, numpy.int32)
        wanted = numpy.flatnonzero(targets.ravel() >= 0).astype(numpy.int32)
        answers = targets.ravel()[wanted].astype(numpy.int32)
        inputs = ModelInputs(batch=self.batch, offsets=self.offsets.ctypes.data,
                             tokens=tokens.ctypes.data, wanted=wanted.ctypes.data,
                             wanted_count=len(wanted), training=1)
        out, loss, norm = c_void_p(), Loss(), c_double()
        check(c.shoal_model_forward(self.model, byref(inputs), byref(out)))
        check(c.shoal_cross_entropy(self.library.context, len(wanted), SYMBOLS + 1, out,
                                    answers.ctypes.data, out, byref(loss)))
        check(c.shoal_model_backward(self.model, byref(inputs), out, None))
        check(c.shoal_gradients_clip(self.model, CLIP, byref(norm)))
        check(c.shoal_optimizer_step(self.optimizer, RATE))
        return loss.mean, norm.value

    def weights(self):
        """{name: array}, copied."""
        found, parameter = {}, Parameter()
        while self.library.c.shoal_model_parameter(self.model, len(found),
                                                   byref(parameter)):
            shape = tuple(parameter.shape[:parameter.rank])
            values = numpy.ctypeslib.as_array(parameter.values, shape).copy()
            found[parameter.name.decode()] = values
        return found

    @property
    def workspace(self):
        return (self.library.c.shoal_model_workspace(self.model) +
                self.library.c.shoal_optimizer_workspace(self.optimizer))

    def destroy(self):
        self.library.c.shoal_optimizer_destroy(self.optimizer)
        self.library.c.shoal_model_destroy(self.model)
        self.model = self.optimizer = None
