#include "models/nn/crew.h"

#include <cblas.h>
#include <string.h>

#include "kernels/kernels.h"
#include "models/nn/rows.h"

crew sh_crew_of(const shoal_context *context) {
    openblas_set_num_threads(1);
    crew made = {.workers = sh_team_of(context), .rows = &sh_plain_rows};
#ifdef SHOAL_HAVE_AVX2
    if (strncmp(context->kernels->isa, "avx", 3) == 0)
        made.rows = &sh_avx2_rows;
#endif
    return made;
}
