/* The spelling of an attention: reading, writing and errors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static shoal_context *context;

static int create_context(void **state) {
    context = test_context(NULL, 1);
    return 0;
}

static int destroy_context(void **state) {
    shoal_context_destroy(context);
    return 0;
}

static shoal_attention parse(const char *text) {
    shoal_attention attention;
    memset(&attention, 0x5a, sizeof attention);
    if (shoal_attention_parse(context, text, &attention) != SHOAL_OK)
        fail_msg("\"%s\" was refused: %s", text, shoal_context_message(context));
    return attention;
}

static bool same(const shoal_attention *a, const shoal_attention *b) {
    return a->kind == b->kind && a->clusters == b->clusters && a->topk == b->topk &&
           a->bits == b->bits && a->iterations == b->iterations &&
           a->rounds == b->rounds && a->window == b->window && a->rank == b->rank &&
           a->clustering == b->clustering && a->normaliser == b->normaliser &&
           a->keyclusters == b->keyclusters && a->block == b->block &&
           a->pool == b->pool && a->near == b->near && a->tolerance == b->tolerance &&
           a->seed == b->seed;
}

/* ---- Reading ------------------------------------------------------------------- */

static void check_parse(const char *text, shoal_attention expected) {
    shoal_attention got = parse(text);
    if (!same(&got, &expected))
        fail_msg(
            "\"%s\": kind %d, clusters %d, topk %d, bits %d, iterations %d, rounds %d, "
            "window %d, rank %d, groups %d, normaliser %d, tolerance %g, seed %" PRIu64,
            text, (int)got.kind, got.clusters, got.topk, got.bits, got.iterations,
            got.rounds, got.window, got.rank, got.clustering, got.normaliser,
            (double)got.tolerance, got.seed);
}

static void known_spellings(void **state) {
    uint64_t seed = parse("clustered-100").seed; /* the default, whatever it is */
    check_parse("full", (shoal_attention){.kind = SHOAL_KIND_FULL});
    check_parse("shared-full", (shoal_attention){.kind = SHOAL_KIND_SHARED_FULL});
    check_parse("clustered-100", (shoal_attention){.kind = SHOAL_KIND_CLUSTERED,
                                                   .clusters = 100,
                                                   .bits = 63,
                                                   .rank = 16,
                                                   .iterations = 10,
                                                   .seed = seed});
    check_parse("i-clustered-7:topk=3,bits=31,iterations=2,seed=18446744073709551615",
                (shoal_attention){.kind = SHOAL_KIND_I_CLUSTERED,
                                  .clusters = 7,
                                  .topk = 3,
                                  .bits = 31,
                                  .rank = 16,
                                  .iterations = 2,
                                  .seed = UINT64_MAX});
    check_parse("i-clustered-65535", (shoal_attention){.kind = SHOAL_KIND_I_CLUSTERED,
                                                       .clusters = 65535,
                                                       .topk = 32,
                                                       .bits = 63,
                                                       .rank = 16,
                                                       .iterations = 10,
                                                       .seed = seed});
    check_parse("i-clustered-100:seed=1,topk=65535,bits=255",
                (shoal_attention){.kind = SHOAL_KIND_I_CLUSTERED,
                                  .clusters = 100,
                                  .topk = 65535,
                                  .bits = 255,
                                  .rank = 16,
                                  .iterations = 10,
                                  .seed = 1});
    check_parse("clustered-9:rank=1024,groups=keys",
                (shoal_attention){.kind = SHOAL_KIND_CLUSTERED,
                                  .clusters = 9,
                                  .bits = 63,
                                  .rank = 1024,
                                  .clustering = SHOAL_CLUSTERING_KEYS,
                                  .iterations = 10,
                                  .seed = seed});
    check_parse("i-clustered-9:normaliser=query,groups=hash",
                (shoal_attention){.kind = SHOAL_KIND_I_CLUSTERED,
                                  .clusters = 9,
                                  .topk = 32,
                                  .bits = 63,
                                  .rank = 16,
                                  .normaliser = SHOAL_NORMALISER_QUERY,
                                  .iterations = 10,
                                  .seed = seed});
    check_parse("q-clustered-100", (shoal_attention){.kind = SHOAL_KIND_Q_CLUSTERED,
                                                     .clusters = 100,
                                                     .topk = 64,
                                                     .rank = 16,
                                                     .clustering = SHOAL_CLUSTERING_KEYS,
                                                     .normaliser = SHOAL_NORMALISER_QUERY,
                                                     .iterations = 6,
                                                     .seed = seed});
    check_parse("q-clustered-25:seed=3,iterations=7,rank=1,topk=32",
                (shoal_attention){.kind = SHOAL_KIND_Q_CLUSTERED,
                                  .clusters = 25,
                                  .topk = 32,
                                  .rank = 1,
                                  .clustering = SHOAL_CLUSTERING_KEYS,
                                  .normaliser = SHOAL_NORMALISER_QUERY,
                                  .iterations = 7,
                                  .seed = 3});
    shoal_attention shoal = shoal_kind_describe(SHOAL_KIND_SHOAL)->defaults;
    assert_int_equal(shoal.keyclusters, SHOAL_BY_SIZE);
    check_parse("shoal", shoal);
    shoal.clusters = 100;
    check_parse("shoal-100", shoal);
    check_parse("shoal-100:keyclusters=auto", shoal);
    shoal.clusters = 24;
    shoal.block = 32;
    shoal.topk = 9;
    check_parse("shoal-24:block=32,topk=9", shoal);
    check_parse("lsh-4:seed=77",
                (shoal_attention){.kind = SHOAL_KIND_LSH, .rounds = 4, .seed = 77});
    check_parse("lsh-255",
                (shoal_attention){.kind = SHOAL_KIND_LSH, .rounds = 255, .seed = seed});
    check_parse("oracle-top-32",
                (shoal_attention){.kind = SHOAL_KIND_ORACLE_TOP, .topk = 32});
}

