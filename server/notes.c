/* A short, bounded list of lines for the log. */
#include "server/notes.h"

#include <stdarg.h>
#include <stdio.h>

void kv_notes_add(struct kv_notes *notes, const char *format, ...)
{
    if (notes->count == KV_NOTES_MAX) return;
    char draft[2 * KV_NOTE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(draft, sizeof draft, format, arguments);
    va_end(arguments);
    kv_text_print(draft, notes->text[notes->count++], KV_NOTE_BYTES);
}
