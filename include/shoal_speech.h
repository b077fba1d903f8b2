/* Shoal's speech recognition: from recordings to text.
 *
 * The first part runs Whisper models: features, encoder, decoder and decoding rules. The
 * encoder, which attends over 1500 positions in every window of 30 s, can use any kind of
 * attention; the decoder's attention is exact. The second part has what it takes to train
 * a recogniser (filter banks, Kaldi data folders, lattice-free MMI; models and CTC are in
 * shoal_models.h, training in shoal_train.h), and to use a trained one.
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal_speech.h>
 *     #include <stdio.h>
 *
 *     static int print_segment(void *user, const shoal_segment *segment) {
 *         (void)user;
 *         printf("%7.2f %7.2f %s\n", segment->begin, segment->end, segment->text);
 *         return 0;                           // continue
 *     }
 *
 *     int main(void) {
 *         const char *path = "talk.flac";
 *         shoal_recording talk = {.size = sizeof talk, .paths = &path, .files = 1};
 *         shoal_speech_options options = {.size = sizeof options, .attention = "shoal"};
 *         shoal_context *context = NULL;
 *         shoal_speech *speech = NULL;
 *         shoal_status status = shoal_context_create(NULL, &context);
 *         if (status == SHOAL_OK)
 *             status = shoal_speech_open(context, "ggml-tiny.bin", &options, &speech);
 *         if (status == SHOAL_OK)
 *             status = shoal_speech_transcribe(speech, &talk, NULL, print_segment, NULL,
 *                                              NULL);
 *         if (status != SHOAL_OK)
 *             fprintf(stderr, "%s\n", shoal_context_message(context));
 *         shoal_speech_destroy(speech);
 *         shoal_context_destroy(context);
 *         return status != SHOAL_OK;
 *     }
 *
 * THE RULES, ONCE (those of shoal.h hold too)
 *
 * Models.   A ggml file as whisper.cpp reads it (f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0),
 *           or a Hugging Face folder: config.json, model.safetensors or its shards, and
 *           vocab.json or tokenizer.json. All sizes of Whisper, also English-only ones.
 * Sound.    WAV, FLAC, OGG, MP3 and other formats of libsndfile, of any rate and number
 *           of channels, mixed to one channel and resampled to 16 kHz; or samples in
 *           memory, mono at 16 kHz. NaN and samples beyond 1e9 are refused.
 * Owners.   A shoal_speech belongs to its context: destroy it first. Whatever a recording
 *           points to must stay valid during the call. A segment and what it points to
 *           are valid until its callback returns.
 * Errors.   A missing file gives SHOAL_IO, a damaged one SHOAL_BAD_FILE. Files are read
 *           as they are needed, so shoal_speech_transcribe can fail after it has
 *           delivered segments; the summary then describes the part that was done.
 * Memory.   Opening a model allocates what one window needs and reports how much.
 *           Transcribing adds buffers for the sound, whose size does not depend on its
 *           length. The libraries that read and resample sound use malloc rather than the
 *           context's allocator. Model files are mapped while a model is opened (do not
 *           write to them then) and not needed afterwards.
 * Threads.  One context per thread, with all objects that belong to it, as in shoal.h.
 *           Callbacks run in the caller's thread and must not use the object that calls
 *           them.
 * Bits.     The same model, sound, options and seed give the same text on any number of
 *           threads.
 */
#ifndef SHOAL_SPEECH_H
#define SHOAL_SPEECH_H

#include "shoal.h"
#include "shoal_models.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Whisper models --------------------------------------------------------------- */

typedef struct shoal_speech shoal_speech;

typedef struct {
    size_t size;
    const char *attention; /* of the encoder, as shoal_attention_parse reads it; NULL:
                              full. Kinds that take the queries as keys (lsh, shared-full)
                              are refused: the model has separate keys */
    int beams; /* largest number of hypotheses in a search, 1 to 64; 0: 5, which the
                  samples of the temperature fallback need */
    int force; /* nonzero: accept any kind of attention, even one that loses words */
    int batch; /* largest number of windows processed in parallel, 1 to 64; 0: 16, or
                  fewer if their sound would take more than 256 MiB. The text does not
                  depend on it */
    shoal_precision precision; /* of the matrices. float32: everything is float32.
                  Otherwise the decoder keeps the encoded sound in half precision. int8:
                  all matrices except the table of tokens, the convolutions and the
                  attention */
} shoal_speech_options;
SHOAL_ZERO_DEFAULTS(shoal_speech_options)

/* Opens a model: a file, a folder, or the config.json in a folder. options may be
   NULL. */
SHOAL_API shoal_status shoal_speech_open(shoal_context *context, const char *path,
                                         const shoal_speech_options *options,
                                         shoal_speech **speech);
SHOAL_API void shoal_speech_destroy(shoal_speech *speech); /* NULL is valid */

/* Changes the encoder's attention. If the new one is refused, the old one stays. */
SHOAL_API shoal_status shoal_speech_set_attention(shoal_speech *speech,
                                                  const char *attention);

