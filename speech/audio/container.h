/* Detects truncated recordings from their containers. libsndfile reads a truncated file
   as a shorter one without an error, and skips damaged pages of OGG. */
#ifndef SHOAL_SPEECH_AUDIO_CONTAINER_H
#define SHOAL_SPEECH_AUDIO_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    CONTAINER_WHOLE,      /* as far as can be determined */
    CONTAINER_CUT,        /* has `there` of `announced` bytes of audio */
    CONTAINER_BROKEN,     /* truncated or damaged at byte `at` */
    CONTAINER_UNREADABLE, /* truncated or damaged before the audio begins */
} container_verdict;

typedef struct {
    container_verdict verdict;
    int64_t at, there, announced;
    int64_t open_size; /* offset of the 4-byte size of the audio, if it is 0 and audio
                          follows to the end of the file; otherwise 0 */
    bool big_endian;   /* of it */
} container_state;

/* WAV (RIFF, RIFX, RF64), AIFF, AU and MP3 with a Xing header contain the number of
   bytes, unless they were written to a pipe; OGG has pages with checksums and marks the
   last. Other formats are assumed to be complete. */
container_state sh_container_check(int descriptor, int64_t size);

#endif
