/* Shoal's speech: recordings become text.
 *
 * Whisper, whole: features, encoder, decoder, and the published way of decoding. Any kind
 * of attention runs the encoder, which attends over 1500 positions in every window of
 * 30 s; the decoder's attention is exact. Models are read as others have published them.
 * Beside it stands what training a recogniser of one's own needs (filter banks, data
 * folders as Kaldi keeps them, lattice-free MMI; the models and CTC are in
 * shoal_models.h), and the use of a recogniser that was trained.
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal_speech.h>
 *     #include <stdio.h>
 *
 *     static int print_segment(void *user, const shoal_segment *segment) {
 *         (void)user;
 *         printf("%7.2f %7.2f %s\n", segment->begin, segment->end, segment->text);
 *         return 0;                           // go on
 *     }
 *
 *     int main(void) {
 *         const char *path = "talk.flac";
 *         shoal_recording talk = {.paths = &path, .files = 1};
 *         shoal_speech_options options = {.attention = "shoal"};
 *         shoal_context *context;
 *         shoal_speech *speech;
 *         if (shoal_context_create(NULL, &context) != SHOAL_OK ||
 *             shoal_speech_open(context, "ggml-tiny.bin", &options, &speech) ||
 *             shoal_speech_transcribe(speech, &talk, NULL, print_segment, NULL, NULL))
 *             return 1;                       // shoal_context_message(context) says why
 *         shoal_speech_close(speech);
 *         shoal_context_destroy(context);
 *     }
 *
 * THE RULES, ONCE (those of shoal.h hold too)
 *
 * Models.   A ggml file as whisper.cpp reads it (f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0),
 *           or a Hugging Face folder: config.json, model.safetensors or its shards, and
 *           vocab.json or tokenizer.json. All sizes of Whisper, English-only ones too.
 * Sound.    WAV, FLAC, OGG, MP3 and what else libsndfile reads, of any rate and number of
 *           channels: mixed to one and resampled to 16 kHz. Or samples in memory, mono at
 *           16 kHz. NaN and samples beyond 1e9 are refused.
 * Owners.   A speech belongs to its context: close it first. What a recording points to
 *           must live during the call. What a segment points to lives until its callback
 *           returns.
 * Errors.   A file that is missing is SHOAL_IO, one that is damaged SHOAL_BAD_FILE.
 *           Files are read as they are needed, so shoal_speech_transcribe may fail when
 *           it has handed over segments; the summary is of what was done till then.
 * Memory.   Opening allocates what one window needs and tells how much. Transcribing
 *           takes buffers for the sound, which do not grow with its length. The libraries
 *           that read and resample sound use malloc, whatever the context's allocator is.
 *           The model's files are mapped while it is opened (do not write to them then)
 *           and not needed afterwards.
 * Threads.  As in shoal.h: one context per thread, with all that belongs to it. Callbacks
 *           come in the caller's thread, and must not use the speech they come from.
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

/* ---- Models ----------------------------------------------------------------------- */

typedef struct shoal_speech shoal_speech;

typedef struct {
    const char *attention; /* of the encoder, as shoal_attention_parse takes it; NULL:
                              full. Kinds that take the queries as keys (lsh,
                              shared-full) are refused: the model has keys of its own */
    int beams;             /* most texts that a search follows side by side, 1 to 64;
                              0: 5, which the samples of a fallback need */
    int force; /* nonzero: any kind of attention, whatever it makes of words */
    int batch; /* most windows that run side by side, 1 to 64; 0: 16, or fewer where their
                  sound would take more than 256 MiB. The text does not depend on it */
    int precision; /* a shoal_precision, of the matrices. float32 is so throughout; else
                      what the decoder keeps of the sound is halves. int8: all but the
                      table of tokens, the convolutions and the attention */
} shoal_speech_options;

/* Opens a model: a file, a folder, or the config.json in one. options may be NULL. */
SHOAL_API shoal_status shoal_speech_open(shoal_context *context, const char *path,
                                         const shoal_speech_options *options,
                                         shoal_speech **speech);
SHOAL_API void shoal_speech_close(shoal_speech *speech); /* NULL is legal */

/* Another attention for the encoder; when it is refused the one before stays. */
SHOAL_API shoal_status shoal_speech_set_attention(shoal_speech *speech,
                                                  const char *attention);

/* The estimated error of the encoder's attention in the first window that was heard with
   it: |out - exact| / |exact|, the largest of the layers'. Above 0.2 words may be lost or
   made up. NaN before that window, and for full, shoal and auto, which keep the words and
   are not measured. */
