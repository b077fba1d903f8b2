/* Models and checkpoints in files: everything is restored bit for bit; files that do
   not match, are truncated or are no checkpoints are rejected with a message that names
   the problem, and leave model and optimizer unchanged. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "models/files/checksum.h"
#include "models/files/safetensors.h"
#include "shoal_models.h"
#include "support.h"

enum { SYMBOLS = 6, LENGTH = 5, BATCH = 2, ROWS = BATCH * LENGTH };

static const int64_t offsets[] = {0, LENGTH, ROWS};

static shoal_model_config small_config(void) {
    return (shoal_model_config){.size = sizeof(shoal_model_config),
                                .vocabulary = SYMBOLS,
                                .outputs = SYMBOLS,
                                .max_length = LENGTH,
                                .layers = 1,
                                .heads = 2,
                                .head_dim = 4,
                                .feed_forward = 8,
                                .attention = spelled("i-clustered-3:topk=2,seed=9"),
                                .norm = SHOAL_NORM_POST,
                                .activation = SHOAL_ACTIVATION_RELU,
                                .positions = SHOAL_POSITIONS_LEARNED,
                                .dropout = 0.1f};
}

/* Everything that a checkpoint holds. */
typedef struct {
    shoal_context *context;
    shoal_model *model;
    shoal_optimizer *optimizer;
    shoal_schedule schedule;
} training;

static training training_create(shoal_context *context,
                                const shoal_model_config *config) {
    training made = {.context = context, .schedule = shoal_schedule_start(0.01)};
    shoal_optimizer_config averaging = shoal_optimizer_config_defaults();
    averaging.average = 0.9f;
    assert_int_equal(shoal_model_create(context, config, 3, BATCH, ROWS,
                                        SHOAL_WITH_BACKWARD, &made.model),
                     SHOAL_OK);
    assert_int_equal(shoal_optimizer_create(made.model, &averaging, &made.optimizer),
                     SHOAL_OK);
    made.schedule.factor = 0.5;
    made.schedule.warmup = 3;
    return made;
}

static void training_destroy(training *made) {
    shoal_optimizer_destroy(made->optimizer);
    shoal_model_destroy(made->model);
}

/* One step on a batch that depends on its number; returns the loss. */
static double take_step(training *on) {
    const int64_t step = shoal_optimizer_steps(on->optimizer);
    int32_t tokens[ROWS], targets[ROWS];
    shoal_loss loss;
    float *out;
    for (int i = 0; i < ROWS; i++) {
        tokens[i] =
            (int32_t)shoal_random_below(5, 1, (uint64_t)(step * ROWS + i), SYMBOLS);
        targets[i] = (tokens[i] + 1) % SYMBOLS;
    }
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = BATCH,
                                       .offsets = offsets,
                                       .tokens = tokens,
                                       .training = 1,
                                       .step = step};
    assert_int_equal(shoal_model_forward(on->model, &inputs, &out), SHOAL_OK);
    assert_int_equal(shoal_cross_entropy(on->context, ROWS, SYMBOLS, out, targets, out,
                                         &loss),
                     SHOAL_OK);
    assert_int_equal(shoal_model_backward(on->model, &inputs, out, NULL), SHOAL_OK);
    assert_int_equal(shoal_gradients_clip(on->model, 1, NULL), SHOAL_OK);
    assert_int_equal(shoal_optimizer_step(on->optimizer,
                                          shoal_schedule_rate(&on->schedule, step + 1)),
                     SHOAL_OK);
    shoal_schedule_observe(&on->schedule, loss.mean);
    return loss.mean;
}

/* Weights, averages and counts as a sum that changes with any of them. */
static double digest(const training *on) {
    float *values;
    const int64_t size = shoal_model_vectors(on->model, &values, NULL);
    double sum = (double)shoal_optimizer_steps(on->optimizer) + on->schedule.scale +
                 (isfinite(on->schedule.best) ? on->schedule.best : 0) +
                 (double)on->schedule.waiting;
    for (int average = 1; average >= 0; average--) {
        shoal_optimizer_use_average(on->optimizer, average);
        for (int64_t i = 0; i < size; i++)
            sum += (double)(i % 97 + 1) * (double)values[i] * (1 + 6 * average);
    }
    return sum;
}

