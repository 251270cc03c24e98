/* What the log should say of a checkpoint that is otherwise fine. Knows nothing of checkpoints. */
#ifndef KV_SERVER_NOTES_H
#define KV_SERVER_NOTES_H

#include "protocol/error.h"

enum { KV_NOTES_MAX = 16, KV_NOTE_BYTES = 256 };

/* Zero-initialise. */
struct kv_notes {
    int32_t count;
    char text[KV_NOTES_MAX][KV_NOTE_BYTES];
};

/* Adds one line, cut to fit; past KV_NOTES_MAX it is dropped. The text is made printable. */
void kv_notes_add(struct kv_notes *notes, const char *format, ...) KV_PRINTF(2, 3);

#endif