SHOAL_API double shoal_speech_attention_error(const shoal_speech *speech);

typedef struct {
    int32_t mels, frames;     /* features of a window of 30 s: [mels][frames] */
    int32_t positions, width; /* the encoder's output: [positions][width] */
    int32_t heads, layers;    /* of the encoder */
    int32_t text_positions, text_layers, vocabulary;
    int32_t multilingual; /* 0: English only */
    int32_t precision;    /* of the encoder's matrices: what auto has chosen */
    size_t bytes;         /* of memory */
} shoal_speech_info;
SHOAL_API shoal_speech_info shoal_speech_describe(const shoal_speech *speech);

/* ---- Transcribing ----------------------------------------------------------------- */

/* What is listened to: files one after another with `gap` seconds of silence between, or
   samples. */
typedef struct {
    const char *const *paths; /* [files] */
    int files;                /* 0: the samples below */
    double gap;               /* 0 to 3600 */
    const float *samples;     /* [sample_count] */
    int64_t sample_count;
    int partial;     /* nonzero: of a file that was cut short or is damaged after its
                    beginning, what is there; 0: it is refused */
    double offset;   /* seconds that are left out at its beginning; times stay its own */
    double duration; /* seconds that are heard from there on; 0: to its end */
} shoal_recording;

/* The code ("en") of a language that is given by its code or English name; NULL where no
   model knows it. */
SHOAL_API const char *shoal_speech_language(const char *text);

/* All zero: speech is found first and packed into windows of 30 s, which run side by
   side, each by itself; language detected, greedy with timestamps, other temperatures
   where the text repeats itself, is unlikely or says too little; what a text leaves
   unsaid is heard again. */
typedef struct {
    const char *language; /* "en", "english" ...; NULL: detected in the first window */
    int translate;        /* nonzero: into English */
    int beams;            /* 0 or 1: greedy; more: beam search */
    int no_timestamps;    /* nonzero: one segment per window of 30 s */
    int no_vad;         /* nonzero: speech is not looked for. Window follows upon window,
                             each beginning where the words of the one before ended and
                             told what was said before */
    int published;      /* nonzero: the same by the rules that were published with the
                             model, and no others */
    int no_context;     /* nonzero: every window begins afresh, as it does where speech
                             is found first */
    int no_fallback;    /* nonzero: temperature 0 only, and words for all but windows
                             without any sound */
    uint64_t seed;      /* of the samples at temperatures above 0 */
    int words;          /* nonzero: segments have their words, with times */
    const char *prompt; /* what a window is told that was said before: names, spellings;
                             NULL: nothing */
    /* Called after each window with the seconds done and those of the recording, as far
       as its files' headers tell; may be NULL. */
    void (*progress)(void *user, double done, double all);
} shoal_transcribe_options;

typedef struct {
    double begin, end;  /* seconds */
    const char *text;   /* with a leading space where the model wrote one, and the marks
                           that stand at it */
    double probability; /* mean of its tokens' */
} shoal_word;

typedef struct {
    double begin, end;     /* seconds */
    const char *text;      /* UTF-8 as the model wrote it, a leading space included */
    const int32_t *tokens; /* [token_count], timestamps included */
    int64_t token_count;
    /* Of the window it comes from: */
    double temperature, mean_logprob;
    double no_speech;   /* probability that nothing is said */
    double compression; /* bytes of the text over those that zlib makes of it: high where
                           it repeats itself */
    const shoal_word *words; /* [word_count]; none unless the option asks for them */
    int64_t word_count;
} shoal_segment;

/* Called for every segment in order. Not 0: stop here, which is no error. */
typedef int shoal_segment_function(void *user, const shoal_segment *segment);

typedef struct {
    char language[16];                       /* code; "" where nothing was said */
    double language_probability;             /* 1 when it was given */
    double seconds;                          /* of the recording that were gone through */
    double encoder_seconds, decoder_seconds; /* time they took */
    int64_t windows, fallbacks, silent;      /* windows; decoded again; left out */
    int64_t tokens;                          /* of the texts that were taken */
} shoal_transcription;

/* options, segment and summary may be NULL; user goes to both callbacks. */
SHOAL_API shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                               const shoal_recording *recording,
                                               const shoal_transcribe_options *options,
                                               shoal_segment_function *segment,
                                               void *user, shoal_transcription *summary);

/* Called when all that a recording says was handed over, index 0, 1, ... in order; the
   segments that follow are the next one's. status: where it is not SHOAL_OK, it could not
   be read or heard to its end, and the context has the message. Not 0: stop here. */
