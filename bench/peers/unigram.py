"""Folders with tokenizers of the kind that XLM-R, CamemBERT and e5 have: Unigram, trained
by SentencePiece (with its own tables of characters) and by the package `tokenizers`, in
the settings that published files have. Needs tokenizers, sentencepiece and protobuf."""
import io
import json

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def train_sentencepiece(texts, size, rule, byte_fallback=False, rules_file=None):
    """(pieces with scores, the table of characters)"""
    out = io.BytesIO()
    form = ({"normalization_rule_tsv": str(rules_file)} if rules_file
            else {"normalization_rule_name": rule})
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, vocab_size=size,
        model_type="unigram", byte_fallback=byte_fallback, num_threads=1,
        hard_vocab_limit=False, minloglevel=2, **form)
    model = proto.ModelProto()
    model.ParseFromString(out.getvalue())
    return ([(one.piece, one.score) for one in model.pieces],
            model.normalizer_spec.precompiled_charsmap)


def like_xlm_roberta(pieces, byte_fallback=False):
    """The ids of XLM-R: its special tokens, SentencePiece's pieces but the first three,
    the mask."""
    vocab = [(name, 0.0) for name in SPECIALS] + pieces[3:] + [("<mask>", 0.0)]
    made = Tokenizer(models.Unigram(vocab, 3, byte_fallback))
    finish(made)
    return made


def finish(made):
    made.add_special_tokens([AddedToken(name, normalized=False, special=True)
                             for name in SPECIALS])
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False,
                                        special=True)])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)])


def converted(charsmap):
    """The normaliser that transformers' converters write."""
    return normalizers.Sequence([
        normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "\u2581")])


def xlm_roberta(texts, size):
    pieces, charsmap = train_sentencepiece(texts, size, "nmt_nfkc")
    made = like_xlm_roberta(pieces)
    made.normalizer = normalizers.Precompiled(charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    yield "xlm-roberta", made
    made.normalizer = converted(charsmap)
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    yield "converted", made


def bytes_first(texts, size):
    pieces, charsmap = train_sentencepiece(texts, size, "nmt_nfkc_cf", True)
    made = like_xlm_roberta(pieces, True)
    made.normalizer = converted(charsmap)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.add_tokens([AddedToken("School", normalized=True),
                     AddedToken("\u2581of", normalized=False, rstrip=True)])
    yield "bytes-first", made


def by_the_package(texts, size):
    settings = [
        ("composed", [normalizers.NFKC(), normalizers.Lowercase()],
         pre_tokenizers.Metaspace(prepend_scheme="never")),
        ("decomposed", [normalizers.NFKD(), normalizers.Strip(),
                        normalizers.Replace("ing", "-")],
         pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit()])),
        ("whole", [normalizers.NFD(), normalizers.Replace("''", '"')], None)]
    for name, steps, pre in settings:
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence(steps)
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.train_from_iterator(texts, trainers.UnigramTrainer(
            vocab_size=size, special_tokens=SPECIALS + ["<mask>"], unk_token="<unk>",
            show_progress=False))
        if pre is None:
            whole = json.loads(made.to_str())
            whole["pre_tokenizer"] = None
            made = Tokenizer.from_str(json.dumps(whole))
        else:
            made.pre_tokenizer = pre
        finish(made)
        yield name, made


def make(texts, folder, size=4000):
    """Paths of the folders."""
    made = []
    for maker in (xlm_roberta, bytes_first, by_the_package):
        for name, tokenizer in maker(texts, size):
            path = folder / name
            path.mkdir(parents=True, exist_ok=True)
            tokenizer.save(str(path / "tokenizer.json"))
            made.append(str(path))
    return made