/* Every kind describes itself: its defaults are those of its name, and written with all
   options they are read back unchanged. */
static void descriptions(void **state) {
    int kinds = 0;
    for (const shoal_kind_info *info; (info = shoal_kind_describe(kinds)); kinds++) {
        assert_true(info->name[0] && info->cost[0] && info->summary[0]);
        char text[256], all[256];
        shoal_attention_print(&info->defaults, text, sizeof text);
        size_t length = shoal_attention_print_all(&info->defaults, all, sizeof all);
        assert_int_equal(length, strlen(all));
        assert_int_equal(strncmp(text, all, strlen(text)), 0);
        assert_null(strchr(text, ':'));
        assert_int_equal(info->defaults.kind, kinds);
        assert_int_equal(info->number != NULL, info->name[0] && strcmp(text, info->name));
        check_parse(text, info->defaults);
        check_parse(all, info->defaults);
    }
    assert_true(kinds > SHOAL_KIND_AUTO);
    assert_null(shoal_kind_describe(-1));
}

/* ---- Writing ------------------------------------------------------------------- */

static shoal_attention random_attention(uint64_t seed) {
    int kinds = 0;
    while (shoal_kind_describe(kinds))
        kinds++;
    const shoal_kind_info *info =
        shoal_kind_describe((int)test_pick(seed, 1, 0, kinds - 1));
    shoal_attention attention = info->defaults;
    if (attention.clusters)
        attention.clusters = (int32_t)test_pick(seed, 2, 1, 65535);
    if (attention.topk && seed % 2)
        attention.topk = (int32_t)test_pick(seed, 3, 1, 65535);
    if (attention.bits && seed % 3)
        attention.bits = (int32_t)test_pick(seed, 4, 1, 255);
    if (attention.iterations && seed % 5)
        attention.iterations = (int32_t)test_pick(seed, 5, 1, 100);
    if (attention.rank && seed % 11)
        attention.rank = (int32_t)test_pick(seed, 9, 1, 1024);
    if (attention.kind == SHOAL_KIND_CLUSTERED ||
        attention.kind == SHOAL_KIND_I_CLUSTERED)
        attention.clustering = (int32_t)test_pick(seed, 10, 0, 1);
    if (attention.kind == SHOAL_KIND_I_CLUSTERED)
        attention.normaliser = (int32_t)test_pick(seed, 11, 0, 1);
    if (attention.kind == SHOAL_KIND_SHOAL && seed % 4 == 1) {
        attention.keyclusters = (int32_t)test_pick(seed, 14, 1, 65535);
        attention.block = (int32_t)test_pick(seed, 15, 1, 65535);
        attention.near = (int32_t)test_pick(seed, 16, 0, 65535);
    }
    if (attention.kind == SHOAL_KIND_SHOAL && seed % 6 == 1)
        attention.clusters = SHOAL_BY_SIZE;
    if (attention.rounds)
        attention.rounds = (int32_t)test_pick(seed, 6, 1, 255);
    if (attention.window)
        attention.window = (int32_t)test_pick(seed, 12, 1, 65535);
    if (info->has_tolerance && seed % 3)
        attention.tolerance = (float)test_pick(seed, 13, 1, 100000) / 10000;
    if (info->has_seed && seed % 7)
        attention.seed = test_hash(seed, 7, 0) >> test_pick(seed, 8, 0, 63);
    return attention;
}

