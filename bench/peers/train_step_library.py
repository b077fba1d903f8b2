"""Shoal's trainer through ctypes: only what the comparison of training steps needs. The
structures are those of include/shoal_models.h, field by field; a shoal_train_config stays
opaque, in a block that is larger than it."""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t
from ctypes import c_void_p
from pathlib import Path

import numpy

from library import Error, Library


class Step(ctypes.Structure):
    _fields_ = [("loss", c_double), ("accuracy", c_double), ("correct", c_int64),
                ("counted", c_int64), ("gradient_norm", c_double),
                ("learning_rate", c_double)]


class Parameter(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("rank", c_int), ("shape", c_int64 * 8),
                ("values", POINTER(c_float)), ("gradients", POINTER(c_float))]


class TrainingLibrary(Library):
    """The library with what training needs of it."""

    def __init__(self, path: Path, threads: int):
        super().__init__(path, threads)
        if not hasattr(self.c, "shoal_trainer_create"):
            raise Error(f"{path} was built without models")
        for name, result, arguments in (
                ("train_defaults", c_int, [c_void_p, c_char_p, c_void_p]),
                ("train_set", c_int, [c_void_p, c_void_p, c_char_p, c_char_p]),
                ("trainer_create", c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
                ("trainer_destroy", None, [c_void_p]),
                ("trainer_step", c_int, [c_void_p, POINTER(Step)]),
                ("trainer_model", c_void_p, [c_void_p]),
                ("trainer_workspace", c_size_t, [c_void_p]),
                ("model_parameter", c_int, [c_void_p, c_int, POINTER(Parameter)])):
            function = getattr(self.c, "shoal_" + name)
            function.restype, function.argtypes = result, arguments


class Trainer:
    """The masked copy with the given fields of its configuration."""

    CONFIG_BYTES = 8192  # a shoal_train_config has far fewer

    def __init__(self, library: TrainingLibrary, **fields):
        self.library = library
        config = ctypes.create_string_buffer(self.CONFIG_BYTES)
        library.check(library.c.shoal_train_defaults(library.context, b"copy", config))
        for name, value in fields.items():
            library.check(library.c.shoal_train_set(
                library.context, config, name.encode(), str(value).encode()))
        self.handle = c_void_p()
        library.check(library.c.shoal_trainer_create(library.context, config,
                                                     byref(self.handle)))

    def step(self) -> Step:
        step = Step()
        self.library.check(self.library.c.shoal_trainer_step(self.handle, byref(step)))
        return step

    def weights(self):
        """{name: array}, copied."""
        model = self.library.c.shoal_trainer_model(self.handle)
        found, parameter = {}, Parameter()
        while self.library.c.shoal_model_parameter(model, len(found), byref(parameter)):
            shape = tuple(parameter.shape[:parameter.rank])
            values = numpy.ctypeslib.as_array(parameter.values, shape).copy()
            found[parameter.name.decode()] = values
        return found

    @property
    def workspace(self):
        return self.library.c.shoal_trainer_workspace(self.handle)

    def destroy(self):
        self.library.c.shoal_trainer_destroy(self.handle)
        self.handle = None
