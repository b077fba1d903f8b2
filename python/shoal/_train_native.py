"""libshoal-train through ctypes: structures of shoal_train.h, and those of shoal_models.h
and shoal_speech.h that it needs.

tests/test_train_native.py compiles the headers and compares sizes and offsets.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32
from ctypes import c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from ._native import Attention, Options, Sized, load_part

CANCELLED = 5  # shoal_status, in addition to those in _native
TEXT_SIZE, VALUE_SIZE = 64, 160
IGNORED = -1  # target of a position without a class
POOLING = ("every", "mean", "first")  # shoal_pooling
EVENTS = (  # shoal_train_event
    "data",
    "begin",
    "step",
    "validation",
    "test",
    "saving",
    "saved",
    "end",
    "evaluation",
)
FOR_MODEL, EPOCHS, VALIDATE_EVERY, BEST = 1, 4, 16, 64  # flags of a task
TRAIN, VALIDATION, TEST = range(3)  # shoal_part


class ModelConfig(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("vocabulary", c_int64),
        ("features", c_int64),
        ("outputs", c_int64),
        ("max_length", c_int64),
        ("layers", c_int64),
        ("heads", c_int64),
        ("head_dim", c_int64),
        ("feed_forward", c_int64),
        ("attention", Attention),
        ("shared_qk", c_int32),
        ("norm", c_int32),
        ("activation", c_int32),
        ("positions", c_int32),
        ("pooling", c_int32),
        ("dropout", c_float),
        ("form", c_int32),
        ("types", c_int64),
        ("convolutions", c_int64),
        ("epsilon", c_float),
        ("reserved", c_int32 * 15),
    ]


class OptimizerConfig(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int32),
        ("beta1", c_float),
        ("beta2", c_float),
        ("epsilon", c_float),
        ("weight_decay", c_float),
        ("rectify_above", c_float),
        ("average", c_float),
        ("reserved", c_int32 * 7),
    ]


class TrainConfig(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("model", ModelConfig),
        ("optimizer", OptimizerConfig),
        ("learning_rate", c_float),
        ("clip", c_float),
        ("warmup", c_int64),
        ("warmup_share", c_float),
        ("decay", c_int32),
        ("decay_steps", c_int64),
        ("plateau_patience", c_int64),
        ("plateau_factor", c_float),
        ("batch", c_int64),
        ("steps", c_int64),
        ("epochs", c_int64),
        ("average_every", c_int64),
        ("validate_every", c_int64),
        ("validate_batches", c_int64),
        ("stop_after", c_int64),
        ("seed", c_uint64),
        ("data", c_char * TEXT_SIZE),
        ("reserved", c_int64 * 8),
    ]


class CopyConfig(ctypes.Structure):
    _fields_ = [("train", TrainConfig), ("length", c_int64), ("loss", c_int32)]


class SpeechTrainConfig(ctypes.Structure):
    _fields_ = [
        ("train", TrainConfig),
        ("loss", c_int32),
        ("units", c_int32),
        ("labels", c_char * TEXT_SIZE),
        ("bands", c_int64),
        ("rate", c_int64),
        ("normalise", c_int32),
        ("whole", c_int32),
        ("hop", c_int64),
        ("context", c_int64),
        ("speeds", c_char * TEXT_SIZE),
        ("band_masks", c_int64),
        ("band_mask", c_int64),
        ("time_masks", c_int64),
        ("time_mask", c_int64),
        ("mask_after", c_int64),
        ("join_after", c_int64),
        ("batch_frames", c_int64),
        ("join", c_float),
        ("topology", c_int32),
        ("every", c_int64),
        ("order", c_int64),
        ("extra", c_int64),
        ("leak", c_float),
        ("output_l2", c_float),
        ("output_range", c_float),
        ("folder", c_char_p),
        ("cache", c_char_p),
        ("lexicon", c_char_p),
        ("skip_bad", c_int32),
        ("pieces", c_int64),
    ]


class GlueConfig(ctypes.Structure):
    _fields_ = [
        ("train", TrainConfig),
        ("dataset", c_char * TEXT_SIZE),
        ("max_length", c_int64),
        ("folder", c_char_p),
        ("model_folder", c_char_p),
        ("skip_bad", c_int32),
    ]


class SquadConfig(ctypes.Structure):
    _fields_ = [
        ("train", TrainConfig),
        ("max_length", c_int64),
        ("stride", c_int64),
        ("max_answer", c_int64),
        ("folder", c_char_p),
        ("dev", c_char_p),
        ("model_folder", c_char_p),
        ("skip_bad", c_int32),
    ]


class FieldRow(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("type", c_int),
        ("offset", c_size_t),
        ("min", c_double),
        ("max", c_double),
        ("choices", POINTER(c_char_p)),
        ("about", c_char_p),
        ("valid", c_void_p),
        ("rule", c_char_p),
        ("user", c_void_p),
    ]


class Score(ctypes.Structure):
    _fields_ = [
        ("loss", c_double),
        ("accuracy", c_double),
        ("correct", c_int64),
        ("counted", c_int64),
        ("impossible", c_int64),
        ("broken", c_int64),
        ("metric", c_char_p),
        ("second", c_char_p),
        ("second_value", c_double),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        ("score", Score),
        ("gradient_norm", c_double),
        ("learning_rate", c_double),
        ("sequences", c_int64),
        ("seconds", c_double),
        ("loss_seconds", c_double),
    ]


class State(ctypes.Structure):
    _fields_ = [
        ("step", c_int64),
        ("validations", c_int64),
        ("validated_at", c_int64),
        ("perfect", c_int64),
        ("seconds", c_double),
        ("best", c_double),
        ("best_step", c_int64),
    ]


class Progress(ctypes.Structure):
    _fields_ = [
        ("event", c_int),
        ("what", c_char_p),
        ("done", c_int64),
        ("all", c_int64),
        ("elapsed", c_double),
        ("steps", c_int64),
        ("sequences", c_int64),
        ("state", POINTER(State)),
        ("step", POINTER(Step)),
        ("validation", POINTER(Score)),
    ]


PROGRESS = CFUNCTYPE(None, c_void_p, POINTER(Progress))
MESSAGE = CFUNCTYPE(None, c_void_p, c_char_p)
CANCEL = CFUNCTYPE(c_int, c_void_p)


class Callbacks(ctypes.Structure):
    _fields_ = [
        ("user", c_void_p),
        ("progress", PROGRESS),
        ("message", MESSAGE),
        ("cancelled", CANCEL),
        ("reserved", c_void_p * 4),
    ]


class Setting(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class RunOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("folder", c_char_p),
        ("from", c_char_p),
        ("resume", c_int32),
        ("settings", POINTER(Setting)),
        ("setting_count", c_int64),
        ("save_seconds", c_double),
        ("stop_seconds", c_double),
        ("test_batches", c_int64),
        ("transport", c_void_p),
        ("callbacks", Callbacks),
    ]


class RunResult(ctypes.Structure):
    _fields_ = [
        ("state", State),
        ("last_step", Step),
        ("validation", Score),
        ("test", Score),
        ("stepped", c_int32),
        ("validated", c_int32),
        ("tested", c_int32),
        ("finished", c_int32),
        ("timed", c_int32),
        ("saved", c_int32),
        ("busy", c_int32),
        ("agreed", c_int32),
        ("sequences_per_second", c_double),
        ("loss_share", c_double),
        ("cause", c_int),
        ("reserved", c_int64 * 8),
    ]


class Share(ctypes.Structure):
    _fields_ = [("index", c_int64), ("count", c_int64)]


class Opening(ctypes.Structure):
    _fields_ = [
        ("context", c_void_p),
        ("share", Share),
        ("callbacks", POINTER(Callbacks)),
        ("resumed", c_char_p),
    ]


class Sizes(ctypes.Structure):
    _fields_ = [
        ("max_batch", c_int64),
        ("max_rows", c_int64),
        ("validation_batches", c_int64),
    ]


class Counts(ctypes.Structure):
    _fields_ = [
        ("loss", c_double),
        ("weight", c_double),
        ("sum", c_double),
        ("divisor", c_double),
        ("correct", c_int64),
        ("counted", c_int64),
        ("impossible", c_int64),
        ("broken", c_int64),
    ]


class ModelInputs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("offsets", c_void_p),
        ("tokens", c_void_p),
        ("types", c_void_p),
        ("features", c_void_p),
        ("wanted", c_void_p),
        ("wanted_count", c_int64),
        ("training", c_int32),
        ("accumulate", c_int32),
        ("step", c_int64),
        ("first_row", c_int64),
        ("first_sequence", c_int64),
    ]


TASK_DEFAULTS = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
TASK_OPEN = CFUNCTYPE(
    c_int, c_void_p, POINTER(Opening), c_void_p, POINTER(c_void_p), POINTER(Sizes)
)
TASK_CLOSE = CFUNCTYPE(None, c_void_p)
TASK_BATCH = CFUNCTYPE(c_int, c_void_p, c_int, c_int64, Share, POINTER(ModelInputs))
TASK_STEP = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(Counts))


class Task(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("config_size", c_size_t),
        ("fields", c_void_p),
        ("flags", c_uint),
        ("user", c_void_p),
        ("defaults", TASK_DEFAULTS),
        ("open", TASK_OPEN),
        ("close", TASK_CLOSE),
        ("batch", TASK_BATCH),
        ("step", TASK_STEP),
        ("score", c_void_p),
        ("start", c_void_p),
        ("prepare", c_void_p),
        ("publish", c_void_p),
        ("note_key", c_char_p),
        ("note", c_void_p),
        ("reserved", c_void_p * 8),
    ]


class Loss(ctypes.Structure):
    _fields_ = [("mean", c_double), ("counted", c_int64), ("correct", c_int64)]


class TextParts(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("text", c_char_p),
        ("bytes", c_int64),
        ("pair", c_char_p),
        ("pair_bytes", c_int64),
        ("most", c_int64),
        ("cut", c_int32),
        ("bare", c_int32),
    ]


class FinetunedInfo(ctypes.Structure):
    _fields_ = [
        ("task", c_char_p),
        ("dataset", c_char_p),
        ("path", c_char_p),
        ("not_best", c_int32),
        ("step", c_int64),
        ("classes", c_int64),
        ("max_length", c_int64),
        ("attention", Attention),
    ]


class AnswerParts(ctypes.Structure):
    _fields_ = [
        ("text", c_char_p),
        ("score", c_double),
        ("begin", c_int64),
        ("end", c_int64),
        ("windows", c_int64),
    ]


class WordSettings(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("beam", c_double),
        ("tokens", c_int64),
        ("lm_weight", c_double),
        ("insertion", c_double),
        ("nbest", c_int64),
        ("confidence", c_int32),
        ("reserved", c_int32 * 5),
    ]


class RecogniserOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("attention", c_char_p),
        ("beams", c_int64),
        ("piece", c_double),
        ("lexicon", c_char_p),
        ("lm", c_char_p),
        ("unknown", c_double),
        ("words", WordSettings),
    ]


class FeaturesConfig(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("bands", c_int64),
        ("rate", c_int64),
        ("normalise", c_int32),
        ("hop", c_int64),
        ("context", c_int64),
        ("every", c_int64),
        ("reserved", c_int32 * 6),
    ]


class RecogniserInfo(ctypes.Structure):
    _fields_ = [
        ("path", c_char_p),
        ("step", c_int64),
        ("loss", c_int),
        ("topology", c_int),
        ("unit_type", c_int),
        ("units", c_int64),
        ("outputs", c_int64),
        ("features", FeaturesConfig),
        ("step_seconds", c_double),
        ("attention", Attention),
    ]


class UnitParts(ctypes.Structure):
    _fields_ = [("text", c_char_p), ("begin", c_int64)]


class SpokenWord(ctypes.Structure):
    _fields_ = [
        ("text", c_char_p),
        ("begin", c_int64),
        ("end", c_int64),
        ("confidence", c_double),
    ]


class WordString(ctypes.Structure):
    _fields_ = [("words", POINTER(SpokenWord)), ("count", c_int64), ("score", c_double)]


class Spoken(ctypes.Structure):
    _fields_ = [
        ("strings", POINTER(WordString)),
        ("count", c_int64),
        ("whole", c_int32),
        ("tokens_of_step", c_double),
    ]


class RecognitionParts(ctypes.Structure):
    _fields_ = [
        ("steps", c_int64),
        ("seconds", c_double),
        ("units", POINTER(UnitParts)),
        ("count", c_int64),
        ("log_probability", c_double),
        ("spoken", Spoken),
    ]


class EvaluationOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("attention", POINTER(Attention)),
        ("kinds", c_int64),
        ("controls", c_int32),
        ("data", c_char_p),
        ("skip_bad", c_int32),
        ("batches", c_int64),
        ("labels", c_char_p),
        ("cache", c_char_p),
        ("join", c_double),
        ("recogniser", POINTER(RecogniserOptions)),
        ("tune", c_char_p),
        ("callbacks", Callbacks),
    ]


STRUCTURES = {
    "shoal_model_config": ModelConfig,
    "shoal_optimizer_config": OptimizerConfig,
    "shoal_train_config": TrainConfig,
    "shoal_copy_config": CopyConfig,
    "shoal_speech_train_config": SpeechTrainConfig,
    "shoal_glue_config": GlueConfig,
    "shoal_squad_config": SquadConfig,
    "shoal_field": FieldRow,
    "shoal_train_score": Score,
    "shoal_train_step": Step,
    "shoal_train_state": State,
    "shoal_train_progress": Progress,
    "shoal_train_callbacks": Callbacks,
    "shoal_setting": Setting,
    "shoal_run_options": RunOptions,
    "shoal_run_result": RunResult,
    "shoal_share": Share,
    "shoal_task_opening": Opening,
    "shoal_task_sizes": Sizes,
    "shoal_train_counts": Counts,
    "shoal_model_inputs": ModelInputs,
    "shoal_train_task": Task,
    "shoal_loss": Loss,
    "shoal_text": TextParts,
    "shoal_finetuned_info": FinetunedInfo,
    "shoal_answer": AnswerParts,
    "shoal_word_settings": WordSettings,
    "shoal_recogniser_options": RecogniserOptions,
    "shoal_features_config": FeaturesConfig,
    "shoal_recogniser_info": RecogniserInfo,
    "shoal_recognised_unit": UnitParts,
    "shoal_spoken_word": SpokenWord,
    "shoal_word_string": WordString,
    "shoal_spoken": Spoken,
    "shoal_recognition": RecognitionParts,
    "shoal_evaluation_options": EvaluationOptions,
}

OF_CONTEXTS = {
    "shoal_context_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "shoal_context_destroy": (None, [c_void_p]),
    "shoal_context_message": (c_char_p, [c_void_p]),
}

OF_MODELS = {
    **OF_CONTEXTS,
    "shoal_checkpoint_open": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "shoal_checkpoint_destroy": (None, [c_void_p]),
    "shoal_checkpoint_config": (
        c_int,
        [c_void_p, POINTER(ModelConfig), POINTER(c_uint64)],
    ),
    "shoal_checkpoint_fits": (c_int, [c_void_p, POINTER(ModelConfig)]),
    "shoal_checkpoint_load_average": (c_int, [c_void_p, c_void_p]),
    "shoal_model_create": (
        c_int,
        [
            c_void_p,
            POINTER(ModelConfig),
            c_uint64,
            c_int64,
            c_int64,
            c_uint,
            POINTER(c_void_p),
        ],
    ),
    "shoal_model_destroy": (None, [c_void_p]),
    "shoal_model_forward": (c_int, [c_void_p, POINTER(ModelInputs), POINTER(c_void_p)]),
    "shoal_cross_entropy": (
        c_int,
        [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, POINTER(Loss)],
    ),
}

OF_RECOGNISERS = {
    **OF_CONTEXTS,
    "shoal_recogniser_options_init": (None, [POINTER(RecogniserOptions), c_size_t]),
    "shoal_recogniser_open": (
        c_int,
        [c_void_p, c_char_p, POINTER(RecogniserOptions), POINTER(c_void_p)],
    ),
    "shoal_recogniser_destroy": (None, [c_void_p]),
    "shoal_recogniser_describe": (POINTER(RecogniserInfo), [c_void_p]),
    "shoal_recogniser_recognise_file": (
        c_int,
        [c_void_p, c_char_p, POINTER(RecognitionParts)],
    ),
    "shoal_recogniser_recognise": (
        c_int,
        [c_void_p, c_void_p, c_int64, POINTER(RecognitionParts)],
    ),
}

OF_TRAINING = {
    **OF_MODELS,
    "shoal_task_find": (POINTER(Task), [c_char_p]),
    "shoal_task_field": (POINTER(FieldRow), [POINTER(Task), c_int]),
    "shoal_config_init": (
        c_int,
        [c_void_p, POINTER(Task), c_char_p, c_void_p, c_size_t],
    ),
    "shoal_config_set": (c_int, [c_void_p, POINTER(Task), c_void_p, c_char_p, c_char_p]),
    "shoal_config_get": (
        c_size_t,
        [POINTER(Task), c_void_p, c_char_p, c_char_p, c_size_t],
    ),
    "shoal_config_json": (c_size_t, [POINTER(Task), c_void_p, c_char_p, c_size_t]),
    "shoal_run_options_init": (None, [POINTER(RunOptions), c_size_t]),
    "shoal_train_run": (
        c_int,
        [c_void_p, POINTER(Task), c_void_p, POINTER(RunOptions), POINTER(RunResult)],
    ),
    "shoal_run_task": (c_int, [c_void_p, c_char_p, c_char_p]),
    "shoal_run_config": (c_int, [c_void_p, POINTER(Task), c_char_p, c_void_p]),
    "shoal_evaluation_options_init": (None, [POINTER(EvaluationOptions), c_size_t]),
    "shoal_evaluation_create": (
        c_int,
        [c_void_p, c_char_p, POINTER(EvaluationOptions), POINTER(c_void_p)],
    ),
    "shoal_evaluation_destroy": (None, [c_void_p]),
    "shoal_evaluation_json": (c_char_p, [c_void_p]),
    "shoal_evaluation_predictions": (c_char_p, [c_void_p]),
    "shoal_finetuned_open": (
        c_int,
        [c_void_p, c_char_p, POINTER(Attention), POINTER(c_void_p)],
    ),
    "shoal_finetuned_destroy": (None, [c_void_p]),
    "shoal_finetuned_describe": (POINTER(FinetunedInfo), [c_void_p]),
    "shoal_finetuned_class": (c_char_p, [c_void_p, c_int64]),
    "shoal_finetuned_classify": (
        c_int,
        [c_void_p, c_int64, POINTER(TextParts), c_void_p],
    ),
    "shoal_finetuned_answer": (
        c_int,
        [c_void_p, c_char_p, c_char_p, POINTER(AnswerParts)],
    ),
}


def load_train(who: str) -> Any:
    return load_part("train", who, OF_TRAINING)