typedef struct {
    shoal_context *context;
    training trained;
    char path[256], other[272];
} workplace;

static const shoal_note notes[] = {{"epoch", "7"}, {"corpus", "caf\xc3\xa9 \"x\""}};

static shoal_status save_to(const training *from, const char *path) {
    return shoal_checkpoint_save(path, from->model, from->optimizer, &from->schedule,
                                 notes, COUNT_OF(notes));
}

static shoal_status load_from(const char *path, training *to) {
    shoal_checkpoint *checkpoint;
    shoal_status status = shoal_checkpoint_open(to->context, path, &checkpoint);
    if (status == SHOAL_OK)
        status =
            shoal_checkpoint_load(checkpoint, to->model, to->optimizer, &to->schedule);
    shoal_checkpoint_destroy(checkpoint);
    return status;
}

static int set_up(void **state) {
    static workplace place;
    const char *folder = getenv("TMPDIR");
    const shoal_model_config config = small_config();
    snprintf(place.path, sizeof place.path, "%s/shoal-checkpoints-%ld.safetensors",
             folder ? folder : "/tmp", (long)getpid());
    snprintf(place.other, sizeof place.other, "%s.other", place.path);
    place.context = test_context(NULL, 1);
    place.trained = training_create(place.context, &config);
    for (int i = 0; i < 3; i++)
        take_step(&place.trained);
    assert_int_equal(save_to(&place.trained, place.path), SHOAL_OK);
    *state = &place;
    return 0;
}

static int tear_down(void **state) {
    workplace *place = *state;
    training_destroy(&place->trained);
    shoal_context_destroy(place->context);
    remove(place->path);
    remove(place->other);
    return 0;
}

static void refused(workplace *place, const char *path, const char *reason) {
    const double before = digest(&place->trained);
    const shoal_status status = load_from(path, &place->trained);
    assert_true(status == SHOAL_BAD_FILE || status == SHOAL_INVALID ||
                status == SHOAL_IO);
    if (!strstr(shoal_context_message(place->context), reason))
        fail_msg("\"%s\" does not say \"%s\"", shoal_context_message(place->context),
                 reason);
    assert_true(digest(&place->trained) == before);
}

/* ---- Valid files ------------------------------------------------------------------ */

/* A resumed training equals an uninterrupted one. */
static void trainings_go_on_to_the_last_bit(void **state) {
    workplace *place = *state;
    const shoal_model_config config = small_config();
    training whole = training_create(place->context, &config);
    for (int step = 0; step < 12; step++) {
        shoal_context *context = test_context(NULL, 1 + step % 3);
        training part = training_create(context, &config);
        if (step > 0)
            assert_int_equal(load_from(place->other, &part), SHOAL_OK);
        assert_int_equal(shoal_optimizer_steps(part.optimizer), step);
        assert_true(take_step(&part) == take_step(&whole));
        assert_int_equal(save_to(&part, place->other), SHOAL_OK);
        assert_true(digest(&part) == digest(&whole));
        training_destroy(&part);
        shoal_context_destroy(context);
    }
    training_destroy(&whole);
}

static void models_come_back_by_themselves(void **state) {
    workplace *place = *state;
    const shoal_model_config config = small_config();
    float *values, *loaded, *gradients;
    shoal_model *model;
    const int64_t size = shoal_model_vectors(place->trained.model, &values, NULL);
    assert_int_equal(shoal_model_save(place->trained.model, place->other), SHOAL_OK);
    const char *const paths[] = {place->other, place->path};
    for (int i = 0; i < 2; i++) { /* a model, and the model of a checkpoint */
        const unsigned flags = i ? SHOAL_WITH_BACKWARD : 0;
        assert_int_equal(shoal_model_open(place->context, paths[i], 1, LENGTH, flags,
                                          &model),
                         SHOAL_OK);
        assert_int_equal(shoal_model_vectors(model, &loaded, &gradients), size);
        assert_memory_equal(values, loaded, sizeof(float) * (size_t)size);
        assert_memory_equal(shoal_model_settings(model), &config, sizeof config);
        assert_true((gradients != NULL) == (i == 1));
        shoal_model_destroy(model);
    }
    /* Averaged weights are saved while they are in use. */
    assert_int_equal(shoal_optimizer_use_average(place->trained.optimizer, 1), SHOAL_OK);
    assert_int_equal(save_to(&place->trained, place->other), SHOAL_INVALID);
    assert_int_equal(load_from(place->path, &place->trained), SHOAL_INVALID);
    assert_int_equal(shoal_model_save(place->trained.model, place->other), SHOAL_OK);
    assert_int_equal(shoal_model_open(place->context, place->other, 1, LENGTH, 0, &model),
                     SHOAL_OK);
    shoal_model_vectors(model, &loaded, NULL);
    assert_memory_equal(values, loaded, sizeof(float) * (size_t)size);
    assert_int_equal(shoal_optimizer_use_average(place->trained.optimizer, 0), SHOAL_OK);
    assert_memory_not_equal(values, loaded, sizeof(float) * (size_t)size);
    shoal_model_destroy(model);
}

