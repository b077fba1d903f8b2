/* Whether a recording is whole, as its container tells. libsndfile reads a file that was
   cut as a shorter one, without an error, and skips damaged pages of OGG. */
#ifndef SHOAL_SPEECH_AUDIO_CONTAINER_H
#define SHOAL_SPEECH_AUDIO_CONTAINER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    CONTAINER_WHOLE,      /* as far as it can be told */
    CONTAINER_CUT,        /* `there` of `announced` bytes of sound are there */
    CONTAINER_BROKEN,     /* cut short or damaged at byte `at` */
    CONTAINER_UNREADABLE, /* the same, before any sound begins */
} container_verdict;

typedef struct {
    container_verdict verdict;
    int64_t at, there, announced;
    int64_t open_size; /* where the sound's size stands, 4 bytes, if it says 0 and sound
                          follows to the end of the file; 0: nowhere */
    bool big_endian;   /* of it */
} container_state;

/* WAV (RIFF, RIFX, RF64), AIFF, AU and MP3 with a Xing header say how many bytes there
   should be, unless they were written to a pipe by a program that could not know; OGG
   has pages with checksums, and marks the last. Anything else is taken to be whole. */
container_state sh_container_check(int descriptor, int64_t size);

#endif
