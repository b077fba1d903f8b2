/* A user's program, which only uses installed files. All values are 3, so that every
   average is 3. The complete interface is used too: see whole_header in run.sh. */
#include <shoal.h>
#include <stdio.h>
#include <string.h>

enum { N = 200, D = 16 };

int whole_header(void); /* number of functions in a header */

static int attend(shoal_context *context, const char *kind) {
    static float q[N * D], k[N * D], v[N * D], out[N * D];
    for (int i = 0; i < N * D; i++) {
        q[i] = (float)(i * 37 % 101) / 50 - 1;
        k[i] = (float)(i * 53 % 103) / 50 - 1;
        v[i] = 3;
    }
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = 1,
                             .heads = 1,
                             .queries = N,
                             .keys = N,
                             .dim = D,
                             .value_dim = D};
    shoal_inputs inputs = {.size = sizeof(shoal_inputs), .q = q, .k = k, .v = v};
    if (shoal_attend(context, kind, &problem, &inputs, out) != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", kind, shoal_context_message(context));
        return 0;
    }
    for (int i = 0; i < N * D; i++)
        if (!(out[i] > 2.999f && out[i] < 3.001f)) {
            fprintf(stderr, "%s: out[%d] is %g\n", kind, i, (double)out[i]);
            return 0;
        }
    return 1;
}

int main(void) {
    if (strcmp(shoal_version(), SHOAL_VERSION) != 0) {
        fprintf(stderr, "library %s, header %s\n", shoal_version(), SHOAL_VERSION);
        return 1;
    }
    shoal_context *context;
    if (shoal_context_create(NULL, &context) != SHOAL_OK)
        return 1;
    int good = whole_header() > 0 && attend(context, "full") &&
               attend(context, "i-clustered-10:topk=8");
    shoal_context_destroy(context);
    return good ? 0 : 1;
}