static void notes_are_kept(void **state) {
    workplace *place = *state;
    shoal_checkpoint *checkpoint;
    shoal_model_config config;
    const shoal_model_config wanted = small_config();
    uint64_t seed;
    assert_int_equal(shoal_checkpoint_open(place->context, place->path, &checkpoint),
                     SHOAL_OK);
    for (int64_t i = 0; i < COUNT_OF(notes); i++)
        assert_string_equal(shoal_checkpoint_note(checkpoint, notes[i].key),
                            notes[i].value);
    assert_null(shoal_checkpoint_note(checkpoint, "nothing"));
    assert_null(shoal_checkpoint_note(checkpoint, NULL));
    assert_null(shoal_checkpoint_note(NULL, "epoch"));
    assert_int_equal(shoal_checkpoint_config(checkpoint, &config, &seed), SHOAL_OK);
    assert_memory_equal(&config, &wanted, sizeof config);
    assert_int_equal(seed, 3);
    assert_int_equal(shoal_checkpoint_config(checkpoint, NULL, &seed), SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_config(checkpoint, &config, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_config(NULL, &config, &seed), SHOAL_INVALID);
    shoal_checkpoint_destroy(checkpoint);
    shoal_checkpoint_destroy(NULL);
    const shoal_note wrong[] = {{"shoal.config", "x"}, {"format", "x"}, {"", "x"},
                                {NULL, "x"},           {"x", NULL},     {"\xff", "x"},
                                {"x", "\xff"}};
    for (int64_t i = 0; i < COUNT_OF(wrong); i++)
        assert_int_equal(shoal_checkpoint_save(place->other, place->trained.model, NULL,
                                               NULL, &wrong[i], 1),
                         SHOAL_INVALID);
    const shoal_note twice[] = {notes[0], notes[0]};
    assert_int_equal(shoal_checkpoint_save(place->other, place->trained.model, NULL, NULL,
                                           twice, 2),
                     SHOAL_INVALID);
}

static void convolutions_are_kept(void **state) {
    workplace *place = *state;
    shoal_model_config config = small_config();
    shoal_model *model, *loaded;
    float *values, *others;
    config.vocabulary = 0;
    config.features = 3;
    config.convolutions = 2;
    assert_int_equal(shoal_model_create(place->context, &config, 3, 1, 1, 0, &model),
                     SHOAL_OK);
    assert_int_equal(shoal_model_save(model, place->other), SHOAL_OK);
    assert_int_equal(shoal_model_open(place->context, place->other, 1, 1, 0, &loaded),
                     SHOAL_OK);
    assert_int_equal(shoal_model_settings(loaded)->convolutions, 2);
    const int64_t size = shoal_model_vectors(model, &values, NULL);
    assert_int_equal(shoal_model_vectors(loaded, &others, NULL), size);
    assert_memory_equal(values, others, sizeof(float) * (size_t)size);
    shoal_model_destroy(model);
    shoal_model_destroy(loaded);
}

/* A program with a locale with decimal commas writes and reads the same files. If there
   is no such locale, one is created. */
static void commas_change_nothing(void **state) {
    workplace *place = *state;
    char folder[] = "/tmp/shoal-locale-XXXXXX", command[160];
    const shoal_model_config config = small_config();
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command,
             "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/out 2>&1", folder, folder);
    const bool made = system(command) == 0;
    setenv("LOCPATH", folder, 1);
    const bool chosen = made && setlocale(LC_NUMERIC, "de_DE.UTF-8");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    unsetenv("LOCPATH");
    if (!chosen) {
        print_message("skipped: no locale de_DE.UTF-8 (the Debian package locales)\n");
        skip();
    }
    assert_true(strtod("0,5", NULL) == 0.5); /* the locale has the comma */
    training fresh = training_create(place->context, &config);
    shoal_model *model;
    assert_int_equal(load_from(place->path, &fresh), SHOAL_OK);
    assert_int_equal(save_to(&fresh, place->other), SHOAL_OK);
    setlocale(LC_NUMERIC, "C");
    assert_int_equal(load_from(place->other, &fresh), SHOAL_OK);
    assert_true(digest(&fresh) == digest(&place->trained));
    assert_int_equal(shoal_model_open(place->context, place->other, 1, LENGTH, 0, &model),
                     SHOAL_OK);
    assert_true(shoal_model_settings(model)->dropout == 0.1f);
    shoal_model_destroy(model);
    training_destroy(&fresh);
}

