"""A ggml Whisper file read with nothing but struct and numpy, and transformers' model
made of it: the independent implementation."""
import struct
from pathlib import Path

import numpy
import torch
import transformers

SIZES = ["n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer",
         "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels", "ftype"]
BLOCK = {"attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj",
         "attn.value": "self_attn.v_proj", "attn.out": "self_attn.out_proj",
         "attn_ln": "self_attn_layer_norm", "cross_attn.query": "encoder_attn.q_proj",
         "cross_attn.key": "encoder_attn.k_proj",
         "cross_attn.value": "encoder_attn.v_proj",
         "cross_attn.out": "encoder_attn.out_proj",
         "cross_attn_ln": "encoder_attn_layer_norm", "mlp.0": "fc1", "mlp.2": "fc2",
         "mlp_ln": "final_layer_norm"}
OUTER = {"encoder.conv1": "encoder.conv1", "encoder.conv2": "encoder.conv2",
         "encoder.positional_embedding": "encoder.embed_positions.weight",
         "encoder.ln_post": "encoder.layer_norm",
         "decoder.positional_embedding": "decoder.embed_positions.weight",
         "decoder.token_embedding": "decoder.embed_tokens",
         "decoder.ln": "decoder.layer_norm"}


class GgmlFile:
    """sizes, filters [mels][201], vocabulary (list of bytes) and tensors by name."""

    def __init__(self, path: Path):
        self.bytes, self.at = path.read_bytes(), 0
        if self.int32() != 0x67676d6c:
            raise ValueError(f"{path} is no ggml file")
        self.sizes = {name: self.int32() for name in SIZES}
        bands, bins = self.int32(), self.int32()
        self.filters = self.array("<f4", bands * bins).reshape(bands, bins)
        self.vocabulary = [self.take(self.int32()) for _ in range(self.int32())]
        self.tensors = dict(self.tensor() for _ in iter(lambda: self.at < len(self.bytes),
                                                        False))

    def take(self, count):
        self.at += count
        return self.bytes[self.at - count:self.at]

    def int32(self):
        return struct.unpack("<i", self.take(4))[0]

    def array(self, kind, count):
        return numpy.frombuffer(self.take(numpy.dtype(kind).itemsize * count), kind)

    def tensor(self):
        rank, length, kind = self.int32(), self.int32(), self.int32()
        shape = [self.int32() for _ in range(rank)][::-1]
        name = self.take(length).decode()
        values = self.array({0: "<f4", 1: "<f2"}[kind], int(numpy.prod(shape)))
        return name, values.reshape(shape).astype(numpy.float32)


def their_name(name):
    """encoder.blocks.0.attn.query.weight -> encoder.layers.0.self_attn.q_proj.weight"""
    if name in OUTER:
        return OUTER[name]
    stem, _, last = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{last}"
    side, _, number, inner = stem.split(".", 3)
    return f"{side}.layers.{number}.{BLOCK[inner]}.{last}"


class Special:
    """Ids that follow from the vocabulary's size."""

    def __init__(self, count):
        self.multilingual = count >= 51865
        self.end = 50256 + self.multilingual
        languages = count - 51765 - self.multilingual if self.multilingual else 99
        self.start, self.first_language = self.end + 1, self.end + 2
        self.translate = self.first_language + languages
        (self.transcribe, self.start_lm, self.previous, self.no_speech,
         self.no_timestamps) = (self.translate + 1 + i for i in range(5))
        self.first_timestamp = self.no_timestamps + 1


def suppressed(vocabulary, special):
    """Symbols that nobody speaks, by the published rule, and special tokens."""
    ids = {text: i for i, text in reversed(list(enumerate(vocabulary)))}
    music = list("♩♪♫♬♭♮♯")
    symbols = list("\"#()*+/:;<=>@[\\]^_`{|}~「」『』") + [
        "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", "(\"", "((", "))", "(((",
        ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"] + music
    found = {special.start, special.translate, special.transcribe, special.start_lm,
             special.previous, special.no_speech}
    for text in (" -", " '"):
        found.add(ids[text.encode()])
    for symbol in symbols:
        for text in (symbol.encode(), b" " + symbol.encode()):
            if text in ids:
                found.add(ids[text])
            elif symbol in music:  # several tokens: the first of them
                found.add(next(ids[text[:n]] for n in range(len(text), 0, -1)
                               if text[:n] in ids))
    return sorted(found)


class Peer:
    """transformers' WhisperForConditionalGeneration in float32."""

    def __init__(self, path: Path):
        self.file = GgmlFile(path)
        s = self.file.sizes
        self.special = Special(s["n_vocab"])
        self.config = transformers.WhisperConfig(
            vocab_size=s["n_vocab"], num_mel_bins=s["n_mels"], d_model=s["n_audio_state"],
            encoder_layers=s["n_audio_layer"], encoder_attention_heads=s["n_audio_head"],
            decoder_layers=s["n_text_layer"], decoder_attention_heads=s["n_text_head"],
            encoder_ffn_dim=4 * s["n_audio_state"], decoder_ffn_dim=4 * s["n_text_state"],
            max_source_positions=s["n_audio_ctx"], max_target_positions=s["n_text_ctx"],
            decoder_start_token_id=self.special.start, bos_token_id=self.special.end,
            eos_token_id=self.special.end, pad_token_id=self.special.end)
        self.model = transformers.WhisperForConditionalGeneration(self.config).eval()
        # Biases of the convolutions are [n][1] in the file.
        weights = {"model." + their_name(name): torch.from_numpy(
            values.reshape(-1) if name.endswith(".bias") else values)
            for name, values in self.file.tensors.items()}
        weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
        self.model.load_state_dict(weights, strict=True)
        self.extractor = transformers.WhisperFeatureExtractor(feature_size=s["n_mels"])
        self.set_generation()

    def set_generation(self):
        special, config = self.special, self.model.generation_config
        config.suppress_tokens = suppressed(self.file.vocabulary, special)
        blank = self.file.vocabulary.index(b" ")
        config.begin_suppress_tokens = [blank, special.end]
        config.no_timestamps_token_id = special.no_timestamps
        config.is_multilingual = special.multilingual
        if special.multilingual:
            config.lang_to_id = {"<|en|>": special.first_language}
            config.task_to_id = {"transcribe": special.transcribe,
                                 "translate": special.translate}
        config.max_length = self.config.max_target_positions

    def features(self, samples):
        made = self.extractor(samples, sampling_rate=16000, return_tensors="pt")
        return made.input_features  # [1][mels][3000]

    def encode(self, features):
        with torch.no_grad():
            return self.model.model.encoder(features).last_hidden_state

    def logits(self, encoded, tokens):
        with torch.no_grad():
            return self.model(encoder_outputs=(encoded,),
                              decoder_input_ids=torch.tensor([tokens])).logits[0]

    def greedy(self, features):
        """Token ids of the greedy text without timestamps."""
        named = {}
        if self.special.multilingual:
            named = {"language": "en", "task": "transcribe"}
        with torch.no_grad():
            ids = self.model.generate(
                features, num_beams=1, do_sample=False, return_timestamps=False,
                max_new_tokens=self.config.max_target_positions // 2, **named)
        return [i for i in ids[0].tolist() if i < self.special.end]

    def text(self, ids):
        return b"".join(self.file.vocabulary[i] for i in ids).decode(errors="replace")