typedef int shoal_ended_function(void *user, int index, shoal_status status,
                                 const shoal_transcription *summary);

/* Recordings [count], each with the text that it has alone. Windows of all of them run
   side by side, so that many short recordings take as long as one that is as long as all
   together. options, segment and ended may be NULL. One recording that cannot be read
   does not end the others. */
SHOAL_API shoal_status shoal_speech_transcribe_all(
    shoal_speech *speech, const shoal_recording *recordings, int count,
    const shoal_transcribe_options *options, shoal_segment_function *segment,
    shoal_ended_function *ended, void *user);

/* ---- The steps one by one --------------------------------------------------------- */

/* Log-mel features of the 30 s from `begin` seconds on, padded with silence; features:
   [mels][frames]. *seconds: how much of it is recording; may be NULL. */
SHOAL_API shoal_status shoal_speech_features(shoal_speech *speech,
                                             const shoal_recording *recording,
                                             double begin, float *features,
                                             double *seconds);

/* The encoder: features [mels][frames] to encoded [positions][width]. */
SHOAL_API shoal_status shoal_speech_encode(shoal_speech *speech, const float *features,
                                           float *encoded);

/* The words of one window from the encoder's output, encoded [positions][width]; seconds,
   up to 30, of it are recording. As shoal_speech_transcribe, with nothing said before;
   options, segment and summary may be NULL. */
SHOAL_API shoal_status shoal_speech_decode(shoal_speech *speech, const float *encoded,
                                           double seconds,
                                           const shoal_transcribe_options *options,
                                           shoal_segment_function *segment, void *user,
                                           shoal_transcription *summary);

/* The decoder: logits [count][vocabulary] after each of the tokens [count] of a text,
   1 <= count <= text_positions. */
SHOAL_API shoal_status shoal_speech_logits(shoal_speech *speech, const float *encoded,
                                           const int32_t *tokens, int64_t count,
                                           float *logits);

/* ---- Word errors ------------------------------------------------------------------ */

