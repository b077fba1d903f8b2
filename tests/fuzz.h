/* Shared by the fuzz targets: a context, checks of error messages, inputs in blocks of
   exactly their size, and a main that replays files and folders. Each target includes
   it once, after defining FUZZ_NAME. */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void require(bool truth, const char *what) {
    if (truth)
        return;
    fprintf(stderr, FUZZ_NAME ": not so: %s\n", what);
    abort();
}

static inline shoal_context *fuzz_context(void) {
    static shoal_context *context;
    if (!context)
        require(shoal_context_create(NULL, &context) == SHOAL_OK, "there is a context");
    return context;
}

/* Accepted, or rejected as a bad file with a plain text message. */
static inline bool judged(shoal_status status) {
    if (status == SHOAL_OK)
        return true;
    const char *message = shoal_context_message(fuzz_context());
    require(status == SHOAL_BAD_FILE, "what is refused is a bad file");
    require(message[0] != 0, "a refusal has a reason");
    for (; *message; message++)
        require(*message >= ' ' && *message <= '~', "the reason is plain text");
    return false;
}

/* In a copy of exactly this size the address sanitizer detects overruns. */
static inline unsigned char *exact_copy(const void *data, size_t size) {
    unsigned char *bytes = malloc(size ? size : 1);
    require(bytes != NULL, "there is memory");
    if (size)
        memcpy(bytes, data, size);
    return bytes;
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
    printf(FUZZ_NAME ": %d inputs replayed\n", replayed);
    shoal_context_destroy(fuzz_context());
    return replayed > 0 ? 0 : 1;
}
#endif
