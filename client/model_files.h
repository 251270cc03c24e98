/* Writes a random checkpoint into a folder: all its files or none. Knows no command line. */
#ifndef KV_CLIENT_MODEL_FILES_H
#define KV_CLIENT_MODEL_FILES_H

#include "client/model_shape.h"

/* The folder is made where it is missing. A folder that has files in it is refused unless `force`: then the
 * files of a checkpoint in it are replaced, those of the other form (one file or shards) removed, and others
 * left. Memory is bounded. *bytes is what was written. The same shape gives the same bytes, and a tensor the
 * same values in whatever number of shards. */
bool kv_model_files_write(const struct kv_model_shape *shape, const char *folder, bool force, uint64_t *bytes,
                          struct kv_error *err) KV_MUST_CHECK;

#endif
