/* Recognisers by lattice-free MMI: the lexicon, the words of a data folder, the graphs,
   and the loss and phones of a batch. */
#ifndef SHOAL_CLI_SPEECH_LFMMI_H
#define SHOAL_CLI_SPEECH_LFMMI_H

#include "speech_score.h"

/* Files with commas between; phones [phone_count] of a model, or NULL: those of the
   files. An exit code, after a complaint. */
int lfmmi_open_lexicon(const char *command, shoal_context *context, const char *files,
                       const char *const *phones, int64_t phone_count,
                       shoal_lexicon **lexicon);

/* As speech_open, with labels that become words of the lexicon. Words without a
   pronunciation are named, all of them, and so are utterances left out for them where bad
   ones are to be skipped. */
int lfmmi_open_set(const char *command, shoal_context *context, const char *folder,
                   const train_config *config, bool all_speeds,
                   const shoal_lexicon *lexicon, speech_set *set);

/* The graphs, from the transcripts of the set; or from a run's file, with or without a
   lexicon. */
shoal_status lfmmi_create(shoal_context *context, const train_config *config,
                          const shoal_lexicon *lexicon, const speech_set *set,
                          shoal_lfmmi **loss);
shoal_status lfmmi_open(shoal_context *context, const train_config *config,
                        const shoal_lexicon *lexicon, const char *path,
                        shoal_lfmmi **loss);

/* What the pronunciations of the set's words are, in one number. */
uint64_t lfmmi_fingerprint(const speech_set *set, const shoal_lexicon *lexicon);

/* Of a scorer with LF-MMI: as speech_score. With a gradient nothing is decoded. */
shoal_status lfmmi_score(speech_scorer *scorer, const speech_batch *batch,
                         int64_t classes, const float *out, float *gradient,
                         speech_result *result, shoal_edits *each);
void lfmmi_scorer_free(speech_scorer *scorer);

#endif
