/* safetensors: 8 bytes of little-endian header length, a JSON object, and the tensors'
   bytes. The reader rejects what the format's own library rejects: a header beyond 100
   MB or the file, text that is not UTF-8 or not one JSON object, duplicate names,
   metadata that are not strings, unknown types, dimensions or offsets that are not
   non-negative integers, sizes that differ from the shape's, and tensors that overlap,
   leave gaps or do not end at the end of the file.

       safetensors *file;
       shoal_status status = sh_safetensors_open(context, "model.safetensors", &file);
       const file_tensor *weight = sh_safetensors_find(file, "layers.0.weight");
       const char *note = sh_safetensors_note_of(file, "config");
       sh_safetensors_close(file); */
#ifndef SHOAL_MODELS_FILES_SAFETENSORS_H
#define SHOAL_MODELS_FILES_SAFETENSORS_H

#include "base/export.h"
#include "models/files/tensors.h"
#include "shoal_models.h"

typedef struct safetensors safetensors;

/* Maps a .safetensors file, or all shards of an "*.index.json" whose weight_map names
   them (in the same folder); the tensors in the shards must be exactly those of the
   map. On failure *file is NULL. */
SHOAL_PRIVATE shoal_status sh_safetensors_open(shoal_context *context, const char *path,
                                               safetensors **file);
/* The same for one file's bytes, which must outlive the object. `label` names them in
   messages. */
shoal_status sh_safetensors_parse(shoal_context *context, const char *label,
                                  const unsigned char *bytes, size_t size,
                                  safetensors **file);
SHOAL_PRIVATE void
sh_safetensors_close(safetensors *file); /* NULL is allowed; its context must still
                                            exist */

SHOAL_PRIVATE int64_t sh_safetensors_count(const safetensors *file);
/* Sorted by name (strcmp), index from 0. Valid until close. */
SHOAL_PRIVATE const file_tensor *sh_safetensors_at(const safetensors *file,
                                                   int64_t index);
/* NULL if there is none. */
const file_tensor *sh_safetensors_find(const safetensors *file, const char *name);
/* Like find, but absence, another type or another shape is SHOAL_BAD_FILE with a
   message that names the file and the tensor. */
shoal_status sh_safetensors_require(shoal_context *context, const safetensors *file,
                                    const char *name, tensor_dtype dtype, int rank,
                                    const int64_t *shape, const file_tensor **tensor);

/* __metadata__, an object of strings, or NULL; and the string of one key, or NULL. */
json_t *sh_safetensors_notes(const safetensors *file);
const char *sh_safetensors_note_of(const safetensors *file, const char *key);

/* Writes tensors (`bytes` is ignored: the shape determines it) and notes atomically
   with sh_file_replace. Larger elements come first, then names in order, so that every
   tensor is aligned to its type; the header is padded to 8 bytes. Names must be UTF-8,
   not empty, not "__metadata__", and distinct. */
shoal_status sh_safetensors_write(shoal_context *context, const char *path,
                                  const file_tensor *tensors, int64_t count,
                                  const shoal_note *notes, int64_t note_count,
                                  bool durable);

#endif