/* The estimated error of the encoder's attention in the first window encoded with it:
   |out - exact| / |exact|, the largest of all layers. Above 0.2, words may be lost or
   invented. NaN before that window, and for full, shoal and auto, which are safe and not
   measured. */
SHOAL_API double shoal_speech_attention_error(const shoal_speech *speech);

typedef struct {
    int32_t mels, frames;     /* features of a window: [mels][frames] */
    int32_t positions, width; /* output of the encoder: [positions][width] */
    int32_t heads, layers;    /* of the encoder */
    int32_t text_positions, text_layers, vocabulary; /* of the decoder */
    int32_t multilingual;                            /* 0: English only */
    shoal_precision precision; /* of the encoder's matrices, as chosen by auto */
    size_t bytes;                                    /* of memory */
} shoal_speech_info;
/* The object owns the result; NULL for NULL. So do the other _describe functions. */
SHOAL_API const shoal_speech_info *shoal_speech_describe(const shoal_speech *speech);

/* ---- Transcription ---------------------------------------------------------------- */

/* A recording: files one after another with `gap` seconds of silence between them, or
   samples. */
typedef struct {
    size_t size;
    const char *const *paths; /* [files] */
    int files;                /* 0: the samples below */
    double gap;               /* 0 to 3600 */
    const float *samples;     /* [sample_count] */
    int64_t sample_count;
    int partial;     /* nonzero: use the readable part of a truncated or damaged file; 0:
                        refuse such a file */
    double offset;   /* seconds to skip at the beginning; times count from the beginning
                        nevertheless */
    double duration; /* seconds to transcribe from there on; 0: to the end */
} shoal_recording;
SHOAL_ZERO_DEFAULTS(shoal_recording)

/* The code ("en") of a language given by its code or English name; NULL if unknown. */
SHOAL_API const char *shoal_speech_language(const char *text);

/* By default, speech is detected first and packed into windows of 30 s, which are
   processed in parallel and independently. The language is detected; decoding is greedy
   with timestamps, falls back to higher temperatures if the text repeats itself, is
   improbable or too short, and transcribes again what a text leaves out. */
typedef struct {
    size_t size;
    const char *language; /* "en", "english" ...; NULL: detected in the first window */
    int translate;        /* nonzero: translate into English */
    int beams;            /* 0 or 1: greedy decoding; more: beam search */
    int no_timestamps;    /* nonzero: one segment per window */
    int no_vad;           /* nonzero: no speech detection. Each window begins where the
                             words of the previous one ended, with their text as
                             context */
    int published;        /* nonzero: as no_vad, by exactly the rules published with the
                             model */
    int no_context;       /* nonzero: windows have no context, as is the case with speech
                             detection */
    int no_fallback;      /* nonzero: temperature 0 only, and text for every window that
                             is not silent */
    uint64_t seed;        /* of the samples at temperatures above 0 */
    int words;            /* nonzero: segments have words with times */
    const char *prompt;   /* text given to each window as context: names, spellings;
                             NULL: none */
    /* Called after each window with the seconds done, and the length of the recording as
       far as the headers of its files tell; may be NULL. */
    void (*progress)(void *user, double done, double all);
} shoal_transcribe_options;
SHOAL_ZERO_DEFAULTS(shoal_transcribe_options)

typedef struct {
    double begin, end;  /* seconds */
    const char *text;   /* with a leading space if the model wrote one, and adjacent
                           punctuation */
    double probability; /* mean over its tokens */
} shoal_word;

typedef struct {
    double begin, end;     /* seconds */
    const char *text;      /* UTF-8 as the model wrote it, including a leading space */
    const int32_t *tokens; /* [token_count], timestamps included */
    int64_t token_count;
    /* Of the window that it comes from: */
    double temperature, mean_logprob;
    double no_speech;        /* probability that there is no speech */
    double compression;      /* size of the text over its size compressed by zlib: large
                                if it repeats itself */
    const shoal_word *words; /* [word_count]; none unless options.words is set */
    int64_t word_count;
} shoal_segment;

/* Called for every segment in order. Return nonzero to cancel. */
typedef int (*shoal_segment_callback)(void *user, const shoal_segment *segment);

typedef struct {
    char language[16];                       /* code; "" if nothing was said */
    double language_probability;             /* 1 if it was given */
    double seconds;                          /* of the recording, as far as it was done */
    double encoder_seconds, decoder_seconds; /* computing time */
    int64_t windows, fallbacks, silent;      /* windows; decoded again; without speech */
    int64_t tokens;                          /* of the final texts */
    int64_t reserved[4];
} shoal_transcription;

/* options, segment and summary may be NULL. user is the first argument of segment and of
   options->progress. Returns SHOAL_CANCELLED if a callback cancels. */
SHOAL_API shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                               const shoal_recording *recording,
                                               const shoal_transcribe_options *options,
                                               shoal_segment_callback segment, void *user,
                                               shoal_transcription *summary);

