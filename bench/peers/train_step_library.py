"""A training step of Shoal through ctypes, made of the parts of include/shoal_models.h:
only what the comparison needs. Structures are the Python package's, whose tests compare
them with the headers."""
import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t
from ctypes import c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy

from library import WITH_BACKWARD, Error, Library

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("SHOAL_LIBRARY", str(ROOT / "build" / "libshoal.so"))
from shoal._train_native import Loss, ModelConfig as Config, ModelInputs  # noqa: E402
from shoal._train_native import OptimizerConfig  # noqa: E402,F401

SYMBOLS, MASK = 10, 11
HEADS, RATE, CLIP = 6, 2e-4, 10


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