/* ---- Invalid files ---------------------------------------------------------------- */

/* Writes the checkpoint again without one tensor, or with a note changed or removed. */
static void rewrite(workplace *place, const char *left_out, const char *key,
                    const char *value) {
    safetensors *file;
    file_tensor tensors[256];
    shoal_note kept[64];
    int64_t count = 0, note_count = 0;
    const char *name;
    json_t *note;
    assert_int_equal(sh_safetensors_open(place->context, place->path, &file), SHOAL_OK);
    for (int64_t i = 0; i < sh_safetensors_count(file); i++) {
        assert_true(count < 256);
        tensors[count] = *sh_safetensors_at(file, i);
        count += strcmp(tensors[count].name, left_out) != 0;
    }
    json_object_foreach(sh_safetensors_notes(file), name, note) {
        assert_true(note_count < 64);
        const bool changed = strcmp(name, key) == 0;
        kept[note_count] = (shoal_note){name, changed ? value : json_string_value(note)};
        note_count += kept[note_count].value != NULL;
    }
    assert_int_equal(sh_safetensors_write(place->context, place->other, tensors, count,
                                          kept, note_count, 0),
                     SHOAL_OK);
    sh_safetensors_close(file);
}

static void wrong_contents_are_named(void **state) {
    static const char *const wrong[][3] = {{"output.weight", "", "output.weight"},
                                           {"optimizer.second.output.bias", "",
                                            "optimizer.second.output.bias"},
                                           {"average.output.bias", "",
                                            "average.output.bias"}};
    static const char *const notes_wrong[][3] =
        {{"format", "other", "not a Shoal checkpoint"},
         {"format", "\033[31m", "\"?[31m\""},
         {"shoal.config", NULL, "no model configuration"},
         {"shoal.config", "{", "is not JSON"},
         {"shoal.config", "{\"layers\": 1}", "vocabulary"},
         {"shoal.steps", "-3", "shoal.steps"},
         {"shoal.steps", "9223372036854775807", "shoal.steps"},
         {"shoal.averages", NULL, "shoal.averages"},
         {"shoal.schedule_best", "nan", "shoal.schedule_best"},
         {"shoal.schedule_scale", "-0x1p+0", "shoal.schedule_scale"},
         {"shoal.schedule_scale", "inf", "shoal.schedule_scale"}};
    workplace *place = *state;
    rewrite(place, "", "", NULL);
    assert_int_equal(load_from(place->other, &place->trained), SHOAL_OK);
    for (int64_t i = 0; i < COUNT_OF(wrong); i++) {
        rewrite(place, wrong[i][0], wrong[i][1], NULL);
        refused(place, place->other, wrong[i][2]);
    }
    for (int64_t i = 0; i < COUNT_OF(notes_wrong); i++) {
        rewrite(place, "", notes_wrong[i][0], notes_wrong[i][1]);
        refused(place, place->other, notes_wrong[i][2]);
    }
    refused(place, "/nonexistent/x.safetensors", "x.safetensors");
    shoal_model *model; /* for checks of model loading only */
    rewrite(place, "", "shoal.config",
            "{\"vocabulary\":6,\"features\":0,\"outputs\":6,\"max_length\":5,"
            "\"layers\":1,\"heads\":2,\"head_dim\":4,\"feed_forward\":8,"
            "\"attention\":\"fool\",\"shared_qk\":false,\"norm\":\"post\","
            "\"activation\":\"relu\",\"positions\":\"learned\",\"pooling\":\"none\","
            "\"dropout\":0.1}");
    assert_int_equal(shoal_model_open(place->context, place->other, 1, LENGTH, 0, &model),
                     SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(place->context), "fool"));
    assert_null(model);
}

