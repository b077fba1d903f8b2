/* Transcribes a recording, segment by segment.

       transcribe MODEL RECORDING [ATTENTION]

   MODEL is a ggml file of a Whisper model, RECORDING a WAV, FLAC, OGG or MP3 file,
   ATTENTION the kind in the encoder, such as shoal (default: full). */
#include <shoal_speech.h>
#include <stdio.h>

static int print_segment(void *user, const shoal_segment *segment) {
    (void)user;
    printf("%7.2f %7.2f %s\n", segment->begin, segment->end, segment->text);
    return 0; /* continue */
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: transcribe MODEL RECORDING [ATTENTION]\n");
        return 2;
    }
    shoal_context *context;
    shoal_speech *speech = NULL;
    const char *path = arguments[2];
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .paths = &path,
                                       .files = 1};
    const shoal_speech_options options = {.size = sizeof(shoal_speech_options),
                                          .attention = count > 3 ? arguments[3] : NULL};
    shoal_status status = shoal_context_create(NULL, &context);
    if (status == SHOAL_OK)
        status = shoal_speech_open(context, arguments[1], &options, &speech);
    if (status == SHOAL_OK)
        status =
            shoal_speech_transcribe(speech, &recording, NULL, print_segment, NULL, NULL);
    if (status != SHOAL_OK)
        fprintf(stderr, "transcribe: %s\n", shoal_context_message(context));
    shoal_speech_destroy(speech);
    shoal_context_destroy(context);
    return status != SHOAL_OK;
}
