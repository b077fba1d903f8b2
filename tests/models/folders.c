#define _GNU_SOURCE
#include "folders.h"
#include "cases.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void write_bytes_to(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

const char *make_folder(void) {
    char *path = strdup("/tmp/shoal-data-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static int remove_entry(const char *path, const struct stat *information, int type,
                        struct FTW *place) {
    (void)information, (void)type, (void)place;
    return remove(path);
}

void remove_folder(const char *folder) {
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free((void *)(uintptr_t)folder);
}

const char *recorded_text(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/models/text/%s", SHOAL_SOURCE_DIR, name);
    return path;
}
