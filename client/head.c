/* Parses the head of a reply. Everything in it is a stranger's word: bounded, checked, never trusted for a
 * size. */
#include "client/head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct text {
    const char *at;
    size_t bytes;
};

static bool malformed(const char *what, struct text got, struct kv_error *err)
{
    char shown[KV_TEXT_BYTES];
    snprintf(shown, sizeof shown, "%.*s", got.bytes > 80 ? 80 : (int)got.bytes, got.at);
    return kv_fail_values(err, KV_REPLY_MALFORMED, "", kv_none(), kv_text(shown), "The reply %s", what);
}

size_t kv_head_find_end(const char *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        const char *feed = memchr(bytes + at, '\n', count - at);
        if (!feed) return 0;
        size_t next = (size_t)(feed - bytes) + 1;
        if (next < count && bytes[next] == '\n') return next + 1;
        if (next + 1 < count && bytes[next] == '\r' && bytes[next + 1] == '\n') return next + 2;
        at = next;
    }
    return 0;
}

/* Takes one line off the front, without its end. */
static struct text next_line(struct text *rest)
{
    const char *feed = memchr(rest->at, '\n', rest->bytes);
    size_t bytes = feed ? (size_t)(feed - rest->at) : rest->bytes;
    struct text line = {rest->at, bytes};
    size_t taken = feed ? bytes + 1 : bytes;
    rest->at += taken;
    rest->bytes -= taken;
    if (line.bytes > 0 && line.at[line.bytes - 1] == '\r') line.bytes--;
    return line;
}

static struct text trim(struct text text)
{
    while (text.bytes > 0 && (*text.at == ' ' || *text.at == '\t')) text.at++, text.bytes--;
    while (text.bytes > 0 && (text.at[text.bytes - 1] == ' ' || text.at[text.bytes - 1] == '\t'))
        text.bytes--;
    return text;
}

static bool is(struct text text, const char *word)
{
    return text.bytes == strlen(word) && strncasecmp(text.at, word, text.bytes) == 0;
}

/* A decimal number and nothing else. */
static bool number(struct text text, uint64_t *out)
{
    if (text.bytes == 0 || text.bytes > 19) return false;
    uint64_t value = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return false;
        value = value * 10 + (uint64_t)(text.at[i] - '0');
    }
    *out = value;
    return true;
}

static void copy(char *to, size_t to_bytes, struct text from)
{
    size_t bytes = from.bytes < to_bytes ? from.bytes : to_bytes - 1;
    memcpy(to, from.at, bytes);
    to[bytes] = '\0';
}

/* Takes what stands before the next `mark` off the front. */
static struct text next_part(struct text *rest, char mark)
{
    const char *at = rest->bytes ? memchr(rest->at, mark, rest->bytes) : NULL;
    struct text part = {rest->at, at ? (size_t)(at - rest->at) : rest->bytes};
    size_t taken = at ? part.bytes + 1 : part.bytes;
    rest->at += taken;
    rest->bytes -= taken;
    return trim(part);
}

/* Server-Timing: queue;dur=0.012, device;dur=1.5. What cannot be read is left unknown: it is only shown. */
static void read_timing(struct kv_head *head, struct text value)
{
    while (value.bytes > 0) {
        struct text metric = next_part(&value, ',');
        struct text name = next_part(&metric, ';');
        double *to = is(name, "queue") ? &head->queue_ms : is(name, "device") ? &head->device_ms : NULL;
        while (to && metric.bytes > 0) {
            struct text param = next_part(&metric, ';');
            char digits[32];
            if (param.bytes < 5 || strncasecmp(param.at, "dur=", 4) != 0) continue;
            copy(digits, sizeof digits, (struct text){param.at + 4, param.bytes - 4});
            char *end = digits;
            double ms = strtod(digits, &end);
            if (end != digits && *end == '\0' && ms >= 0 && ms < 1e12) *to = ms;
        }
    }
}

static bool read_length(struct kv_head *head, struct text value, struct kv_error *err)
{
    uint64_t length;
    if (!number(value, &length)) return malformed("has a Content-Length that is no number", value, err);
    if (head->has_length && head->length != length)
        return malformed("has two different Content-Lengths", value, err);
    head->has_length = true;
    head->length = length;
    return true;
}

static void read_connection(struct kv_head *head, struct text value)
{
    while (value.bytes > 0) {
        struct text option = next_part(&value, ',');
        if (is(option, "close")) head->keep = false;
    }
}

static bool read_header(struct kv_head *head, struct text line, struct kv_error *err)
{
    const char *colon = memchr(line.at, ':', line.bytes);
    if (!colon || colon == line.at) return malformed("has a line that is no header", line, err);
    struct text name = {line.at, (size_t)(colon - line.at)};
    if (trim(name).bytes != name.bytes) return malformed("has a line that is no header", line, err);
    struct text value = trim((struct text){colon + 1, line.bytes - name.bytes - 1});
    uint64_t seconds;
    if (is(name, "content-length")) return read_length(head, value, err);
    if (is(name, "transfer-encoding") && !is(value, "identity")) {
        malformed("comes with a Transfer-Encoding, which the service never uses", value, err);
        kv_error_hint(err,
                      "A proxy in between may do this: have it pass replies on with their Content-Length.");
        return false;
    }
    if (is(name, "content-encoding") && !is(value, "identity")) {
        return malformed("comes with a Content-Encoding, which the client did not ask for", value, err);
    }
    if (is(name, "connection")) read_connection(head, value);
    if (is(name, "content-type")) copy(head->content_type, sizeof head->content_type, value);
    if (is(name, "x-request-id")) copy(head->request_id, sizeof head->request_id, value);
    if (is(name, "server-timing")) read_timing(head, value);
    if (is(name, "retry-after") && number(value, &seconds) && seconds <= INT32_MAX) {
        head->retry_after_s = (int32_t)seconds;
    }
    return true;
}

bool kv_head_parse(struct kv_head *head, const char *bytes, size_t count, struct kv_error *err)
{
    *head = (struct kv_head){.keep = true, .retry_after_s = -1, .queue_ms = -1, .device_ms = -1};
    struct text rest = {bytes, count};
    struct text line = next_line(&rest);
    /* HTTP/1.1 200 OK */
    bool fits = line.bytes >= 12 && memcmp(line.at, "HTTP/1.", 7) == 0 &&
                (line.at[7] == '0' || line.at[7] == '1') && line.at[8] == ' ' &&
                (line.bytes == 12 || line.at[12] == ' ');
    uint64_t status = 0;
    if (!fits || !number((struct text){line.at + 9, 3}, &status) || status < 100 || status > 599) {
        return malformed("does not begin like HTTP/1.x", line, err);
    }
    head->status = (int32_t)status;
    if (line.at[7] == '0') head->keep = false;
    while (rest.bytes > 0) {
        line = next_line(&rest);
        if (line.bytes == 0) break;
        if (*line.at == ' ' || *line.at == '\t') return malformed("has a folded header", line, err);
        if (memchr(line.at, '\0', line.bytes)) return malformed("has a zero byte in a header", line, err);
        if (!read_header(head, line, err)) return false;
    }
    return true;
}
