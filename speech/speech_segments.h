/* Where a window's tokens are cut into segments, and where the next window begins. Pure
   functions, as the published transcription has them. */
#ifndef SHOAL_SPEECH_SPEECH_SEGMENTS_H
#define SHOAL_SPEECH_SPEECH_SEGMENTS_H

#include <stdint.h>

enum {
    TIME_STEPS_PER_SECOND = 50, /* of timestamp tokens */
    FRAMES_PER_STEP = 2,
    FRAMES_PER_SECOND = 100
};

typedef struct {
    int first, end;      /* tokens first .. end - 1 */
    double begins, ends; /* seconds from the window's beginning */
} segment_cut;

/* tokens: [count]; frames: how many of the window are recording. cuts: room for count +
   1. Returns how many there are; *advance: frames to the next window, at least 1. */
int sh_segments_cut(const int32_t *sampled, int count, int32_t first_timestamp,
                    int64_t frames, segment_cut *cuts, int64_t *advance);

/* Bytes of the text over the bytes that zlib makes of it; 0 for no text. `room` is memory
   of sh_compression_room(size). */
double sh_compression_ratio(const char *text, unsigned long size, unsigned char *room);
unsigned long sh_compression_room(unsigned long size);

#endif
