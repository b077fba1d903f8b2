/* Fuzz target of the .npy header. With libFuzzer:
       clang -fsanitize=fuzzer,address,undefined ... tests/fuzz_npy.c src/base/npy.c
       ./fuzz_npy tests/corpus/npy
   With -DSHOAL_FUZZ_STANDALONE it has a main that replays files and directories. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool truth, const char *what) {
    if (truth)
        return;
    fprintf(stderr, "fuzz_npy: not so: %s\n", what);
    abort();
}

/* What we would write for an accepted header must be read back as the same array. */
static void round_trip(const npy_header *header) {
    unsigned char text[NPY_PRINTED];
    npy_header again;
    npy_reason reason;
    size_t size = npy_print(header->dtype, header->rank, header->shape, text);
    require(size % 64 == 0 && size <= sizeof text,
            "the printed header is aligned and fits");
    require(npy_parse(text, size, &again, &reason), "a printed header is read");
    require(again.dtype == header->dtype && again.rank == header->rank &&
                memcmp(again.shape, header->shape, sizeof again.shape) == 0 &&
                again.data_begin == size && again.data_bytes == header->data_bytes,
            "it is the same array");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npy_header header;
    npy_reason reason = {""};
    /* A copy of exactly this size lets the address sanitizer see one byte too far. */
    unsigned char *bytes = malloc(size ? size : 1);
    if (!bytes)
        return 0;
    if (size)
        memcpy(bytes, data, size);
    if (npy_parse(bytes, size, &header, &reason)) {
        require(header.data_begin <= size, "the header lies within the file");
        require(header.rank >= 0 && header.rank <= SHOAL_MAX_RANK,
                "the rank is possible");
        require(header.data_bytes % 4 == 0 && header.data_bytes < SIZE_MAX / 2,
                "the size is possible");
        round_trip(&header);
    } else {
        require(reason.text[0] != 0, "a refusal has a reason");
        for (const char *c = reason.text; *c; c++)
            require(*c >= ' ' && *c <= '~', "the reason is plain text");
    }
    free(bytes);
    return 0;
}

#ifdef SHOAL_FUZZ_STANDALONE
static int replay_file(const char *path) {
    enum { LARGEST = 1 << 21 };
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = malloc(LARGEST);
    if (!file || !bytes) {
        perror(path);
        exit(1);
    }
    size_t size = fread(bytes, 1, LARGEST, file);
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    return 1;
}

static int replay(const char *path) {
    DIR *directory = opendir(path);
    if (!directory)
        return replay_file(path);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        count += replay(name);
    }
    closedir(directory);
    return count;
}

int main(int count, char **arguments) {
    int replayed = 0;
    for (int i = 1; i < count; i++)
        replayed += replay(arguments[i]);
    printf("fuzz_npy: %d inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}
#endif