/* Fields that the shapes of parameters do not show are compared, others may differ. */
static void other_models_are_refused(void **state) {
    static const char *const reasons[] = {"heads",     "norm",  "activation",
                                          "positions", "shape", "parameters"};
    workplace *place = *state;
    for (int i = 0; i < COUNT_OF(reasons) + 3; i++) {
        shoal_model_config config = small_config();
        switch (i) {
        case 0: config.heads = 4, config.head_dim = 2; break;
        case 1: config.norm = SHOAL_NORM_PRE; break;
        case 2: config.activation = SHOAL_ACTIVATION_GELU; break;
        case 3: config.positions = SHOAL_POSITIONS_NONE; break;
        case 4: config.feed_forward = 9; break;
        case 5: config.shared_qk = 1; break;
        case 6: config.attention = spelled("full"); break;
        case 7: config.dropout = 0; break;
        case 8: break;
        }
        training other = training_create(place->context, &config);
        const shoal_status status = load_from(place->path, &other);
        assert_true((status == SHOAL_OK) == (i >= COUNT_OF(reasons)));
        if (i < COUNT_OF(reasons))
            assert_non_null(strstr(shoal_context_message(place->context), reasons[i]));
        training_destroy(&other);
    }
}

/* Files of the first format: the state has other names, and there is no model
   configuration. */
static void the_first_format_is_read(void **state) {
    static const char *const names[][2] = {{"shoal.steps", "state.step"},
                                           {"shoal.averages", "state.averaged"},
                                           {"shoal.schedule_best", "state.schedule_best"},
                                           {"shoal.schedule_waiting",
                                            "state.schedule_waiting"},
                                           {"shoal.schedule_scale",
                                            "state.schedule_scale"}};
    workplace *place = *state;
    const shoal_model_config config = small_config();
    training fresh = training_create(place->context, &config);
    safetensors *file;
    file_tensor tensors[256];
    shoal_note old[COUNT_OF(names) + 1] = {{"format", "shoal-checkpoint-1"}};
    assert_int_equal(sh_safetensors_open(place->context, place->path, &file), SHOAL_OK);
    for (int64_t i = 0; i < sh_safetensors_count(file); i++)
        tensors[i] = *sh_safetensors_at(file, i);
    for (int64_t i = 0; i < COUNT_OF(names); i++)
        old[i + 1] = (shoal_note){names[i][1], sh_safetensors_note_of(file, names[i][0])};
    assert_int_equal(sh_safetensors_write(place->context, place->other, tensors,
                                          sh_safetensors_count(file), old, COUNT_OF(old),
                                          0),
                     SHOAL_OK);
    sh_safetensors_close(file);
    assert_int_equal(load_from(place->other, &fresh), SHOAL_OK);
    assert_true(digest(&fresh) == digest(&place->trained));
    shoal_model *model;
    assert_int_equal(shoal_model_open(place->context, place->other, 1, LENGTH, 0, &model),
                     SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(place->context), "first format"));
    training_destroy(&fresh);
}

static char *read_all(const char *path, long *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    char *bytes = malloc((size_t)*size);
    rewind(file);
    assert_int_equal(fread(bytes, 1, (size_t)*size, file), *size);
    fclose(file);
    return bytes;
}

static void write_all(const char *path, const char *bytes, long size) {
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, (size_t)size, file), size);
    fclose(file);
}

