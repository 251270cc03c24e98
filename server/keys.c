/* Every key is kept at one size, padded, so that a comparison has neither a length nor an early end. */
#include "server/keys.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WORDS = KV_KEY_BYTES_MAX / 8 };

struct key {
    uint64_t word[WORDS]; /* the key and zeros behind it */
    uint64_t bytes;
};

struct kv_keys {
    int32_t count;
    struct key key[KV_KEYS_MAX];
};

static bool pack(struct key *key, const char *text, size_t bytes)
{
    *key = (struct key){.bytes = bytes};
    if (bytes < KV_KEY_BYTES_MIN || bytes > KV_KEY_BYTES_MAX) return false;
    memcpy(key->word, text, bytes);
    return true;
}

/* The length of what may stand in a key, from the begin of a line on. */
static size_t printable(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && text[at] > ' ' && text[at] < 0x7f) at++;
    return at;
}

static bool is_blank(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && (text[at] == ' ' || text[at] == '\t')) at++;
    return at == bytes;
}

static bool add_line(struct kv_keys *keys, const char *text, size_t bytes, int32_t line, const char *param,
                     const char *name, struct kv_error *err)
{
    static const char expected[] = "16 to 256 printable ASCII characters without spaces";
    if (is_blank(text, bytes) || text[0] == '#') return true;
    if (printable(text, bytes) < bytes)
        return kv_fail_values(err, KV_OPTION_INVALID, param, kv_text(expected), kv_none(),
                              "line %d of %.128s holds a character that no key has", line, name);
    if (bytes < KV_KEY_BYTES_MIN || bytes > KV_KEY_BYTES_MAX)
        return kv_fail_values(err, KV_OPTION_INVALID, param, kv_text(expected), kv_integer((int64_t)bytes),
                              "line %d of %.128s is too %s for a key", line, name,
                              bytes < KV_KEY_BYTES_MIN ? "short" : "long");
    if (keys->count == KV_KEYS_MAX)
        return kv_fail_values(err, KV_OPTION_INVALID, param, kv_integer(KV_KEYS_MAX), kv_none(),
                              "line %d of %.128s is one key too many", line, name);
    return pack(&keys->key[keys->count++], text, bytes);
}

bool kv_keys_parse(struct kv_keys **out, const char *text, size_t bytes, const char *param, const char *name,
                   struct kv_error *err)
{
    struct kv_keys *keys = calloc(1, sizeof *keys);
    *out = NULL;
    if (!keys) return kv_fail(err, KV_INTERNAL, "no memory for the API keys");
    const char *end = text + bytes;
    bool ok = true;
    for (int32_t line = 1; ok && text < end; line++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *line_end = newline ? newline : end;
        ok = add_line(keys, text, (size_t)(line_end - text), line, param, name, err);
        text = line_end + 1;
    }
    if (ok && keys->count == 0)
        ok = kv_fail_values(err, KV_OPTION_INVALID, param, kv_text("a key a line"), kv_text("none"),
                            "%.128s holds no key", name);
    if (ok)
        *out = keys;
    else
        kv_keys_close(keys);
    return ok;
}

int32_t kv_keys_count(const struct kv_keys *keys)
{
    return keys->count;
}

void kv_keys_close(struct kv_keys *keys)
{
    if (!keys) return;
    explicit_bzero(keys, sizeof *keys);
    free(keys);
}

bool kv_keys_hold(const struct kv_keys *keys, const char *key, size_t bytes)
{
    struct key asked;
    uint64_t found = 0;
    if (!pack(&asked, key, bytes)) return false;
    for (int32_t i = 0; i < keys->count; i++) {
        uint64_t difference = keys->key[i].bytes ^ asked.bytes;
        for (int32_t w = 0; w < WORDS; w++) difference |= keys->key[i].word[w] ^ asked.word[w];
        found |= ((difference | (0 - difference)) >> 63) ^ 1; /* 1 where there is none, without a branch */
    }
    explicit_bzero(&asked, sizeof asked);
    return found != 0;
}

const char *kv_bearer_find(const char *authorization, size_t *bytes)
{
    static const char scheme[] = "Bearer ";
    if (strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return NULL;
    const char *key = authorization + sizeof scheme - 1;
    key += strspn(key, " ");
    *bytes = printable(key, strlen(key));
    return *bytes > 0 && is_blank(key + *bytes, strlen(key + *bytes)) ? key : NULL;
}
