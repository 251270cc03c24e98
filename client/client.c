/* The client object: a URL, a connection that is kept between calls, and one retry when it has gone stale.
 * Knows no message; client/materialize.c does. */
#include "client/client.h"

#include "client/roundtrip.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_MS = 5000, SILENCE_MS = 60000 };
#define REPLY_BYTES_MAX (2ull << 30)

struct kv_client {
    struct kv_url url;
    struct kv_client_options options;
    struct kv_roundtrip trip;
    uint64_t connections; /* opened so far */
    size_t head_bytes;
    char head[KV_CLIENT_HEAD_BYTES_MAX];
};

bool kv_client_open(struct kv_client **out, const char *url, const struct kv_client_options *options,
                    struct kv_error *err)
{
    struct kv_url parsed;
    *out = NULL;
    if (!kv_url_parse(&parsed, url, err)) return false;
    struct kv_client *client = calloc(1, sizeof *client);
    if (!client) return kv_fail(err, KV_INTERNAL, "There is no memory for a client object");
    client->url = parsed;
    if (options) client->options = *options;
    struct kv_client_options *set = &client->options;
    if (set->connect_ms <= 0) set->connect_ms = CONNECT_MS;
    if (set->silence_ms <= 0) set->silence_ms = SILENCE_MS;
    if (set->reply_bytes_max == 0) set->reply_bytes_max = REPLY_BYTES_MAX;
    client->trip.channel = (struct kv_channel){.fd = -1, .url = &client->url, .silence_ms = set->silence_ms};
    client->trip.reply_bytes_max = set->reply_bytes_max;
    *out = client;
    return true;
}

void kv_client_close(struct kv_client *client)
{
    if (!client) return;
    kv_roundtrip_free(&client->trip);
    free(client);
}

uint64_t kv_client_connections(const struct kv_client *client)
{
    return client->connections;
}

static bool add(struct kv_client *client, struct kv_error *err, const char *format, ...) KV_PRINTF(3, 4);

static bool add(struct kv_client *client, struct kv_error *err, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    size_t room = sizeof client->head - client->head_bytes;
    int bytes = vsnprintf(client->head + client->head_bytes, room, format, values);
    va_end(values);
    if (bytes < 0 || (size_t)bytes >= room) {
        return kv_fail_values(err, KV_PARAMETER_INVALID, "", kv_integer((int64_t)sizeof client->head),
                              kv_none(),
                              "The request's header section is longer than the client's bound in bytes");
    }
    client->head_bytes += (size_t)bytes;
    return true;
}

/* Bytes that may stand in a header's name, or in a method or path, without changing what the line means. */
static bool is_token(const char *text, const char *also)
{
    if (!text || *text == '\0') return false;
    for (const char *at = text; *at; at++) {
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9');
        if (!letter && !strchr("-_.", *at) && !strchr(also, *at)) return false;
    }
    return true;
}

static bool add_headers(struct kv_client *client, const struct kv_header *headers, int32_t count,
                        struct kv_error *err)
{
    if (count > KV_CLIENT_HEADERS_MAX) {
        return kv_fail_values(err, KV_PARAMETER_INVALID, "", kv_integer(KV_CLIENT_HEADERS_MAX),
                              kv_integer(count), "More headers than the client sends");
    }
    static const char *const own[] = {"host", "content-length", "connection", "transfer-encoding"};
    for (int32_t i = 0; i < count; i++) {
        const struct kv_header *header = &headers[i];
        if (!header->value) continue;
        if (!is_token(header->name, "")) {
            return kv_fail(err, KV_PARAMETER_INVALID, "A header has a name that is no token");
        }
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
            if (strcasecmp(header->name, own[k]) != 0) continue;
            return kv_fail_param(err, KV_PARAMETER_INVALID, header->name,
                                 "The client writes this header itself: %s", header->name);
        }
        for (const char *at = header->value; *at; at++) {
            unsigned char byte = (unsigned char)*at;
            if (byte >= 0x20 && byte != 0x7f) continue;
            return kv_fail_param(err, KV_PARAMETER_INVALID, header->name,
                                 "The value of the header %s has a control byte", header->name);
        }
        if (!add(client, err, "%s: %s\r\n", header->name, header->value)) return false;
    }
    return true;
}