/* A file truncated at any byte is rejected. */
static void truncated_files_are_refused(void **state) {
    workplace *place = *state;
    long size;
    char *bytes = read_all(place->path, &size);
    for (long cut = 0; cut < size; cut += 1 + size / 97) {
        write_all(place->other, bytes, cut);
        refused(place, place->other, place->other);
    }
    free(bytes);
}

/* Any flipped bit is detected, except in the name of the checksum itself, without which
   the file counts as an older one. */
static void flipped_bits_are_found(void **state) {
    workplace *place = *state;
    long size;
    int damaged = 0;
    char *bytes = read_all(place->path, &size);
    const long name = (char *)memmem(bytes, (size_t)size, "shoal.checksum", 14) - bytes;
    write_all(place->other, bytes, size);
    const int file = open(place->other, O_WRONLY);
    for (long at = 0; at < size; at += 1 + at % 7) {
        const char flipped = bytes[at] ^ (char)(1 << at % 8);
        if (at >= name - 1 && at < name + 14)
            continue;
        assert_int_equal(pwrite(file, &flipped, 1, at), 1);
        refused(place, place->other, "");
        damaged += strstr(shoal_context_message(place->context), "damaged") != NULL;
        assert_int_equal(pwrite(file, &bytes[at], 1, at), 1);
    }
    close(file);
    assert_true(damaged > 100); /* of the tensors */
    assert_int_equal(load_from(place->other, &place->trained), SHOAL_OK);
    free(bytes);
    rewrite(place, "", "shoal.checksum", NULL);
    assert_int_equal(load_from(place->other, &place->trained), SHOAL_OK);
}

/* The published values, and those of the reference program for 64 and 63 bytes. */
static void the_checksum_is_xxh64(void **state) {
    unsigned char bytes[64];
    for (int i = 0; i < 64; i++)
        bytes[i] = (unsigned char)i;
    assert_true(sh_checksum("", 0, 0) == 0xef46db3751d8e999u);
    assert_true(sh_checksum("a", 1, 0) == 0xd24ec4f1a98c6e5bu);
    assert_true(sh_checksum("abc", 3, 0) == 0x44bc2cf5ad770999u);
    assert_true(sh_checksum(bytes, 64, 0) == 0xf7c67301db6713f0u);
    assert_true(sh_checksum(bytes, 63, 7) == 0x379eeab4056e3988u);
}

/* NaN and infinities in files with a valid checksum or without one. */
static void weights_that_are_no_numbers_are_named(void **state) {
    workplace *place = *state;
    static const char *const names[] = {"encoder.layers.0.attention.output.weight",
                                        "output.bias"};
    for (int i = 0; i < 4; i++) {
        shoal_parameter one;
        int index = 0;
        const shoal_model_config config = small_config();
        training other = training_create(place->context, &config);
        while (shoal_model_parameter(other.model, index++, &one))
            if (strcmp(one.name, names[i % 2]) == 0)
                one.values[1] = i < 2 ? NAN : -INFINITY;
        assert_int_equal(save_to(&other, place->other), SHOAL_OK);
        refused(place, place->other, names[i % 2]);
        assert_non_null(strstr(shoal_context_message(place->context), "NaN"));
        training_destroy(&other);
    }
}

static shoal_attention saved_attention(workplace *place) {
    shoal_checkpoint *checkpoint;
    shoal_model_config config;
    uint64_t seed;
    assert_int_equal(shoal_checkpoint_open(place->context, place->other, &checkpoint),
                     SHOAL_OK);
    assert_int_equal(shoal_checkpoint_config(checkpoint, &config, &seed), SHOAL_OK);
    shoal_checkpoint_destroy(checkpoint);
    return config.attention;
}

/* shoal-C without key clusters in older files is read as q-clustered-C, shoal without a
   form as its second form. New files spell all options, and are read back unchanged. */
