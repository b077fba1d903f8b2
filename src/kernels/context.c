/* Which kernel tables there are and which of them this machine can run; and the context:
   how it is made from the caller's options and the environment. */
#include "base/context.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

/* ---- Kernel tables ---------------------------------------------------------------- */

#define DECLARE_TABLE(set) extern const kernel_table sh_##set##_table;
SHOAL_ISAS(DECLARE_TABLE)

const kernel_table *sh_kernel_table_at(int index) {
#define TABLE(set) &sh_##set##_table,
    static const kernel_table *const tables[] = {SHOAL_ISAS(TABLE)};
    return index >= 0 && index < ISA_COUNT ? tables[index] : NULL;
}

int sh_kernel_table_runs(const kernel_table *kernels) {
#ifdef SHOAL_HAVE_AVX2
    if (kernels == &sh_avx2_table)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
#ifdef SHOAL_HAVE_AVX512
    if (kernels == &sh_avx512_table)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return kernels != NULL;
}

/* ---- The context ------------------------------------------------------------------ */

/* The kernels that the caller or the environment names, or the best. */
static shoal_status choose_kernels(shoal_context *context, const char *name) {
    const char *from = name ? "options.isa" : "SHOAL_ISA";
    const kernel_table *kernels;
    name = name ? name : getenv("SHOAL_ISA");
    const bool any = !name || !*name;
    for (int i = 0; (kernels = sh_kernel_table_at(i)); i++) {
        const bool runs = sh_kernel_table_runs(kernels);
        if (!any && strcmp(kernels->isa, name) == 0 && !runs)
            return sh_fail(context, SHOAL_INVALID,
                           "%s: this processor does not support \"%s\"", from, name);
        if (runs && (any || strcmp(kernels->isa, name) == 0))
            context->kernels = kernels; /* the last is the best */
    }
    if (context->kernels)
        return SHOAL_OK;
    char names[64] = "";
    for (int i = 0; sh_kernel_table_at(i); i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                 i ? ", " : "", sh_kernel_table_at(i)->isa);
    return sh_fail(
        context, SHOAL_INVALID,
        "%s: this build does not have the instruction set \"%.40s\"; it has %s", from,
        name, names);
}

enum { DEFAULT_CROSSOVER = 640 };

/* The number that the caller or the environment gives, or the default. */
static shoal_status choose_crossover(shoal_context *context, int given) {
    const char *text = getenv("SHOAL_CROSSOVER"), *from = "options.crossover";
    long value = given ? given : DEFAULT_CROSSOVER;
    if (!given && text && *text) {
        char *end;
        from = "SHOAL_CROSSOVER";
        value = strtol(text, &end, 10);
        value = *end ? 0 : value;
    }
    if (value < 1 || value > MOST_CROSSOVER)
        return sh_fail(context, SHOAL_INVALID, "%s must be a whole number from 1 to %d",
                       from, MOST_CROSSOVER);
    context->crossover = (int)value;
    return SHOAL_OK;
}

/* The pool starts nothing yet: a context that never shares work costs no thread. */
static shoal_status choose_threads(shoal_context *context) {
    const int given = context->options.threads;
    const long threads = given ? given : sh_default_threads();
    if (given < 0 || given > POOL_MOST_THREADS)
        return sh_fail(context, SHOAL_INVALID,
                       "options.threads is %d: it must be 0 to %d", given,
                       POOL_MOST_THREADS);
    if (threads < 1 || threads > POOL_MOST_THREADS)
        return sh_fail(context, SHOAL_INVALID,
                       "OMP_NUM_THREADS is \"%.40s\": it must be 1 to %d",
                       getenv("OMP_NUM_THREADS"), POOL_MOST_THREADS);
    context->threads = (int)threads;
    context->pool = threads > 1 ? sh_pool_create(context, context->threads) : NULL;
    return threads > 1 && !context->pool ? SHOAL_NO_MEMORY : SHOAL_OK;
}

shoal_status shoal_context_create(const shoal_options *options, shoal_context **context) {
    if (!context)
        return SHOAL_INVALID;
    *context = NULL;
    shoal_options chosen = shoal_options_defaults();
    const bool readable = READ_STRUCT(NULL, shoal_options, options, &chosen) == SHOAL_OK;
    const bool half_an_allocator = !chosen.allocate != !chosen.release;
    if (!chosen.allocate || !chosen.release) {
        chosen.allocate = sh_plain_allocate;
        chosen.release = sh_plain_release;
    }
    shoal_context *made = chosen.allocate(chosen.user, sizeof *made);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = (shoal_context){.options = chosen};
    pthread_mutex_init(&made->memory, NULL);
    *context = made;
    if (!readable)
        return READ_STRUCT(made, shoal_options, options, &chosen);
    if (half_an_allocator)
        return sh_fail(
            made, SHOAL_INVALID,
            "options.allocate and options.release must both be given or both be NULL");
    shoal_status status = choose_threads(made);
    if (status == SHOAL_NO_MEMORY) {
        shoal_context_destroy(made);
        *context = NULL;
    }
    if (status == SHOAL_OK)
        status = choose_crossover(made, chosen.crossover);
    return status == SHOAL_OK ? choose_kernels(made, chosen.isa) : status;
}

void shoal_context_destroy(shoal_context *context) {
    if (!context)
        return;
    sh_pool_destroy(context, context->pool);
    pthread_mutex_destroy(&context->memory);
    context->options.release(context->options.user, context);
}

static void *allocate_from_parent(void *parent, size_t bytes) {
    return sh_allocate(parent, bytes);
}

static void release_to_parent(void *parent, void *block) {
    (void)parent;
    sh_free(block);
}

shoal_options sh_child_options(shoal_context *parent) {
    return (shoal_options){.size = sizeof(shoal_options),
                           .threads = 1,
                           .isa = shoal_context_isa(parent),
                           .allocate = allocate_from_parent,
                           .release = release_to_parent,
                           .user = parent};
}

const char *shoal_context_isa(const shoal_context *context) {
    return context && context->kernels ? context->kernels->isa : "none";
}

shoal_status shoal_context_borrow_threads(shoal_context *context,
                                          void (*parallel)(void (*body)(void *data),
                                                           void *data, unsigned threads,
                                                           unsigned flags),
                                          int (*thread_number)(void)) {
    if (!context || !context->kernels)
        return SHOAL_INVALID;
    if (!parallel != !thread_number)
        return sh_fail(context, SHOAL_INVALID,
                       "shoal_context_borrow_threads: parallel and thread_number must "
                       "both be functions, or both NULL");
    sh_pool_borrow(context->pool, (borrowed_threads){parallel, thread_number});
    return SHOAL_OK;
}

int shoal_context_threads(const shoal_context *context) {
    return context ? context->threads : 0;
}

int shoal_context_crossover(const shoal_context *context) {
    return context ? context->crossover : 0;
}

const char *shoal_context_message(const shoal_context *context) {
    return context ? context->message : "";
}