static bool add_key(struct kv_client *client, struct kv_error *err)
{
    char value[sizeof "Bearer " + KV_CLIENT_KEY_BYTES_MAX];
    const char *key = client->options.api_key;
    if (!key) return true;
    if (strlen(key) > KV_CLIENT_KEY_BYTES_MAX)
        return kv_fail_values(err, KV_PARAMETER_INVALID, "api_key", kv_integer(KV_CLIENT_KEY_BYTES_MAX),
                              kv_integer((int64_t)strlen(key)), "The API key has too many bytes");
    snprintf(value, sizeof value, "Bearer %s", key);
    return add_headers(client, &(struct kv_header){"Authorization", value}, 1, err);
}

static bool write_head(struct kv_client *client, const char *method, const char *path,
                       const struct kv_header *headers, int32_t header_count, uint64_t body_bytes,
                       bool has_body, struct kv_error *err)
{
    client->head_bytes = 0;
    if (!is_token(method, ""))
        return kv_fail_param(err, KV_PARAMETER_INVALID, "method", "The method is no token");
    if (!path || *path != '/' || !is_token(path, "/~%!$&'()*+,;=:@?")) {
        return kv_fail_param(err, KV_PARAMETER_INVALID, "path",
                             "The path does not begin with / or has a byte that must "
                             "be escaped");
    }
    if (!add(client, err, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, client->url.authority))
        return false;
    if (!add_headers(client, headers, header_count, err) || !add_key(client, err)) return false;
    if (has_body && !add(client, err, "Content-Length: %llu\r\n", (unsigned long long)body_bytes))
        return false;
    return add(client, err, "\r\n");
}

/* One attempt. A connection that was kept from an earlier call is tried first (*kept). */
static bool attempt(struct kv_client *client, const struct iovec *parts, int32_t part_count, bool bodiless,
                    bool *kept, struct kv_response *response, struct kv_error *err)
{
    struct kv_roundtrip *trip = &client->trip;
    struct iovec all[KV_CLIENT_PARTS_MAX + 1];
    if (trip->channel.fd >= 0 && kv_channel_is_stale(&trip->channel)) kv_channel_close(&trip->channel);
    *kept = trip->channel.fd >= 0;
    trip->replied = trip->gone = false;
    if (!*kept && !kv_channel_connect(&trip->channel, client->options.connect_ms, err)) return false;
    if (!*kept) client->connections++;
    all[0] = (struct iovec){client->head, client->head_bytes};
    if (part_count > 0) memcpy(all + 1, parts, (size_t)part_count * sizeof *parts);
    bool whole = kv_roundtrip_run(trip, all, part_count + 1, bodiless, response, err);
    if (!whole || !trip->keep) kv_channel_close(&trip->channel);
    return whole;
}

bool kv_client_call(struct kv_client *client, const char *method, const char *path,
                    const struct kv_header *headers, int32_t header_count, const struct iovec *parts,
                    int32_t part_count, struct kv_response *response, struct kv_error *err)
{
    *response = (struct kv_response){0};
    if (part_count > KV_CLIENT_PARTS_MAX) {
        return kv_fail_values(err, KV_PARAMETER_INVALID, "", kv_integer(KV_CLIENT_PARTS_MAX),
                              kv_integer(part_count), "The body has more parts than the client sends");
    }
    uint64_t bytes = 0;
    for (int32_t i = 0; i < part_count; i++) bytes += parts[i].iov_len;
    bool has_body = part_count > 0 || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0;
    if (!write_head(client, method, path, headers, header_count, bytes, has_body, err)) return false;

    int32_t call_ms = client->options.call_ms;
    client->trip.channel.deadline_ms = call_ms > 0 ? kv_clock_ms() + call_ms : 0;
    bool bodiless = strcmp(method, "HEAD") == 0, kept = false;
    struct kv_error first = {0};
    if (attempt(client, parts, part_count, bodiless, &kept, response, &first)) return true;
    /* A service may close an idle connection just as the next request goes out; then it has not seen that
     * request. A time limit that passed is another matter: the service may be working on it. */
    if (kept && client->trip.gone && !client->trip.replied) {
        return attempt(client, parts, part_count, bodiless, &kept, response, err);
    }
    if (err && err->fault == KV_OK) *err = first;
    return false;
}