static void the_attention_keeps_its_meaning(void **state) {
    static const char *const meant[][2] =
        {{"shoal-100", "q-clustered-100"},
         {"shoal-25:topk=9,seed=4", "q-clustered-25:topk=9,seed=4"},
         {"shoal-25:topk=9,rank=8,keyclusters=0,near=0", "q-clustered-25:topk=9,rank=8"},
         {"shoal-25:keyclusters=auto", "shoal-25:form=2"},
         {"shoal-25:keyclusters=8", "shoal-25:keyclusters=8,form=2"},
         {"shoal", "shoal:form=2"},
         {"shoal:topk=9", "shoal:topk=9,form=2"},
         {"i-clustered-7:topk=5", "i-clustered-7:topk=5"}};
    workplace *place = *state;
    for (int64_t i = 0; i < COUNT_OF(meant); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"vocabulary\":6,\"features\":0,\"outputs\":6,\"max_length\":5,"
                 "\"layers\":1,\"heads\":2,\"head_dim\":4,\"feed_forward\":8,"
                 "\"attention\":\"%s\",\"shared_qk\":false,\"norm\":\"post\","
                 "\"activation\":\"relu\",\"positions\":\"learned\","
                 "\"pooling\":\"none\",\"dropout\":0.1}",
                 meant[i][0]);
        rewrite(place, "", "shoal.config", text);
        shoal_attention wanted, found = saved_attention(place);
        assert_int_equal(shoal_attention_parse(NULL, meant[i][1], &wanted), SHOAL_OK);
        assert_memory_equal(&found, &wanted, sizeof found);
        shoal_model_config config = small_config();
        config.attention = wanted;
        training other = training_create(place->context, &config);
        assert_int_equal(save_to(&other, place->other), SHOAL_OK);
        found = saved_attention(place);
        assert_memory_equal(&found, &wanted, sizeof found);
        training_destroy(&other);
    }
}

