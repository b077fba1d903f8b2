/* Exports the log of a run to other tools: as a .csv table, or as events for
   TensorBoard. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "train/train.h"

/* Columns, and their names in TensorBoard. */
static const char *const columns[][2] = {{"loss", "train/loss"},
                                         {"accuracy", "train/accuracy"},
                                         {"gradient_norm", "train/gradient_norm"},
                                         {"learning_rate", "train/learning_rate"},
                                         {"seconds", "train/seconds"},
                                         {"validation_loss", "validation/loss"},
                                         {"validation_accuracy", "validation/accuracy"}};
enum { COLUMNS = sizeof columns / sizeof *columns };

typedef struct {
    int64_t step;
    double values[COLUMNS]; /* NaN if missing */
} log_row;

/* ---- TensorBoard ------------------------------------------------------------------- */

/* CRC-32C with TensorFlow's mask. */
static uint32_t masked_crc(const unsigned char *bytes, size_t size) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* A Protocol Buffers message under construction; numbers are little-endian. */
typedef struct {
    unsigned char bytes[256];
    size_t size;
} message;

static void put(message *to, const void *bytes, size_t size) {
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static void put_varint(message *to, uint64_t value) {
    for (; value >= 128; value >>= 7)
        to->bytes[to->size++] = (unsigned char)(value | 128);
    to->bytes[to->size++] = (unsigned char)value;
}

static void put_bytes(message *to, int field, const void *bytes, size_t size) {
    put_varint(to, (uint64_t)field << 3 | 2);
    put_varint(to, size);
    put(to, bytes, size);
}

/* A record: its length and its bytes, each with a checksum. */
static void write_record(FILE *file, const message *event) {
    const uint64_t length = event->size;
    const uint32_t crc[] = {masked_crc((const unsigned char *)&length, sizeof length),
                            masked_crc(event->bytes, event->size)};
    fwrite(&length, sizeof length, 1, file);
    fwrite(&crc[0], sizeof *crc, 1, file);
    fwrite(event->bytes, event->size, 1, file);
    fwrite(&crc[1], sizeof *crc, 1, file);
}

/* Event: 1 wall_time, 2 step, 3 file_version, 5 summary; Summary: 1 value; Value: 1
   tag, 2 simple_value. The time is that of the training, from 0. */
static void write_event(FILE *file, const log_row *row, int column) {
    static const char version[] = "brain.Event:2";
    const double time = row ? row->values[4] : 0;
    message event = {.bytes = {1 << 3 | 1}, .size = 1}, summary = {0}, value = {0};
    put(&event, &time, sizeof time);
    if (row) {
        const float number = (float)row->values[column];
        put_varint(&event, 2 << 3);
        put_varint(&event, (uint64_t)row->step);
        put_bytes(&value, 1, columns[column][1], strlen(columns[column][1]));
        put_varint(&value, 2 << 3 | 5);
        put(&value, &number, sizeof number);
        put_bytes(&summary, 1, value.bytes, value.size);
        put_bytes(&event, 5, summary.bytes, summary.size);
    } else {
        put_bytes(&event, 3, version, strlen(version));
    }
    write_record(file, &event);
}

/* ---- Export ----------------------------------------------------------------------- */

static void write_row(FILE *file, const log_row *row, bool events) {
    char text[32];
    if (row->step < 0)
        return;
    if (!events)
        fprintf(file, "%" PRId64, row->step);
    for (int i = 0; i < COLUMNS; i++)
        if (events && isfinite(row->values[i]) && i != 4)
            write_event(file, row, i);
        else if (!events)
            fprintf(file, ",%s",
                    isfinite(row->values[i]) ? sh_real_text(text, row->values[i], false)
                                             : "");
    if (!events)
        fputc('\n', file);
}

/* A validation is added to the row of its step. */
static shoal_status convert(shoal_context *context, const char *path, FILE *log, FILE *to,
                            bool events) {
    log_row row = {.step = -1};
    char *text = NULL;
    size_t room = 0;
    int64_t number = 0;
    shoal_status status = SHOAL_OK;
    if (events)
        write_event(to, NULL, 0);
    else
        fputs("step", to);
    for (int i = 0; i < COLUMNS && !events; i++)
        fprintf(to, ",%s%s", columns[i][0], i == COLUMNS - 1 ? "\n" : "");
    int64_t size;
    while (status == SHOAL_OK && (size = sh_read_line(context, log, &text, &room)) != 0) {
        if (size < 0) {
            status = SHOAL_NO_MEMORY;
            break;
        }
        json_t *line = json_loads(text, 0, NULL);
        const json_t *step = json_object_get(line, "step");
        number++;
        if (!json_is_object(line))
            status = sh_fail(context, SHOAL_BAD_FILE, "%s: line %" PRId64 " is damaged",
                             path, number);
        if (json_is_integer(step) && json_integer_value(step) != row.step) {
            write_row(to, &row, events);
            row.step = json_integer_value(step);
            for (int i = 0; i < COLUMNS; i++)
                row.values[i] = NAN;
        }
        for (int i = 0; i < COLUMNS && json_is_integer(step); i++) {
            const json_t *value = json_object_get(line, columns[i][0]);
            if (json_is_number(value))
                row.values[i] = json_number_value(value);
        }
        json_decref(line);
    }
    write_row(to, &row, events);
    sh_free(text);
    return status;
}

shoal_status shoal_run_export(shoal_context *context, const char *run, const char *path) {
    char log_path[SH_PATH];
    struct stat information;
    if (!context || !run || !path)
        return sh_fail(context, SHOAL_INVALID, "context, run or path is NULL");
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const bool events = strstr(name, "tfevents") != NULL;
    if (!events && (strlen(name) < 4 || strcmp(name + strlen(name) - 4, ".csv") != 0))
        return sh_fail(context, SHOAL_INVALID,
                       "%s: the name must end in .csv or contain tfevents", path);
    if (stat(run, &information) == 0 && S_ISDIR(information.st_mode))
        TRY(sh_path(context, log_path, run, SHOAL_RUN_LOG));
    else if (snprintf(log_path, SH_PATH, "%s", run) >= SH_PATH)
        return sh_fail(context, SHOAL_INVALID, "%.80s...: the path is too long", run);
    FILE *log = fopen(log_path, "r");
    if (!log)
        return sh_fail(context, SHOAL_BAD_FILE, "%s cannot be read: %s", log_path,
                       strerror(errno));
    shoal_replacement *to;
    shoal_status status = shoal_replacement_create(context, path, &to);
    if (status == SHOAL_OK)
        status = convert(context, log_path, log, shoal_replacement_file(to), events);
    fclose(log);
    if (status == SHOAL_OK)
        status = shoal_replacement_commit(to, SHOAL_SYNC_NONE);
    shoal_replacement_destroy(to);
    return status;
}
