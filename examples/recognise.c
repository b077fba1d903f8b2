/* A trained recogniser (train_speech.c, `shoal train speech`) prints the units of
   recordings with the start of each in seconds.

       recognise RUN RECORDING ...

   RUN is the folder of the training. With options.lexicon and options.lm the result has
   words instead (recognition.spoken). */
#include <shoal_speech.h>
#include <stdio.h>

int main(int count, char **arguments) {
    shoal_recogniser_options options = shoal_recogniser_options_defaults();
    shoal_recogniser *recogniser = NULL;
    shoal_recognition found;
    shoal_context *context;
    if (count < 3) {
        fprintf(stderr, "usage: recognise RUN RECORDING ...\n");
        return 2;
    }
    options.attention = NULL; /* the kind used in training; or "full", "shoal" */
    shoal_status status = shoal_context_create(NULL, &context);
    if (status == SHOAL_OK)
        status = shoal_recogniser_open(context, arguments[1], &options, &recogniser);
    for (int i = 2; i < count && status == SHOAL_OK; i++) {
        status = shoal_recogniser_recognise_file(recogniser, arguments[i], &found);
        const double step = shoal_recogniser_describe(recogniser)->step_seconds;
        for (int64_t u = 0; status == SHOAL_OK && u < found.count; u++)
            printf("%7.2f %s\n", (double)found.units[u].begin * step,
                   found.units[u].text);
    }
    if (status != SHOAL_OK)
        fprintf(stderr, "recognise: %s\n", shoal_context_message(context));
    shoal_recogniser_destroy(recogniser);
    shoal_context_destroy(context);
    return status != SHOAL_OK;
}