/* A small file that claims a large model is rejected before the model is created. */
static void large_claims_cost_no_memory(void **state) {
    workplace *place = *state;
    shoal_model *model;
    shoal_checkpoint *checkpoint;
    shoal_model_config config;
    uint64_t seed;
    rewrite(place, "", "shoal.config",
            "{\"vocabulary\":6,\"features\":0,\"outputs\":6,\"max_length\":5,"
            "\"layers\":1,\"heads\":4096,\"head_dim\":4096,\"feed_forward\":8,"
            "\"attention\":\"full\",\"shared_qk\":false,\"norm\":\"post\","
            "\"activation\":\"relu\",\"positions\":\"learned\",\"pooling\":\"none\","
            "\"dropout\":0.1}");
    assert_int_equal(shoal_model_open(place->context, place->other, 1, LENGTH, 0, &model),
                     SHOAL_BAD_FILE); /* the model would need a petabyte */
    assert_non_null(strstr(shoal_context_message(place->context), "embedding.weight"));
    assert_int_equal(shoal_checkpoint_open(place->context, place->path, &checkpoint),
                     SHOAL_OK);
    assert_int_equal(shoal_checkpoint_config(checkpoint, &config, &seed), SHOAL_OK);
    assert_int_equal(shoal_checkpoint_fits(checkpoint, &config), SHOAL_OK);
    config.positions =
        SHOAL_POSITIONS_SINUSOIDAL; /* no tensor depends on the maximum length */
    config.max_length = INT32_MAX / 2;
    assert_int_equal(shoal_model_create(place->context, &config, 1, 1, LENGTH, 0, &model),
                     SHOAL_OK);
    assert_true(shoal_model_workspace(model) < 1 << 20);
    shoal_model_destroy(model);
    assert_int_equal(shoal_checkpoint_config(checkpoint, &config, &seed), SHOAL_OK);
    config.layers++;
    assert_int_equal(shoal_checkpoint_fits(checkpoint, &config), SHOAL_BAD_FILE);
    config.layers = -1;
    assert_int_equal(shoal_checkpoint_fits(checkpoint, &config), SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_fits(checkpoint, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_fits(NULL, &config), SHOAL_INVALID);
    shoal_checkpoint_destroy(checkpoint);
}

/* A failed save leaves the old checkpoint. */
static void failed_saves_leave_the_old_one(void **state) {
    workplace *place = *state;
    assert_int_equal(save_to(&place->trained, "/nonexistent/x.safetensors"), SHOAL_IO);
    assert_int_equal(load_from(place->path, &place->trained), SHOAL_OK);
}

static void wrong_arguments_are_refused(void **state) {
    workplace *place = *state;
    const shoal_model_config config = small_config();
    training other = training_create(place->context, &config);
    shoal_model *model = place->trained.model, *none;
    shoal_checkpoint *checkpoint;
    assert_int_equal(shoal_model_save(NULL, place->other), SHOAL_INVALID);
    assert_int_equal(shoal_model_save(model, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_open(NULL, place->path, 1, 1, 0, &none), SHOAL_INVALID);
    assert_null(none);
    assert_int_equal(shoal_model_open(place->context, NULL, 1, 1, 0, &none),
                     SHOAL_INVALID);
    assert_int_equal(shoal_model_open(place->context, place->path, 1, 1, 0, NULL),
                     SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_save(place->other, model, other.optimizer, NULL,
                                           NULL, 0),
                     SHOAL_INVALID); /* of another model */
    assert_int_equal(shoal_checkpoint_save(place->other, model, NULL, NULL, NULL, 1),
                     SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_save(place->other, model, NULL, NULL, notes, -1),
                     SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_open(NULL, place->path, &checkpoint),
                     SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_open(place->context, NULL, &checkpoint),
                     SHOAL_INVALID);
    assert_null(checkpoint);
    assert_int_equal(shoal_checkpoint_open(place->context, place->path, NULL),
                     SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_open(place->context, place->path, &checkpoint),
                     SHOAL_OK);
    assert_int_equal(shoal_checkpoint_load(NULL, model, NULL, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_load(checkpoint, NULL, NULL, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_checkpoint_load(checkpoint, model, other.optimizer, NULL),
                     SHOAL_INVALID);
    shoal_checkpoint_destroy(checkpoint);
    training_destroy(&other);
}

/* ---- Memory ---------------------------------------------------------------------- */

/* Everything that allocates, with the n-th allocation failing; true if none failed. */
static bool survive(int64_t fail_at, const char *path) {
    counting_allocator allocator = {.fail_at = 0};
    shoal_options options = counting_options(&allocator);
    shoal_context *context;
    shoal_model *model = NULL, *view = NULL, *loaded = NULL;
    shoal_optimizer *optimizer = NULL;
    const shoal_model_config config = small_config();
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    allocator.fail_at = allocator.calls + fail_at;
    shoal_status status =
        shoal_model_create(context, &config, 1, BATCH, ROWS, SHOAL_WITH_BACKWARD, &model);
    if (status == SHOAL_OK)
        status = shoal_optimizer_create(model, NULL, &optimizer);
    if (status == SHOAL_OK)
        status = shoal_model_create_view(model, NULL, BATCH, ROWS, &view);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_save(path, model, optimizer, NULL, notes, 1);
    if (status == SHOAL_OK) {
        training all = {.context = context, .model = model, .optimizer = optimizer};
        const int64_t calls = allocator.calls;
        take_step(&all);
        assert_int_equal(allocator.calls, calls); /* a step allocates nothing */
        status = shoal_model_open(context, path, 1, LENGTH, 0, &loaded);
    }
    assert_true(status == SHOAL_OK || status == SHOAL_NO_MEMORY);
    if (status != SHOAL_OK)
        assert_non_null(strstr(shoal_context_message(context), "memory"));
    shoal_model_destroy(loaded);
    shoal_model_destroy(view);
    shoal_optimizer_destroy(optimizer);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
    assert_int_equal(allocator.live, 0);
    return status == SHOAL_OK;
}

static void allocations_may_fail(void **state) {
    const workplace *place = *state;
    int64_t failures = 1;
    while (!survive(failures, place->other))
        failures++;
    assert_true(failures > 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainings_go_on_to_the_last_bit),
        cmocka_unit_test(models_come_back_by_themselves),
        cmocka_unit_test(notes_are_kept),
        cmocka_unit_test(convolutions_are_kept),
        cmocka_unit_test(commas_change_nothing),
        cmocka_unit_test(wrong_contents_are_named),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(the_first_format_is_read),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(flipped_bits_are_found),
        cmocka_unit_test(the_checksum_is_xxh64),
        cmocka_unit_test(weights_that_are_no_numbers_are_named),
        cmocka_unit_test(the_attention_keeps_its_meaning),
        cmocka_unit_test(large_claims_cost_no_memory),
        cmocka_unit_test(failed_saves_leave_the_old_one),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