typedef struct {
    int64_t words; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_word_errors;

/* Adds the word errors of a text to *errors: the fewest edits, after the usual
   normalisation of English on both sides: lower case, no punctuation, numbers as digits,
   contractions and titles spelled out, American spelling. */
SHOAL_API shoal_status shoal_count_word_errors(shoal_context *context,
                                               const char *reference, const char *text,
                                               shoal_word_errors *errors);

/* The same for a text whose reference has parts, such as utterances heard together: adds
   to errors: [count] what falls on each of the references: [count]. A word too many
   falls on the part of the word before it. */
SHOAL_API shoal_status shoal_count_part_errors(shoal_context *context,
                                               const char *const *references, int count,
                                               const char *text,
                                               shoal_word_errors *errors);

/* ---- Filter banks ------------------------------------------------------------------ */

/* Log-mel filter banks as Kaldi computes them, without dither: 25 ms every 10 ms of mono
   sound at 16 or 8 kHz, povey window, preemphasis 0.97, power, 20 Hz to half the rate.
   All zero: 40 bands, snip-edges, 16 kHz. */
typedef struct {
    int32_t bands;   /* 0: 40 */
    int32_t centred; /* nonzero: snip-edges=false, a frame for every 10 ms, with the sound
                        reflected at both ends */
    int32_t rate;    /* samples per second, 16000 or 8000; 0: 16000, but of a data folder:
                        8000 where most of its recordings have less than 16000 */
} shoal_fbank_options;

/* How many frames so many samples have. */
SHOAL_API int64_t shoal_fbank_frames(const shoal_fbank_options *options, int64_t samples);
/* samples [count], -1 to 1; features [frames][bands]. options may be NULL.
   Allocates during the call. */
SHOAL_API shoal_status shoal_fbank(shoal_context *context,
                                   const shoal_fbank_options *options,
                                   const float *samples, int64_t count, float *features);

/* Of a whole recording, of that rate or more. *features [*frames][bands] is given back
   with shoal_fbank_release. */
SHOAL_API shoal_status shoal_fbank_file(shoal_context *context,
                                        const shoal_fbank_options *options,
                                        const char *path, float **features,
                                        int64_t *frames);
SHOAL_API void shoal_fbank_release(shoal_context *context, float *features);

/* ---- Data folders ------------------------------------------------------------------ */

/* Recordings with what is said in them, as Kaldi keeps them. A folder has
       wav.scp    ID PATH          a recording; PATH is absolute or begins in the folder
       segments   ID REC BEGIN END where there is one: utterances are parts of recordings
       text       ID WORD WORD ... what is said; or another file of this form
       utt2spk    ID SPEAKER       where there is one: else each utterance has its own
   Commands in wav.scp ("... |") are refused: nothing is run here. Features are computed
   once, by all threads, into a file that is mapped; its name carries what they depend on
   (paths, sizes, times of the recordings, segments, options), and one that is stale or
   damaged is made again. */
typedef struct shoal_corpus shoal_corpus;

typedef enum {
    SHOAL_NORMALISE_SPEAKER,
    SHOAL_NORMALISE_UTTERANCE,
    SHOAL_NORMALISE_NOTHING
} shoal_normalise;

typedef struct {
    const char *labels; /* the file of transcripts; NULL: "text" */
    int32_t characters; /* 1: units are the letters, and "_" between words, which no
                           transcript may have; 2: subwords, "_" where a word begins; 0:
                           the words of the file */
    int32_t skip_bad;   /* nonzero: utterances that cannot be used are left out */
    int32_t normalise;  /* a shoal_normalise: of mean and variance, per band */
    double speed;       /* the sound is played so many times as fast, 0.5 to 2; 0: 1 */
    shoal_fbank_options fbank;
    const char *cache;        /* folder of the features' file; must exist */
    const char *const *units; /* [unit_count] of a model, in the order of strcmp; NULL:
                                 those of the folder */
    int64_t unit_count;
    /* Called as recordings are read; not 0 stops (SHOAL_INVALID). May be NULL. */
    int (*progress)(void *user, int64_t done, int64_t all);
    /* Called for each utterance that cannot be used. May be NULL. */
    void (*bad)(void *user, const char *id, const char *reason);
    void *user;
    int32_t labels_only; /* nonzero: units and labels are found, and no recording is read:
                            of such a corpus there are its units */
    int64_t pieces;      /* subwords that are learned where units is NULL; 0: 500 */
} shoal_corpus_options;

/* Refused where an utterance cannot be used, unless they are to be skipped: all are
   looked at, so that nothing is found out later. */
SHOAL_API shoal_status shoal_corpus_open(shoal_context *context, const char *folder,
                                         const shoal_corpus_options *options,
                                         shoal_corpus **corpus);
SHOAL_API void shoal_corpus_close(shoal_corpus *corpus); /* NULL is legal */
/* Leaves out what another corpus, the same folder at another speed, has not: at a high
   speed an utterance may be too short. `bad` of the options is called for it. */
SHOAL_API shoal_status shoal_corpus_keep_common(shoal_corpus *corpus,
                                                const shoal_corpus *other);

typedef struct {
    int64_t utterances, speakers, frames, labels; /* that can be used */
    int64_t bad;                                  /* that were left out */
    int64_t longest, most_labels;                 /* of one utterance */
    int32_t bands, rate;                          /* of the features */
    int32_t cached; /* nonzero: the features were there already */
    int64_t units;
    uint64_t fingerprint; /* of utterances, speakers, labels, units and features */
} shoal_corpus_info;
SHOAL_API shoal_corpus_info shoal_corpus_describe(const shoal_corpus *corpus);

typedef struct {
    const char *id, *speaker;
    int64_t speaker_index; /* 0 .. speakers - 1 */
    int64_t frames;
    const float *features; /* [frames][bands], as computed, */
    const float *mean;     /* [bands], which is to be taken away, */
    const float *scale;    /* [bands], before this is multiplied with */
    int64_t label_count;
    const int32_t *labels; /* 1 .. units */
} shoal_utterance;
/* index 0 .. utterances - 1, in the order of the folder's files; returns 0 past them. All
   pointers live as long as the corpus. */
SHOAL_API int shoal_corpus_utterance(const shoal_corpus *corpus, int64_t index,
                                     shoal_utterance *utterance);
/* Unit 1 .. units as text; NULL beyond. 0 stays free for a blank. */
SHOAL_API const char *shoal_corpus_unit(const shoal_corpus *corpus, int64_t unit);

/* ---- Lexicons ---------------------------------------------------------------------- */

/* Words with their pronunciations: lines of a word and its phones, a word in as many
   lines as it has pronunciations, UTF-8. Read are Kaldi's lexicon.txt and lexiconp.txt,
   whose probabilities are passed over, and CMUdict: ";;;" begins a comment and so does
   " #", WORD(2) is another pronunciation of WORD, and digits of stress are dropped (AH0
   is AH). Equal pronunciations of a word are one. Errors name the line. */
typedef struct shoal_lexicon shoal_lexicon;

typedef struct {
    const char *const
        *phones; /* [phone_count] of a model, in its order, and no others are
                                  good; NULL: those of the files in the order of strcmp */
    int64_t phone_count;
    const char
        *silence; /* its name; NULL: "SIL". Always the last phone, whether the files
                            or `phones` have it or not */
    int32_t keep_stress; /* nonzero: AH0 and AH1 are two phones */
} shoal_lexicon_options;

/* All files together, at least one. options may be NULL. */
SHOAL_API shoal_status shoal_lexicon_open(shoal_context *context,
                                          const char *const *paths, int64_t count,
                                          const shoal_lexicon_options *options,
                                          shoal_lexicon **lexicon);
/* The same of up to 16 files in one text, with commas between. */
SHOAL_API shoal_status shoal_lexicon_open_list(shoal_context *context, const char *files,
                                               const shoal_lexicon_options *options,
                                               shoal_lexicon **lexicon);
SHOAL_API void shoal_lexicon_close(shoal_lexicon *lexicon); /* NULL is legal */

typedef struct {
    int64_t words, pronunciations;
    int64_t phones, silence; /* the silence included, which is the last phone */
} shoal_lexicon_info;
SHOAL_API shoal_lexicon_info shoal_lexicon_describe(const shoal_lexicon *lexicon);

/* Phone 0 .. phones - 1 and word 0 .. words - 1 as text, words in the order of strcmp;
   NULL beyond. */
SHOAL_API const char *shoal_lexicon_phone(const shoal_lexicon *lexicon, int64_t phone);
SHOAL_API const char *shoal_lexicon_word(const shoal_lexicon *lexicon, int64_t word);
/* The word of that spelling, else the first one that differs in the case of A to Z alone;
   -1: there is none. */
SHOAL_API int64_t shoal_lexicon_find(const shoal_lexicon *lexicon, const char *text);
/* How many pronunciations a word has; 0: it is no word. */
SHOAL_API int64_t shoal_lexicon_pronunciations(const shoal_lexicon *lexicon,
                                               int64_t word);
/* Pronunciation `index`, from 0 in the order of the files: returns how many phones it
   has, 0 where there is none, and shows them at *phones. */
SHOAL_API int64_t shoal_lexicon_pronunciation(const shoal_lexicon *lexicon, int64_t word,
                                              int64_t index, const int32_t **phones);

/* ---- Language models --------------------------------------------------------------- */

/* How likely words are to follow upon each other: n-grams with back-off, up to 6 words,
   from ARPA text, the same compressed by gzip, or the binary trigrams of CMU Sphinx (such
   as en-us.lm.bin of Debian's pocketsphinx-en-us; what text that one was made from is not
   documented). Files are checked; a damaged ARPA file is refused with the line. */
typedef struct shoal_ngram shoal_ngram;

SHOAL_API shoal_status shoal_ngram_open(shoal_context *context, const char *path,
                                        shoal_ngram **ngram);
SHOAL_API void shoal_ngram_close(shoal_ngram *ngram); /* NULL is legal */

typedef struct {
    int32_t order;
    int64_t words, ngrams; /* <s> and </s> included; n-grams of all lengths */
    size_t bytes;          /* of memory */
} shoal_ngram_info;
SHOAL_API shoal_ngram_info shoal_ngram_describe(const shoal_ngram *ngram);

/* The word's number, 0 .. words - 1; -1: the model does not have it. */
SHOAL_API int64_t shoal_ngram_word(const shoal_ngram *ngram, const char *text);
/* Natural log of the probability of the last of words [count] after those before it;
   numbers below `words`, which are not checked. */
SHOAL_API double shoal_ngram_score(const shoal_ngram *ngram, const int64_t *words,
                                   int64_t count);

/* ---- Words of a model's outputs ---------------------------------------------------- */

/* Which output a phone has in a step (a row of outputs): P phones, the silence the last
   of them, in the order of the lexicon. */
typedef enum {
    SHOAL_TOPOLOGY_CTC,   /* P outputs: 0 is the blank, 1 + p phone p in one step or more;
                             between equal phones there is a blank. The silence has none:
                             blanks are between words. */
    SHOAL_TOPOLOGY_CHAIN, /* 2 P: 2 p in the phone's first step, 2 p + 1 in all others */
    SHOAL_TOPOLOGY_ONE,   /* P: p in every step */
    SHOAL_TOPOLOGY_BLANK  /* P + 1: p in the first step, P in all others of any phone */
} shoal_topology;

/* Searches for the likeliest words: the best sum over the steps of their outputs (for CTC
   their log-softmax), lm_weight times the log-probability of the words, and `insertion`
   for each word. Between words there may be silence. Tokens walk through a tree of the
   lexicon, in each step those within the beam of the best, with the likeliest word that
   can follow counted ahead. Context, lexicon and language model must outlive it. */
typedef struct shoal_word_decoder shoal_word_decoder;

/* unknown: the probability of the lexicon's words that the language model does not have,
   after any words; 0: they are left out. Words whose pronunciation has the silence are.
   Spellings are compared as they are, then in lower case, then in upper case. */
SHOAL_API shoal_status shoal_word_decoder_create(shoal_context *context,
                                                 const shoal_lexicon *lexicon,
                                                 const shoal_ngram *ngram,
                                                 shoal_topology topology, double unknown,
                                                 shoal_word_decoder **decoder);
SHOAL_API void shoal_word_decoder_destroy(shoal_word_decoder *decoder); /* NULL: legal */

typedef struct {
    int64_t words, pronunciations; /* that can be heard */
    int64_t left_out;              /* words of the lexicon that cannot */
    int64_t nodes;                 /* of the tree */
    int64_t outputs;               /* of a step */
    size_t bytes;                  /* of memory, without lexicon and language model */
} shoal_word_decoder_info;
SHOAL_API shoal_word_decoder_info
shoal_word_decoder_describe(const shoal_word_decoder *decoder);
/* Nonzero: this word of the lexicon is among those that can be heard. */
SHOAL_API int shoal_word_decoder_hears(const shoal_word_decoder *decoder, int64_t word);

typedef struct {
    double beam;    /* above 0; INFINITY: every path */
    int64_t tokens; /* of a step at most; 0: any number */
    double lm_weight, insertion;
    int64_t nbest;      /* strings of words that are wanted, 1 to 10000 */
    int32_t confidence; /* nonzero: words have one */
} shoal_word_settings;
/* Beam 12, 3000 tokens, weights that did well on utterances of LibriSpeech (tune your
   own), one string, no confidence. */
SHOAL_API shoal_word_settings shoal_word_settings_default(shoal_topology topology);

typedef struct {
    const char *text;   /* as the lexicon spells it */
    int64_t begin, end; /* steps */
    double confidence;  /* the probability that this word is said here, as far as the
                           paths within the beam tell; 0 where it was not asked for */
} shoal_spoken_word;
typedef struct {
    const shoal_spoken_word *words; /* [count] */
    int64_t count;
    double score;
} shoal_word_string;
typedef struct {
    const shoal_word_string *strings; /* [count], different words, the best first; the
                                         further ones as far as the search kept them */
    int64_t count;                    /* at least 1 */
    int32_t whole;         /* 0: no path came to the end of a word at the end of the
                              steps, and this is as far as the best one came */
    double tokens_of_step; /* mean */
} shoal_spoken;

/* Sequences of steps offsets[i] .. offsets[i + 1] - 1 of outputs [steps][outputs], side
   by side over the context's threads, whose number changes nothing. spoken: [count];
   what it points to lives until the next call. NaN and +infinity are refused. */
SHOAL_API shoal_status shoal_word_decoder_run(shoal_word_decoder *decoder,
                                              const shoal_word_settings *settings,
                                              int64_t count, const int64_t *offsets,
                                              const float *outputs, shoal_spoken *spoken);

/* ---- Lattice-free MMI -------------------------------------------------------------- */

/* The loss of recognisers that are trained for whole utterances from a flat start: how
   much more probable what was said is than all that might have been. What might have been
   is a phone n-gram without smoothing, from the transcripts themselves. Outputs are plain
   numbers, with neither softmax nor prior; a step is one row of them. */
typedef struct shoal_lfmmi shoal_lfmmi;

/* All zero: the defaults. */
typedef struct {
    int32_t topology; /* a shoal_topology; 0: SHOAL_TOPOLOGY_CHAIN */
    int32_t order;    /* of the n-gram, 2 to 5; 0: 4 */
    int64_t
        extra; /* histories of order - 1 phones that are kept, the others end one phone
                      later; 0: 2000; below 0: all */
    int32_t whole; /* nonzero: utterances begin and end as the transcripts do; else
                      anywhere, which is what parts of recordings need */
    float leak;    /* from each step to any other state, 1e-8 to 1; 0: 0.1 */
    float l2;      /* of the outputs' squares; 0: 0.00005; below 0: none */
    float range; /* of the squares of what is beyond -30 to 30; 0: 0.01; below 0: none */
    const char *cache; /* folder of the n-grams' file, whose name carries what they depend
                          on; NULL: none */
} shoal_lfmmi_options;

/* From transcripts: words [offsets[count]] of the lexicon, which must live as long. */
SHOAL_API shoal_status shoal_lfmmi_create(shoal_context *context,
                                          const shoal_lfmmi_options *options,
                                          const shoal_lexicon *lexicon, int64_t count,
                                          const int64_t *offsets, const int32_t *words,
                                          shoal_lfmmi **lfmmi);
/* From a file that shoal_lfmmi_save wrote; order and extra are its own. lexicon may be
   NULL where there is only something to decode. */
SHOAL_API shoal_status shoal_lfmmi_open(shoal_context *context,
                                        const shoal_lfmmi_options *options,
                                        const shoal_lexicon *lexicon, const char *path,
                                        shoal_lfmmi **lfmmi);
SHOAL_API shoal_status shoal_lfmmi_save(const shoal_lfmmi *lfmmi, const char *path);
SHOAL_API void shoal_lfmmi_destroy(shoal_lfmmi *lfmmi); /* NULL is legal */

typedef struct {
    int64_t outputs, phones; /* that a step has; the silence included */
    int64_t states, arcs;    /* of the denominator */
    int32_t cached;          /* nonzero: the n-grams were there already */
    size_t workspace;        /* bytes that the calls so far needed */
} shoal_lfmmi_info;
SHOAL_API shoal_lfmmi_info shoal_lfmmi_describe(const shoal_lfmmi *lfmmi);

typedef struct {
    int64_t batch;               /* utterances */
    const int64_t *offsets;      /* [batch + 1] of steps */
    const int64_t *word_offsets; /* [batch + 1] */
    const int32_t *words;        /* of the lexicon */
} shoal_lfmmi_batch;

typedef struct {
    double sum;                /* of the losses */
    int64_t steps, utterances; /* that are in it */
    int64_t impossible;        /* left out: fewer steps than phones, or an n-gram that no
                           transcript had */
    int64_t broken; /* came out as no number: counted as 10 a step, their gradient
                           as 0 */
} shoal_lfmmi_result;

/* outputs [steps][outputs]. Each loss is minus the objective, log num - log den less the
   regularisers; those of impossible ones are 0. gradient: `factor` times that of the sum;
   it may be the outputs, or NULL. losses: [batch] or NULL. Utterances run side by side,
   and the bits are the same on any number of threads. */
SHOAL_API shoal_status shoal_lfmmi_loss(shoal_lfmmi *lfmmi,
                                        const shoal_lfmmi_batch *batch,
                                        const float *outputs, double factor,
                                        float *gradient, double *losses,
                                        shoal_lfmmi_result *result);

/* The likeliest phones of `count` utterances, without silences: those of utterance b are
   counts[b] from phones + offsets[b] on, and begin at the steps begins + offsets[b]. */
SHOAL_API shoal_status shoal_lfmmi_decode(shoal_lfmmi *lfmmi, int64_t count,
                                          const int64_t *offsets, const float *outputs,
                                          int32_t *phones, int32_t *begins,
                                          int64_t *counts);

/* ---- Recognisers ------------------------------------------------------------------- */

/* The input of a recogniser: filter banks of mono sound, normalised per band, of which a
   model sees `context` frames at every position. */
typedef struct {
    int64_t bands;     /* of the filter banks */
    int64_t rate;      /* samples per second: 16000 or 8000 */
    int32_t normalise; /* a shoal_normalise */
    int64_t hop;       /* frames (10 ms) from one position to the next */
    int64_t context;   /* frames that a position sees */
    int64_t every;     /* positions from one output (a step) to the next */
} shoal_features_config;

/* Positions of so many frames, and features of a position: context * bands. */
SHOAL_API int64_t shoal_features_positions(const shoal_features_config *config,
                                           int64_t frames);
SHOAL_API int64_t shoal_features_width(const shoal_features_config *config);
/* In place, frames [count][bands] of one speaker: mean 0 and variance 1 of each band,
   unless the configuration says SHOAL_NORMALISE_NOTHING. */
SHOAL_API void shoal_features_normalise(const shoal_features_config *config,
                                        int64_t count, float *frames);
/* frames [count][bands] to rows [positions][width]: position i sees the frames from
   i hop - (context - hop) / 2 on; beyond the ends there are zeros. */
SHOAL_API void shoal_features_stack(const shoal_features_config *config, int64_t count,
                                    const float *frames, float *rows);

typedef enum { SHOAL_RECOGNISER_CTC, SHOAL_RECOGNISER_LFMMI } shoal_recogniser_loss;

/* A trained recogniser: what `shoal train speech` and libshoal-train leave in the folder
   of a run. It hears a recording in pieces of about equal length, each with 2 s around
   it, and finds units (those of the training's transcripts; phones where it was trained
   by LF-MMI), or, with a lexicon and a language model, words. */
typedef struct shoal_recogniser shoal_recogniser;

/* Initialise it by shoal_recogniser_defaults. */
typedef struct {
    size_t size;           /* of this struct */
    const char *attention; /* as shoal_attention_parse takes it; NULL: the one that was
                                trained with */
    int64_t beams;         /* units of CTC: prefix beam search with so many beams, up to
                                10000; 0: the likeliest unit of each step */
    double piece;        /* seconds of a piece at most; 0: 30, or as many as the training
                                joined utterances to */
    const char *lexicon; /* words: files with commas between; NULL: units are found */
    const char *lm;      /* words: a file that shoal_ngram_open reads */
    double unknown;      /* words: as shoal_word_decoder_create takes it */
    shoal_word_settings words; /* lm_weight or insertion NaN: the loss's default */
} shoal_recogniser_options;
SHOAL_API shoal_recogniser_options shoal_recogniser_defaults(void);

/* path: the folder of a run, whose best.safetensors or else checkpoint.safetensors is
   taken, or such a file. Weights that were averaged in training are the averages.
   options may be NULL. */
SHOAL_API shoal_status shoal_recogniser_open(shoal_context *context, const char *path,
                                             const shoal_recogniser_options *options,
                                             shoal_recogniser **recogniser);
SHOAL_API void shoal_recogniser_destroy(shoal_recogniser *recogniser); /* NULL: legal */
/* Other words: lexicon, lm, unknown and words of the options; when they are refused those
   before stay. */
SHOAL_API shoal_status shoal_recogniser_set_words(
    shoal_recogniser *recogniser, const shoal_recogniser_options *options);

typedef struct {
    const char *path;               /* the file of its weights */
    int64_t step;                   /* of the training */
    shoal_recogniser_loss loss;     /* it was trained with */
    shoal_topology topology;        /* of its outputs */
    int32_t characters;             /* as in shoal_corpus_options */
    int64_t units;                  /* of LF-MMI the phones, the silence the last */
    int64_t outputs;                /* of a step */
    shoal_features_config features; /* that it hears */
    double step_seconds;            /* from one step to the next */
    shoal_attention attention;      /* it was trained with */
} shoal_recogniser_info;
SHOAL_API shoal_recogniser_info
shoal_recogniser_describe(const shoal_recogniser *recogniser);
/* Unit 0 .. units - 1 as text; NULL beyond. Of CTC it is output 1 + unit. */
SHOAL_API const char *shoal_recogniser_unit(const shoal_recogniser *recogniser,
                                            int64_t unit);

typedef struct {
    const char *text;
    int64_t begin; /* step */
} shoal_recognised_unit;

typedef struct {
    int64_t steps;                      /* of the recording */
    double seconds;                     /* steps times the seconds of a step */
    const shoal_recognised_unit *units; /* [count]; none where words were looked for */
    int64_t count;
    double log_probability; /* of the units, by beam search; else 0 */
    shoal_spoken spoken;    /* words, where they were looked for; else zeros */
} shoal_recognition;

/* A file, of the features' rate or more; or samples [count] at that rate, mono, -1 to 1.
   One speaker is taken to speak: mean and variance are those of the whole. What the
   recognition points to lives until the next call. */
SHOAL_API shoal_status shoal_recogniser_recognise_file(shoal_recogniser *recogniser,
                                                       const char *path,
                                                       shoal_recognition *recognition);
SHOAL_API shoal_status shoal_recogniser_recognise(shoal_recogniser *recogniser,
                                                  const float *samples, int64_t count,
                                                  shoal_recognition *recognition);

/* What it is made of, for those who have batches of their own; it stays the
   recogniser's. */
typedef struct {
    shoal_model *model;     /* features to outputs, run by shoal_model_view */
    shoal_lexicon *lexicon; /* these three: NULL without words */
    shoal_ngram *ngram;
    shoal_word_decoder *decoder;
    shoal_word_settings words;
} shoal_recogniser_parts;
SHOAL_API shoal_recogniser_parts
shoal_recogniser_parts_of(const shoal_recogniser *recogniser);
/* Of LF-MMI: the graphs beside its weights (phones.graph), with the training's options;
   lexicon may be NULL where there is only something to decode. The caller's. */
SHOAL_API shoal_status shoal_recogniser_graphs(const shoal_recogniser *recogniser,
                                               const shoal_lexicon *lexicon,
                                               shoal_lfmmi **lfmmi);

#ifdef __cplusplus
}
#endif
#endif
