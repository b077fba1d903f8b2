/* What the reader's files share. */
#ifndef SHOAL_MODELS_FILES_SAFETENSORS_PARTS_H
#define SHOAL_MODELS_FILES_SAFETENSORS_PARTS_H

#include "models/files/safetensors.h"

enum {
    SAFETENSORS_LENGTH = 8,                 /* bytes of the header's length */
    SAFETENSORS_LARGEST_HEADER = 100000000, /* the format's own limit */
};
#define SAFETENSORS_METADATA "__metadata__"

/* One block holds the object and everything it points to, except what is mapped. */
struct safetensors {
    shoal_context *context;
    const char *label;    /* the file's name, for messages */
    file_tensor *tensors; /* [count], sorted by name */
    int64_t count;
    shoal_note *notes; /* [note_count], sorted by key */
    int64_t note_count;
    file_map map;         /* of a file of its own */
    safetensors **shards; /* [shard_count]: the tensors are theirs */
    int64_t shard_count;
};

/* All the shards of an index. */
shoal_status sh_safetensors_open_index(shoal_context *context, const char *path,
                                       safetensors **file);

#endif