/* Each option that is written is needed: without it the text has another meaning. */
static void check_shortest(const char *text, const shoal_attention *attention) {
    const char *start = strchr(text, ':');
    while (start) {
        const char *end = strchr(start + 1, ',');
        char shorter[256];
        bool first = *start == ':';
        snprintf(shorter, sizeof shorter, "%.*s%s%s", (int)(start - text), text,
                 end ? (first ? ":" : ",") : "", end ? end + 1 : "");
        shoal_attention other = parse(shorter);
        if (same(&other, attention))
            fail_msg("\"%s\" means the same as \"%s\"", shorter, text);
        start = end;
    }
}

static void round_trips(void **state) {
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        shoal_attention attention = random_attention(seed);
        char text[256];
        size_t length = shoal_attention_print(&attention, text, sizeof text);
        assert_int_equal(length, strlen(text));
        shoal_attention again = parse(text);
        if (!same(&attention, &again))
            fail_msg("\"%s\" does not come back as it was", text);
        check_shortest(text, &attention);
    }
}

/* Fields that a kind does not use may have any value, and are not written. */
static void unused_fields(void **state) {
    static const struct {
        shoal_attention attention;
        const char *text;
    } cases[] = {{{.kind = SHOAL_KIND_I_CLUSTERED,
                   .clusters = 3,
                   .topk = 4,
                   .bits = 63,
                   .rank = 0,
                   .iterations = 10},
                  "i-clustered-3:topk=4"},
                 {{.kind = SHOAL_KIND_CLUSTERED,
                   .clusters = 3,
                   .bits = -7,
                   .rank = 16,
                   .clustering = SHOAL_CLUSTERING_KEYS,
                   .iterations = 10},
                  "clustered-3:groups=keys"}};
    for (int64_t i = 0; i < COUNT_OF(cases); i++) {
        char text[256];
        shoal_attention attention = cases[i].attention;
        attention.seed = parse("clustered-3").seed;
        shoal_attention_print(&attention, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        parse(text);
    }
}

/* Like snprintf: truncated, terminated, and the full length returned. */
static void little_room(void **state) {
    shoal_attention attention =
        parse("i-clustered-12345:topk=7,groups=keys,normaliser=query,bits=9,rank=5,"
              "iterations=3,seed=99");
    char whole[256];
    size_t length = shoal_attention_print(&attention, whole, sizeof whole);
    for (size_t room = 1; room <= length + 1; room++) {
        char text[256];
        memset(text, '#', sizeof text);
        assert_int_equal(shoal_attention_print(&attention, text, room), length);
        assert_int_equal(strlen(text), room - 1);
        assert_memory_equal(text, whole, room - 1);
        assert_int_equal(text[room], '#');
    }
    assert_int_equal(shoal_attention_print(&attention, NULL, 0), length);
}

/* ---- Errors ----------------------------------------------------------------------- */

static const struct {
    const char *text, *part; /* the message must contain the part */
} MALFORMED[] = {
    {"", ""},
    {" ", ""},
    {"ful", "ful"},
    {"fully", "fully"},
    {"Full", "Full"},
    {"full ", "full "},
    {" full", " full"},
    {"full-3", "full-3"},
    {"full:", ""},
    {"full:topk=3", "topk"},
    {"shared-full:seed=3", "seed"},
    {"shared", "shared"},
    {"clustered-", ""},
    {"clustered-0", "0"},
    {"clustered--5", "-5"},
    {"clustered-+5", "+5"},
    {"clustered- 5", " 5"},
    {"clustered-5x", "5x"},
    {"clustered-1e3", "1e3"},
    {"clustered-0x10", "0x10"},
    {"clustered-1.5", "1.5"},
    {"clustered-65536", "65536"},
    {"clustered-4294967297", "4294967297"},
    {"clustered-99999999999999999999999", "99999999999999999999999"},
    {"clustered-100:topk=32", "topk"},
    {"i-clustered-100:", ""},
    {"i-clustered-100:topk", "topk"},
    {"i-clustered-100:topk=", "topk"},
    {"i-clustered-100:topk=0", "topk"},
    {"i-clustered-100:topk=-1", "topk"},
    {"i-clustered-100:topk=x", "topk"},
    {"i-clustered-100:topk= 3", "topk"},
    {"i-clustered-100:topk=3 ", "topk"},
    {"i-clustered-100:topk=65536", "topk"},
    {"i-clustered-100:topk=3,", ""},
    {"i-clustered-100:,topk=3", ""},
    {"i-clustered-100:topk=3,,bits=3", ""},
    {"i-clustered-100:topk=3:bits=3", "topk"},
    {"i-clustered-100:topk=3;bits=3", "topk"},
    {"i-clustered-100:topk==3", "topk"},
    {"i-clustered-100:topks=3", "topks"},
    {"i-clustered-100:top=3", "top"},
    {"i-clustered-100:=3", ""},
    {"i-clustered-100:bits=0", "bits"},
    {"i-clustered-100:bits=256", "bits"},
    {"i-clustered-100:iterations=-1", "iterations"},
    {"i-clustered-100:iterations=ten", "iterations"},
    {"i-clustered-100:iterations=4294967296", "iterations"},
    {"i-clustered-100:seed=-1", "seed"},
    {"i-clustered-100:seed=18446744073709551616", "seed"},
    {"i-clustered-100:seed=", "seed"},
    {"i-clustered-100:topk=3,topk=4", "topk"},
    {"i-clustered-100:groups=key", "groups"},
    {"i-clustered-100:groups=keyss", "groups"},
    {"i-clustered-100:groups=Keys", "groups"},
    {"i-clustered-100:groups=1", "groups"},
    {"i-clustered-100:groups=", "groups"},
    {"i-clustered-100:groups", "groups"},
    {"i-clustered-100:groups=keys,groups=keys", "groups"},
    {"i-clustered-100:normaliser=hash", "normaliser"},
    {"i-clustered-100:normaliser=", "normaliser"},
    {"i-clustered-100:normalizer=query", "normalizer"},
    {"i-clustered-100:rank=0", "rank"},
    {"i-clustered-100:rank=1025", "rank"},
    {"i-clustered-100:rank=-1", "rank"},
    {"clustered-100:normaliser=query", "normaliser"},
    {"shoa", "shoa"},
    {"shoal-", ""},
    {"shoal-auto", "auto"},
    {"clustered", "clustered"},
    {"shoal-4:keyclusters=65536", "keyclusters"},
    {"shoal-4:keyclusters=", "keyclusters"},
    {"shoal-4:keyclusters=0", "is now called q-clustered-4;"},
    {"shoal:keyclusters=0", "is now called q-clustered-100;"},
    {"shoal-25:seed=3,keyclusters=0,rank=1", "now called q-clustered-25:seed=3,rank=1;"},
    {"shoal-9:topk=auto,keyclusters=00,block=8,near=0", "now called q-clustered-9;"},
    {"q-clustered", "q-clustered"},
    {"q-clustered-4:keyclusters=3", "keyclusters"},
    {"q-clustered-4:topk=auto", "topk"},
    {"q-clustered-4:groups=keys", "groups"},
    {"q-clustered-4:bits=31", "bits"},
    {"shoal-4:block=0", "block"},
    {"shoal-4:pool=0", "pool"},
    {"shoal-4:near=-1", "near"},
    {"shoal-4:iterations=auto", "iterations"},
    {"i-clustered-4:topk=auto", "topk"},
    {"i-clustered-4:near=3", "near"},
    {"shoal-0", "0"},
    {"shoal-65536", "65536"},
    {"shoal-100:bits=63", "bits"},
    {"shoal-100:groups=keys", "groups"},
    {"shoal-100:normaliser=query", "normaliser"},
    {"shoal-100:topk=0", "topk"},
    {"shoal-100:rank=0", "rank"},
    {"lsh-4:rank=3", "rank"},
    {"full:groups=keys", "groups"},
    {"lsh-", ""},
    {"lsh-0", "0"},
    {"lsh-256", "256"},
    {"lsh-4:bits=3", "bits"},
    {"lsh-4:rounds=3", "rounds"},
    {"oracle-top-", ""},
    {"oracle-top-0", "0"},
    {"oracle-top-65536", "65536"},
    {"oracle-32", "oracle-32"},
    {"oracle-top-32:topk=3", "topk"},
};

static void malformed_spellings(void **state) {
    for (int64_t i = 0; i < COUNT_OF(MALFORMED); i++) {
        shoal_attention attention = {.kind = SHOAL_KIND_LSH, .rounds = 3},
                        before = attention;
        const char *text = MALFORMED[i].text;
        if (shoal_attention_parse(context, text, &attention) != SHOAL_INVALID)
            fail_msg("\"%s\" was accepted", text);
        const char *message = shoal_context_message(context);
        if (!*message || !strstr(message, MALFORMED[i].part))
            fail_msg("\"%s\": the message \"%s\" does not name \"%s\"", text, message,
                     MALFORMED[i].part);
        assert_true(same(&attention, &before));
    }
}

/* Spellings in files of earlier versions, and their meaning in files that spell every
   option, and in others; NULL if rejected. */
static void stored_spellings(void **state) {
    static const char *const meant[][3] =
        {{"shoal-100", "q-clustered-100", "shoal-100"},
         {"shoal-25:topk=9,seed=4", "q-clustered-25:topk=9,seed=4",
          "shoal-25:topk=9,seed=4"},
         {"shoal-100:keyclusters=0", "q-clustered-100", "q-clustered-100"},
         {"shoal-4:topk=7,rank=2,keyclusters=0,near=0,iterations=3,seed=5",
          "q-clustered-4:topk=7,rank=2,iterations=3,seed=5",
          "q-clustered-4:topk=7,rank=2,iterations=3,seed=5"},
         {"shoal:rank=auto,keyclusters=0,block=8,pool=300,near=0", "q-clustered-100",
          "q-clustered-100"},
         {"shoal", "shoal:form=2", "shoal"},
         {"shoal:topk=9", "shoal:topk=9,form=2", "shoal:topk=9"},
         {"shoal-25:keyclusters=auto", "shoal-25:form=2", "shoal-25"},
         {"shoal-25:keyclusters=8", "shoal-25:keyclusters=8,form=2",
          "shoal-25:keyclusters=8"},
         {"shoal-25:keyclusters=8,form=3", "shoal-25:keyclusters=8",
          "shoal-25:keyclusters=8"},
         {"shoal-25:keyclusters=auto,form=2,seed=3", "shoal-25:form=2,seed=3",
          "shoal-25:form=2,seed=3"},
         {"q-clustered-4", "q-clustered-4", "q-clustered-4"},
         {"i-clustered-7:topk=5", "i-clustered-7:topk=5", "i-clustered-7:topk=5"},
         {"shoal-:keyclusters=0", NULL, NULL},
         {"shoal-4:keyclusters=0,bits=3", NULL, NULL},
         {"shoalx-4:keyclusters=0", NULL, NULL}};
    for (int64_t i = 0; i < COUNT_OF(meant); i++)
        for (int incomplete = 0; incomplete < 2; incomplete++) {
            const char *wanted = meant[i][1 + incomplete];
            shoal_attention found;
            const shoal_status status =
                shoal_attention_parse_stored(context, meant[i][0], !incomplete, &found);
            if ((status == SHOAL_OK) != (wanted != NULL))
                fail_msg("\"%s\": status %d", meant[i][0], (int)status);
            if (!wanted)
                continue;
            const shoal_attention parsed = parse(wanted);
            if (!same(&found, &parsed))
                fail_msg("\"%s\" is not \"%s\"", meant[i][0], wanted);
        }
    char text[600];
    memset(text, '1', sizeof text);
    memcpy(text, "shoal-4:keyclusters=0,seed=", 27);
    text[sizeof text - 1] = '\0';
    shoal_attention found;
    assert_int_equal(shoal_attention_parse_stored(context, text, 1, &found),
                     SHOAL_INVALID);
    assert_int_equal(shoal_attention_parse_stored(context, NULL, 1, &found),
                     SHOAL_INVALID);
}

/* Random text is rejected, or read as something that can be written again. */
static void random_text(void **state) {
    static const char letters[] =
        "i-clustered-100:topk=32,bits=63,seed=1lsh-4oracle-full shoal-groups=keys,rank"
        "\n%s";
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        char text[200], again[256];
        size_t length = (size_t)test_pick(seed, 1, 0, 198);
        for (size_t i = 0; i < length; i++)
            text[i] = letters[test_hash(seed, 2, i) % (sizeof letters - 1)];
        text[length] = '\0';
        shoal_attention attention;
        if (shoal_attention_parse(context, text, &attention) == SHOAL_OK) {
            shoal_attention_print(&attention, again, sizeof again);
            shoal_attention other = parse(again);
            assert_true(same(&attention, &other));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_spellings), cmocka_unit_test(descriptions),
        cmocka_unit_test(round_trips),     cmocka_unit_test(little_room),
        cmocka_unit_test(unused_fields),   cmocka_unit_test(malformed_spellings),
        cmocka_unit_test(random_text),     cmocka_unit_test(stored_spellings),
    };
    return cmocka_run_group_tests_name("spelling", tests, create_context,
                                       destroy_context);
}