/* Called after the last segment of recording `index`, in order; segments that follow
   belong to the next one. If status is not SHOAL_OK, the recording could not be read or
   transcribed to its end, and the context has the message. Return nonzero to cancel. */
typedef int (*shoal_recording_callback)(void *user, int index, shoal_status status,
                                        const shoal_transcription *summary);

/* Transcribes recordings [count], each with the same text as alone. Windows of all
   recordings run in parallel, so that many short recordings are as fast as one long
   recording. A recording that cannot be read does not affect the others. options, segment
   and ended may be NULL. */
SHOAL_API shoal_status shoal_speech_transcribe_all(
    shoal_speech *speech, const shoal_recording *recordings, int count,
    const shoal_transcribe_options *options, shoal_segment_callback segment,
    shoal_recording_callback ended, void *user);

/* ---- The steps of transcription --------------------------------------------------- */

/* Log-mel features [mels][frames] of the 30 s from `begin` seconds on, padded with
   silence. *seconds, which may be NULL: how much of it is recording. */
SHOAL_API shoal_status shoal_speech_features(shoal_speech *speech,
                                             const shoal_recording *recording,
                                             double begin, float *features,
                                             double *seconds);

/* The encoder: features [mels][frames] to encoded [positions][width]. */
SHOAL_API shoal_status shoal_speech_encode(shoal_speech *speech, const float *features,
                                           float *encoded);

/* The text of one window from the encoder's output [positions][width], of which `seconds`
   (up to 30) are recording. As shoal_speech_transcribe, without context. options, segment
   and summary may be NULL. */
SHOAL_API shoal_status shoal_speech_decode(shoal_speech *speech, const float *encoded,
                                           double seconds,
                                           const shoal_transcribe_options *options,
                                           shoal_segment_callback segment, void *user,
                                           shoal_transcription *summary);

/* The decoder: logits [count][vocabulary] after each of the tokens [count],
   1 <= count <= text_positions. */
SHOAL_API shoal_status shoal_speech_logits(shoal_speech *speech, const float *encoded,
                                           const int32_t *tokens, int64_t count,
                                           float *logits);

/* ---- Word errors ------------------------------------------------------------------ */

