/* Attention over a long sequence: in linear time if the error on sampled queries is
   below the tolerance, otherwise exact. */
#include <shoal.h>
#include <stdio.h>

int main(void) {
    enum { N = 4096, D = 64, THEMES = 32 };
    static float q[N * D], k[N * D], v[N * D], out[N * D]; /* [position][feature] */
    for (int i = 0; i < N * D; i++) { /* your data; here position p has topic p % 32 */
        const int here = i / D % THEMES == i % D;
        q[i] = k[i] = (here ? 6 : 0) + (float)(i * 7 % 11) / 20;
        v[i] = (float)here;
    }
    shoal_context *context;
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = 1,
                                   .queries = N,
                                   .keys = N,
                                   .dim = D,
                                   .value_dim = D};
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs), .q = q, .k = k, .v = v};
    shoal_status status = shoal_context_create(NULL, &context);
    if (status == SHOAL_OK)
        status = shoal_attend(context, "auto:tolerance=0.1", &problem, &inputs, out);
    if (status == SHOAL_OK) /* out: weight of each topic */
        printf("position 5 attends to topic 5 by %.0f %%\n",
               100 * (double)out[5 * D + 5]);
    else
        fprintf(stderr, "%s\n", shoal_context_message(context));
    shoal_context_destroy(context);
    return status != SHOAL_OK;
}
