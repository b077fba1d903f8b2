/* Fuzz target of the .npy header. With libFuzzer:
       make fuzz
   With -DSHOAL_FUZZ_STANDALONE it has a main that replays files and directories. */
#define _GNU_SOURCE
#include "models/files/npy.h"

#define FUZZ_NAME "fuzz_npy"
#include "fuzz.h"
#include "shoal_models.h"

/* Writing an accepted header and reading it back gives the same array. */
static void round_trip(const npy_header *header) {
    unsigned char text[NPY_PRINTED];
    npy_header again;
    npy_reason reason;
    size_t size = sh_npy_print(header->dtype, header->rank, header->shape, text);
    require(size % 64 == 0 && size <= sizeof text,
            "the printed header is aligned and fits");
    require(sh_npy_parse(text, size, &again, &reason), "a printed header is read");
    require(again.dtype == header->dtype && again.rank == header->rank &&
                memcmp(again.shape, header->shape, sizeof again.shape) == 0 &&
                again.data_begin == size && again.data_bytes == header->data_bytes,
            "it is the same array");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npy_header header;
    npy_reason reason = {""};
    unsigned char *bytes = exact_copy(data, size);
    if (sh_npy_parse(bytes, size, &header, &reason)) {
        require(header.data_begin <= size, "the header lies within the file");
        require(header.rank >= 0 && header.rank <= SHOAL_MAX_DIMENSIONS,
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