typedef struct {
    int64_t words; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_word_errors;

/* Adds the word errors of a text to *errors: the smallest number of edits after the usual
   normalisation of English on both sides (lower case, no punctuation, numbers as digits,
   contractions and titles spelled out, American spelling). */
SHOAL_API shoal_status shoal_count_word_errors(shoal_context *context,
                                               const char *reference, const char *text,
                                               shoal_word_errors *errors);

/* The same for a text whose reference has parts, such as utterances transcribed together:
   adds the errors of each part references[i] to errors[i], both [count]. An inserted word
   belongs to the part of the word before it. */
SHOAL_API shoal_status shoal_count_part_errors(shoal_context *context,
                                               const char *const *references, int count,
                                               const char *text,
                                               shoal_word_errors *errors);

/* ---- Filter banks ------------------------------------------------------------------ */

/* Log-mel filter banks as Kaldi computes them without dither: frames of 25 ms every 10 ms
   of mono sound at 16 or 8 kHz, povey window, preemphasis 0.97, power, 20 Hz to half the
   rate. */
typedef struct {
    size_t size;
    int32_t bands;   /* 0: 40 */
    int32_t centred; /* nonzero: snip-edges=false, a frame for every 10 ms, with the sound
                        reflected at both ends; 0: snip-edges=true */
    int32_t rate;    /* samples per second, 16000 or 8000; 0: chosen by the library, 16000
                        unless most recordings of a data folder have a lower rate */
    int32_t reserved[5];
} shoal_fbank_options;
SHOAL_ZERO_DEFAULTS(shoal_fbank_options)

/* Number of frames of `samples` samples; -1 if the options are invalid. */
SHOAL_API int64_t shoal_fbank_frames(const shoal_fbank_options *options, int64_t samples);
/* samples [count], -1 to 1; features [frames][bands]. options may be NULL. Allocates
   during the call. */
SHOAL_API shoal_status shoal_fbank(shoal_context *context,
                                   const shoal_fbank_options *options,
                                   const float *samples, int64_t count, float *features);

/* The same for a file, of that rate or a higher one. Release *features [*frames][bands]
   with shoal_fbank_release. */
SHOAL_API shoal_status shoal_fbank_file(shoal_context *context,
                                        const shoal_fbank_options *options,
                                        const char *path, float **features,
                                        int64_t *frames);
SHOAL_API void shoal_fbank_release(shoal_context *context, float *features);

/* ---- Data folders ------------------------------------------------------------------ */

/* Transcribed recordings in a Kaldi data folder:
       wav.scp    ID PATH          a recording; PATH is absolute or relative to the folder
       segments   ID REC BEGIN END optional: utterances are parts of recordings
       text       ID WORD WORD ... transcripts; or another file of this form
       utt2spk    ID SPEAKER       optional: otherwise each utterance has its own speaker
   Commands in wav.scp ("... |") are refused: nothing is executed. Features are computed
   once, on all threads, into a file that is mapped. Its name depends on the paths, sizes
   and times of the recordings, the segments and the options; a stale or damaged file is
   computed again. */
typedef struct shoal_corpus shoal_corpus;

typedef enum {
    SHOAL_NORMALISE_SPEAKER,
    SHOAL_NORMALISE_UTTERANCE,
    SHOAL_NORMALISE_NONE
} shoal_normalise;

/* Units of transcripts. */
typedef enum {
    SHOAL_UNITS_WORDS,      /* words of the file, such as phones */
    SHOAL_UNITS_CHARACTERS, /* letters, and "_" between words, which no transcript may
                               contain */
    SHOAL_UNITS_SUBWORDS,   /* frequent parts of words, with "_" where a word begins */
    SHOAL_UNITS_AUTO        /* training only: characters for the file `text` with CTC,
                               else words */
} shoal_units;

typedef struct {
    size_t size;
    const char *labels;        /* the file of transcripts; NULL: "text" */
    shoal_units unit_type;     /* not SHOAL_UNITS_AUTO */
    int32_t skip_bad;          /* nonzero: leave out utterances that cannot be used */
    shoal_normalise normalise; /* of mean and variance, per band */
    double speed;              /* factor of the playing speed, 0.5 to 2; 0: 1 */
    shoal_fbank_options fbank;
    const char *cache;        /* existing folder for the file of features */
    const char *const *units; /* [unit_count] of a model, in the order of strcmp; NULL:
                                 those of the folder */
    int64_t unit_count;
    /* Called as recordings are read. Return nonzero to cancel. May be NULL. */
    int (*progress)(void *user, int64_t done, int64_t all);
    /* Called for each utterance that cannot be used. May be NULL. */
    void (*bad)(void *user, const char *id, const char *reason);
    void *user;
    int32_t labels_only; /* nonzero: only units and labels are read, no recordings */
    int64_t pieces;      /* number of subwords to learn if units is NULL; 0: 500 */
} shoal_corpus_options;
SHOAL_ZERO_DEFAULTS(shoal_corpus_options)

/* All utterances are checked. The folder is refused if one cannot be used, unless
   skip_bad is set. */
SHOAL_API shoal_status shoal_corpus_open(shoal_context *context, const char *folder,
                                         const shoal_corpus_options *options,
                                         shoal_corpus **corpus);
SHOAL_API void shoal_corpus_destroy(shoal_corpus *corpus); /* NULL is valid */
/* Leaves out the utterances that another corpus, of the same folder at another speed,
   does not have, for example because they are too short at that speed. Calls
   options.bad for them. */
SHOAL_API shoal_status shoal_corpus_keep_common(shoal_corpus *corpus,
                                                const shoal_corpus *other);

typedef struct {
    int64_t utterances, speakers, frames, labels; /* that can be used */
    int64_t bad;                                  /* utterances left out */
    int64_t longest, most_labels;                 /* of one utterance: frames, labels */
    int32_t bands, rate;                          /* of the features */
    int32_t cached; /* nonzero: the file of features existed already */
    int64_t units;
    uint64_t fingerprint; /* of utterances, speakers, labels, units and features */
} shoal_corpus_info;
SHOAL_API const shoal_corpus_info *shoal_corpus_describe(const shoal_corpus *corpus);

typedef struct {
    const char *id, *speaker;
    int64_t speaker_index; /* 0 .. speakers - 1 */
    int64_t frames;
    const float *features; /* [frames][bands], not normalised: subtract `mean`, */
    const float *mean;     /* [bands], then multiply by `scale`, */
    const float *scale;    /* [bands] */
    int64_t label_count;
    const int32_t *labels; /* 1 .. units */
} shoal_utterance;
/* index 0 .. utterances - 1, in the order of the folder's files; returns 0 past the end.
   The corpus owns what the pointers point to. */
SHOAL_API int shoal_corpus_utterance(const shoal_corpus *corpus, int64_t index,
                                     shoal_utterance *utterance);
/* Unit 1 .. units as text; NULL beyond. 0 is left for a blank. */
SHOAL_API const char *shoal_corpus_unit(const shoal_corpus *corpus, int64_t unit);

/* ---- Lexicons ---------------------------------------------------------------------- */

/* Words with their pronunciations, in UTF-8: each line has a word and its phones; a word
   has as many lines as pronunciations. Formats: Kaldi's lexicon.txt and lexiconp.txt
   (whose probabilities are ignored), and CMUdict, where ";;;" and " #" begin a comment,
   WORD(2) is another pronunciation of WORD, and stress digits are dropped (AH0 is AH).
   Duplicate pronunciations are merged. Messages name the line. */
typedef struct shoal_lexicon shoal_lexicon;

typedef struct {
    size_t size;
    const char *const *phones; /* [phone_count] of a model, in its order; other phones are
                                  errors. NULL: those of the files in the order of
                                  strcmp */
    int64_t phone_count;
    const char *silence; /* name of the silence, which is always the last phone, whether
                            the files or `phones` contain it or not; NULL: "SIL" */
    int32_t keep_stress; /* nonzero: AH0 and AH1 are different phones */
} shoal_lexicon_options;
SHOAL_ZERO_DEFAULTS(shoal_lexicon_options)

/* Opens one or more files as one lexicon. options may be NULL. */
SHOAL_API shoal_status shoal_lexicon_open(shoal_context *context,
                                          const char *const *paths, int64_t count,
                                          const shoal_lexicon_options *options,
                                          shoal_lexicon **lexicon);
/* The same for up to 16 files in one string, separated by commas. */
SHOAL_API shoal_status shoal_lexicon_open_list(shoal_context *context, const char *files,
                                               const shoal_lexicon_options *options,
                                               shoal_lexicon **lexicon);
SHOAL_API void shoal_lexicon_destroy(shoal_lexicon *lexicon); /* NULL is valid */

typedef struct {
    int64_t words, pronunciations;
    int64_t phones;  /* number of phones, the silence included */
    int64_t silence; /* its index, phones - 1 */
} shoal_lexicon_info;
SHOAL_API const shoal_lexicon_info *shoal_lexicon_describe(const shoal_lexicon *lexicon);

/* Phone 0 .. phones - 1 and word 0 .. words - 1 as text, words in the order of strcmp;
   NULL beyond. */
SHOAL_API const char *shoal_lexicon_phone(const shoal_lexicon *lexicon, int64_t phone);
SHOAL_API const char *shoal_lexicon_word(const shoal_lexicon *lexicon, int64_t word);
/* The word of that spelling, else the first one that differs only in the case of A to Z;
   -1 if there is none. */
SHOAL_API int64_t shoal_lexicon_find(const shoal_lexicon *lexicon, const char *text);
/* Number of pronunciations of a word; 0 for an invalid word. */
SHOAL_API int64_t shoal_lexicon_pronunciations(const shoal_lexicon *lexicon,
                                               int64_t word);
/* Pronunciation `index`, from 0 in the order of the files: sets *phones and returns their
   number, 0 past the last. */
SHOAL_API int64_t shoal_lexicon_pronunciation(const shoal_lexicon *lexicon, int64_t word,
                                              int64_t index, const int32_t **phones);

/* ---- Language models --------------------------------------------------------------- */

/* Back-off n-grams of up to 6 words, from an ARPA file, also compressed by gzip, or from
   a binary trigram file of CMU Sphinx (such as en-us.lm.bin of Debian's
   pocketsphinx-en-us; it is not documented which texts that model was made from). Files
   are checked; the message about a damaged ARPA file names the line. */
typedef struct shoal_ngram shoal_ngram;

SHOAL_API shoal_status shoal_ngram_open(shoal_context *context, const char *path,
                                        shoal_ngram **ngram);
SHOAL_API void shoal_ngram_destroy(shoal_ngram *ngram); /* NULL is valid */

typedef struct {
    int32_t order;
    int64_t words, ngrams; /* <s> and </s> included; n-grams of all lengths */
    size_t bytes;          /* of memory */
} shoal_ngram_info;
SHOAL_API const shoal_ngram_info *shoal_ngram_describe(const shoal_ngram *ngram);

/* The word's number, 0 .. words - 1; -1 if the model does not have it. */
SHOAL_API int64_t shoal_ngram_word(const shoal_ngram *ngram, const char *text);
/* Natural logarithm of the probability of the last of words [count] after the others.
   Numbers must be below `words`; they are not checked. */
SHOAL_API double shoal_ngram_score(const shoal_ngram *ngram, const int64_t *words,
                                   int64_t count);

/* ---- Decoding words ---------------------------------------------------------------- */

/* Which output belongs to a phone in a step (a row of outputs), for P phones in the order
   of the lexicon, the silence last. */
typedef enum {
    SHOAL_TOPOLOGY_CHAIN, /* 2 P outputs: 2 p in the phone's first step, 2 p + 1 in all
                             others */
    SHOAL_TOPOLOGY_ONE,   /* P outputs: p in every step */
    SHOAL_TOPOLOGY_BLANK, /* P + 1 outputs: p in the first step, P in all other steps of
                             any phone */
    SHOAL_TOPOLOGY_CTC    /* P outputs: 0 is the blank, 1 + p is phone p in one or more
                             steps; a blank separates equal phones. The silence has no
                             output: blanks stand between words. Not for LF-MMI */
} shoal_topology;

/* Finds the most likely words: those with the largest sum of outputs over all steps (for
   CTC log-softmax), lm_weight times the log-probability of the words, and `insertion` for
   each word. Silence is optional between words. The search is a beam search over a prefix
   tree of the lexicon, with language-model look-ahead. Context, lexicon and language
   model must outlive the decoder. */
typedef struct shoal_word_decoder shoal_word_decoder;

/* unknown: probability, in any context, of words of the lexicon that the language model
   does not have; 0 leaves them out. Words whose pronunciation contains the silence are
   left out as well. Spellings are matched as they are, then in lower case, then in upper
   case. */
SHOAL_API shoal_status shoal_word_decoder_create(shoal_context *context,
                                                 const shoal_lexicon *lexicon,
                                                 const shoal_ngram *ngram,
                                                 shoal_topology topology, double unknown,
                                                 shoal_word_decoder **decoder);
SHOAL_API void shoal_word_decoder_destroy(shoal_word_decoder *decoder); /* NULL: valid */

typedef struct {
    int64_t words, pronunciations; /* that can be recognised */
    int64_t left_out;              /* words of the lexicon that cannot */
    int64_t nodes;                 /* of the tree */
    int64_t outputs;               /* of a step */
    size_t bytes;                  /* of memory, without lexicon and language model */
} shoal_word_decoder_info;
SHOAL_API const shoal_word_decoder_info *
shoal_word_decoder_describe(const shoal_word_decoder *decoder);
/* Nonzero if this word of the lexicon can be recognised. */
SHOAL_API int shoal_word_decoder_hears(const shoal_word_decoder *decoder, int64_t word);

typedef struct {
    size_t size;
    double beam;    /* above 0; INFINITY: every path */
    int64_t tokens; /* largest number of paths in a step; 0: no limit */
    double lm_weight, insertion;
    int64_t nbest;      /* number of hypotheses, 1 to 10000 */
    int32_t confidence; /* nonzero: compute the confidence of words */
    int32_t reserved[5];
} shoal_word_settings;

/* Defaults: beam 12, 3000 paths, weights that did well on LibriSpeech (tune your own),
   one hypothesis, no confidence. init fills in a struct of `size` bytes. */
SHOAL_API void shoal_word_settings_init(shoal_word_settings *settings, size_t size,
                                        shoal_topology topology);
static inline shoal_word_settings shoal_word_settings_defaults(shoal_topology topology) {
    shoal_word_settings settings;
    shoal_word_settings_init(&settings, sizeof settings, topology);
    return settings;
}

typedef struct {
    const char *text;   /* as the lexicon spells it */
    int64_t begin, end; /* steps */
    double confidence;  /* probability of this word here, among the paths within the beam;
                           0 if it was not asked for */
} shoal_spoken_word;
typedef struct {
    const shoal_spoken_word *words; /* [count] */
    int64_t count;
    double score;
} shoal_word_string;
typedef struct {
    const shoal_word_string *strings; /* [count], different words, best first; there may
                                         be fewer than nbest */
    int64_t count;                    /* at least 1 */
    int32_t whole;         /* 0: no path reached the end of a word in the last step, and
                             this is the best partial path */
    double tokens_of_step; /* mean number of paths */
} shoal_spoken;

/* Decodes `count` sequences in parallel on the context's threads; sequence i is steps
   offsets[i] .. offsets[i + 1] - 1 of outputs [steps][outputs]. The result does not
   depend on the number of threads. spoken: [count]; what it points to is valid until the
   next call. NaN and +infinity are refused. */
SHOAL_API shoal_status shoal_word_decoder_run(shoal_word_decoder *decoder,
                                              const shoal_word_settings *settings,
                                              int64_t count, const int64_t *offsets,
                                              const float *outputs, shoal_spoken *spoken);

/* ---- Lattice-free MMI -------------------------------------------------------------- */

/* The loss of recognisers that are trained on whole utterances from a flat start: the
   log-probability of all possible phone sequences (the denominator) minus that of the
   transcript (the numerator). The denominator is a phone n-gram without smoothing, made
   from the transcripts. Outputs are used without softmax or prior; a step is a row of
   outputs. */
typedef struct shoal_lfmmi shoal_lfmmi;

typedef struct {
    size_t size;
    shoal_topology topology; /* not SHOAL_TOPOLOGY_CTC */
    int32_t order;           /* of the n-gram, 2 to 5 */
    int64_t extra; /* number of full histories (order - 1 phones) that are kept; others
                      are shortened by one phone. 0: all are kept */
    int32_t whole; /* nonzero: utterances begin and end as the transcripts do; 0: they may
                      be parts of recordings and begin and end anywhere */
    float leak;    /* probability of a jump from any state to any other in each step, 1e-8
                      to 1 */
    float l2;      /* weight of the squared outputs; 0: none */
    float range;   /* weight of the squares of outputs beyond -30 to 30; 0: none */
    const char *cache; /* folder for the file of n-grams; NULL: no file */
} shoal_lfmmi_options;

/* Defaults: SHOAL_TOPOLOGY_CHAIN, order 4, extra 2000, leak 0.1, l2 0.00005, range 0.01.
   init fills in a struct of `size` bytes. */
SHOAL_API void shoal_lfmmi_options_init(shoal_lfmmi_options *options, size_t size);
static inline shoal_lfmmi_options shoal_lfmmi_options_defaults(void) {
    shoal_lfmmi_options options;
    shoal_lfmmi_options_init(&options, sizeof options);
    return options;
}

/* From transcripts: words [offsets[count]] of the lexicon, which must outlive the result.
   options may be NULL. */
SHOAL_API shoal_status shoal_lfmmi_create(shoal_context *context,
                                          const shoal_lfmmi_options *options,
                                          const shoal_lexicon *lexicon, int64_t count,
                                          const int64_t *offsets, const int32_t *words,
                                          shoal_lfmmi **lfmmi);
/* From a file of shoal_lfmmi_save, which determines order and extra. lexicon may be NULL
   if the result is only used to decode. options may be NULL. */
SHOAL_API shoal_status shoal_lfmmi_open(shoal_context *context,
                                        const shoal_lfmmi_options *options,
                                        const shoal_lexicon *lexicon, const char *path,
                                        shoal_lfmmi **lfmmi);
SHOAL_API shoal_status shoal_lfmmi_save(const shoal_lfmmi *lfmmi, const char *path);
SHOAL_API void shoal_lfmmi_destroy(shoal_lfmmi *lfmmi); /* NULL is valid */

typedef struct {
    int64_t outputs, phones; /* of a step; the silence included */
    int64_t states, arcs;    /* of the denominator */
    int32_t cached;          /* nonzero: the file of n-grams existed already */
    size_t workspace;        /* bytes that the calls so far needed */
} shoal_lfmmi_info;
SHOAL_API const shoal_lfmmi_info *shoal_lfmmi_describe(const shoal_lfmmi *lfmmi);

typedef struct {
    size_t size;
    int64_t batch;               /* number of utterances */
    const int64_t *offsets;      /* [batch + 1] of steps */
    const int64_t *word_offsets; /* [batch + 1] */
    const int32_t *words;        /* of the lexicon */
} shoal_lfmmi_batch;
SHOAL_ZERO_DEFAULTS(shoal_lfmmi_batch)

typedef struct {
    double sum;                /* of the losses */
    int64_t steps, utterances; /* that are in the sum */
    int64_t impossible;        /* utterances left out: fewer steps than phones, or an
                                  n-gram that no transcript has */
    int64_t broken;            /* utterances whose loss is not finite: counted as 10 per
                                  step, with gradient 0 */
} shoal_lfmmi_result;

/* outputs [steps][outputs]. Each loss is log den - log num plus the regularisers; that of
   an impossible utterance is 0. gradient: that of the sum times `factor`; it may be the
   outputs, or NULL. losses: [batch] or NULL. Utterances run in parallel; the bits are the
   same on any number of threads. */
SHOAL_API shoal_status shoal_lfmmi_loss(shoal_lfmmi *lfmmi,
                                        const shoal_lfmmi_batch *batch,
                                        const float *outputs, double factor,
                                        float *gradient, double *losses,
                                        shoal_lfmmi_result *result);

/* The most likely phones of `count` utterances, without silences: utterance b has
   counts[b] phones at phones + offsets[b], which begin at the steps begins +
   offsets[b]. */
SHOAL_API shoal_status shoal_lfmmi_decode(shoal_lfmmi *lfmmi, int64_t count,
                                          const int64_t *offsets, const float *outputs,
                                          int32_t *phones, int32_t *begins,
                                          int64_t *counts);

/* ---- Recognisers ------------------------------------------------------------------- */

/* The input of a recogniser: filter banks of mono sound, normalised per band. Each
   position sees `context` frames. */
typedef struct {
    size_t size;
    int64_t bands; /* of the filter banks */
    int64_t rate;  /* samples per second: 16000 or 8000 */
    shoal_normalise normalise;
    int64_t hop;     /* frames (10 ms) from one position to the next */
    int64_t context; /* frames that a position sees */
    int64_t every;   /* positions from one output (a step) to the next */
    int32_t reserved[6];
} shoal_features_config;
SHOAL_ZERO_DEFAULTS(shoal_features_config)

/* Number of positions of `frames` frames, and features of a position: context * bands. */
SHOAL_API int64_t shoal_features_positions(const shoal_features_config *config,
                                           int64_t frames);
SHOAL_API int64_t shoal_features_width(const shoal_features_config *config);
/* Normalises frames [count][bands] of one speaker in place to mean 0 and variance 1 in
   each band, unless the configuration says SHOAL_NORMALISE_NONE. */
SHOAL_API void shoal_features_normalise(const shoal_features_config *config,
                                        int64_t count, float *frames);
/* Stacks frames [count][bands] into rows [positions][width]: position i sees the frames
   from i hop - (context - hop) / 2 on, with zeros beyond both ends. */
SHOAL_API void shoal_features_stack(const shoal_features_config *config, int64_t count,
                                    const float *frames, float *rows);

typedef enum {
    SHOAL_RECOGNISER_LOSS_CTC,
    SHOAL_RECOGNISER_LOSS_LFMMI
} shoal_recogniser_loss;

/* A trained recogniser, as `shoal train speech` and libshoal-train leave it in the folder
   of a run. It processes a recording in pieces of about equal length, each with 2 s of
   context, and finds units (those of the training's transcripts; phones after training
   with LF-MMI) or, with a lexicon and a language model, words. */
typedef struct shoal_recogniser shoal_recogniser;

typedef struct {
    size_t size;
    const char *attention; /* as shoal_attention_parse reads it; NULL: that of the
                              training */
    int64_t beams;       /* units of CTC: beams of prefix beam search, up to 10000; 0: the
                            most likely unit of each step */
    double piece;        /* largest length of a piece in seconds; 0: 30, or the length to
                            which the training joined utterances */
    const char *lexicon; /* for words: files, separated by commas; NULL: find units */
    const char *lm;      /* for words: a file for shoal_ngram_open */
    double unknown;      /* for words: as in shoal_word_decoder_create */
    shoal_word_settings words; /* a lm_weight or insertion of NaN selects the loss's
                                  default */
} shoal_recogniser_options;

/* Defaults: no words; those of shoal_word_settings_defaults, with NaN for lm_weight and
   insertion. init fills in a struct of `size` bytes. */
SHOAL_API void shoal_recogniser_options_init(shoal_recogniser_options *options,
                                             size_t size);
static inline shoal_recogniser_options shoal_recogniser_options_defaults(void) {
    shoal_recogniser_options options;
    shoal_recogniser_options_init(&options, sizeof options);
    return options;
}

/* path: the folder of a run, of which best.safetensors is used or else
   checkpoint.safetensors; or such a file. Averaged weights are used if there are any.
   options may be NULL. */
SHOAL_API shoal_status shoal_recogniser_open(shoal_context *context, const char *path,
                                             const shoal_recogniser_options *options,
                                             shoal_recogniser **recogniser);
SHOAL_API void shoal_recogniser_destroy(shoal_recogniser *recogniser); /* NULL: valid */
/* Changes lexicon, lm, unknown and words of the options. If they are refused, the old
   ones stay. */
SHOAL_API shoal_status shoal_recogniser_set_words(
    shoal_recogniser *recogniser, const shoal_recogniser_options *options);

typedef struct {
    const char *path;               /* file of its weights */
    int64_t step;                   /* of the training */
    shoal_recogniser_loss loss;     /* of the training */
    shoal_topology topology;        /* of its outputs */
    shoal_units unit_type;          /* never SHOAL_UNITS_AUTO */
    int64_t units;                  /* number; of LF-MMI the phones, the silence last */
    int64_t outputs;                /* of a step */
    shoal_features_config features; /* its input */
    double step_seconds;            /* from one step to the next */
    shoal_attention attention;      /* of the training */
} shoal_recogniser_info;
SHOAL_API const shoal_recogniser_info *
shoal_recogniser_describe(const shoal_recogniser *recogniser);
/* Unit 0 .. units - 1 as text; NULL beyond. With CTC it is output 1 + unit. */
SHOAL_API const char *shoal_recogniser_unit(const shoal_recogniser *recogniser,
                                            int64_t unit);

typedef struct {
    const char *text;
    int64_t begin; /* step */
} shoal_recognised_unit;

typedef struct {
    int64_t steps;                      /* of the recording */
    double seconds;                     /* steps times the seconds of a step */
    const shoal_recognised_unit *units; /* [count]; none if words are found */
    int64_t count;
    double log_probability; /* of the units, by beam search; else 0 */
    shoal_spoken spoken;    /* words, if they are found; else zeros */
} shoal_recognition;

/* Recognises a file, of the features' rate or a higher one, or samples [count] at that
   rate, mono, -1 to 1. Features are normalised over the whole recording, as that of one
   speaker. What the recognition points to is valid until the next call. */
SHOAL_API shoal_status shoal_recogniser_recognise_file(shoal_recogniser *recogniser,
                                                       const char *path,
                                                       shoal_recognition *recognition);
SHOAL_API shoal_status shoal_recogniser_recognise(shoal_recogniser *recogniser,
                                                  const float *samples, int64_t count,
                                                  shoal_recognition *recognition);

/* The parts of a recogniser, which owns them, for batches of your own. */
typedef struct {
    shoal_model *model;     /* from features to outputs; use shoal_model_create_view */
    shoal_lexicon *lexicon; /* these three: NULL without words */
    shoal_ngram *ngram;
    shoal_word_decoder *decoder;
    shoal_word_settings words;
} shoal_recogniser_parts;
SHOAL_API const shoal_recogniser_parts *
shoal_recogniser_describe_parts(const shoal_recogniser *recogniser);
/* After training with LF-MMI: the graphs beside the weights (phones.graph), with the
   training's options. lexicon may be NULL if they are only used to decode. Destroy
   *lfmmi yourself. */
SHOAL_API shoal_status shoal_recogniser_open_graphs(const shoal_recogniser *recogniser,
                                                    const shoal_lexicon *lexicon,
                                                    shoal_lfmmi **lfmmi);

#ifdef __cplusplus
}
#endif
#endif
