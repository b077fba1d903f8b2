/* Vectors of texts, and their cosine similarity.

       embed MODEL TEXT TEXT ...

   MODEL is the Hugging Face folder of a BERT, RoBERTa or ModernBERT. Prints the cosine
   of the first text's vector with each of the others. */
#include <shoal_models.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    const shoal_text_encoder_options options = {.size =
                                                    sizeof(shoal_text_encoder_options),
                                                .normalize = 1}; /* full attention by default */
    const int64_t texts = count - 2;
    shoal_context *context;
    shoal_text_encoder *encoder = NULL;
    float *vectors = NULL; /* [texts][size] */
    if (texts < 2) {
        fprintf(stderr, "usage: embed MODEL TEXT TEXT ...\n");
        return 2;
    }
    shoal_status status = shoal_context_create(NULL, &context);
    if (status == SHOAL_OK)
        status = shoal_text_encoder_open(context, arguments[1], &options, &encoder);
    const int64_t size = encoder ? shoal_text_encoder_describe(encoder)->width : 0;
    if (status == SHOAL_OK) {
        vectors = malloc((size_t)(texts * size) * sizeof *vectors);
        status = vectors ? shoal_text_encoder_embed(encoder, texts,
                                                    (const char *const *)arguments + 2,
                                                    NULL, vectors)
                         : SHOAL_NO_MEMORY;
    }
    for (int64_t t = 1; status == SHOAL_OK && t < texts; t++) {
        double cosine = 0; /* the vectors have length 1 */
        for (int64_t i = 0; i < size; i++)
            cosine += (double)vectors[i] * (double)vectors[t * size + i];
        printf("%6.3f  %s\n", cosine, arguments[2 + t]);
    }
    if (status != SHOAL_OK)
        fprintf(stderr, "embed: %s\n", shoal_context_message(context));
    free(vectors);
    shoal_text_encoder_destroy(encoder);
    shoal_context_destroy(context);
    return status != SHOAL_OK;
}
