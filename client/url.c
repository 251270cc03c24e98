/* Parses the address of a daemon. Knows no socket and looks up no name. */
#include "client/url.h"

#include <stdio.h>
#include <string.h>

static bool refuse(const char *text, const char *why, struct kv_error *err)
{
    kv_fail_values(err, KV_OPTION_INVALID, "url", kv_none(), kv_text(text), "The address %s", why);
    kv_error_hint(err, "Write http://HOST:PORT, http://[IPV6]:PORT or unix:PATH, for example "
                       "http://127.0.0.1:8600.");
    return false;
}

static bool parse_unix(struct kv_url *url, const char *text, struct kv_error *err)
{
    const char *path = text + strlen("unix:");
    size_t bytes = strlen(path);
    if (bytes == 0) return refuse(text, "names no path after unix:", err);
    if (bytes >= sizeof url->path) return refuse(text, "has a socket path of more than 107 bytes", err);
    url->is_unix = true;
    memcpy(url->path, path, bytes + 1);
    snprintf(url->authority, sizeof url->authority, "localhost");
    snprintf(url->text, sizeof url->text, "unix:%s", url->path);
    return true;
}

static bool parse_port(struct kv_url *url, const char *text, const char *port, struct kv_error *err)
{
    size_t digits = strspn(port, "0123456789");
    const char *rest = port + digits;
    if (*rest == '/' && rest[1] == '\0') rest++;
    if (*rest != '\0') return refuse(text, "has something other than a port after the last colon", err);
    if (digits == 0 || digits > 5) return refuse(text, "has no port from 1 to 65535", err);
    int32_t number = 0;
    for (size_t i = 0; i < digits; i++) number = number * 10 + (port[i] - '0');
    if (number < 1 || number > 65535) return refuse(text, "has no port from 1 to 65535", err);
    snprintf(url->port, sizeof url->port, "%d", number % 100000);
    return true;
}

static bool host_is_plain(const char *host, size_t bytes, bool bracketed)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = host[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (letter || strchr("-._", c) || (bracketed && strchr(":%", c))) continue;
        return false;
    }
    return bytes > 0;
}

bool kv_url_parse(struct kv_url *url, const char *text, struct kv_error *err)
{
    *url = (struct kv_url){0};
    if (!text) return refuse("", "is missing", err);
    if (strncmp(text, "unix:", 5) == 0) return parse_unix(url, text, err);
    if (strncmp(text, "https://", 8) == 0)
        return refuse(text, "asks for TLS, which this client does not speak", err);
    if (strncmp(text, "http://", 7) != 0) return refuse(text, "starts with neither http:// nor unix:", err);

    const char *host = text + 7, *end, *port;
    bool bracketed = *host == '[';
    if (bracketed) {
        host++;
        end = strchr(host, ']');
        if (!end) return refuse(text, "has no ] after its [", err);
        port = end + 1;
    } else {
        end = host + strcspn(host, ":/");
        port = end;
    }
    if (*port != ':') return refuse(text, "has no port", err);
    size_t bytes = (size_t)(end - host);
    if (bytes >= sizeof url->host || !host_is_plain(host, bytes, bracketed)) {
        return refuse(text, "has no plain host name or address", err);
    }
    if (!parse_port(url, text, port + 1, err)) return false;
    memcpy(url->host, host, bytes);
    snprintf(url->authority, sizeof url->authority, "%s%s%s:%s", bracketed ? "[" : "", url->host,
             bracketed ? "]" : "", url->port);
    snprintf(url->text, sizeof url->text, "http://%s%s%s:%s", bracketed ? "[" : "", url->host,
             bracketed ? "]" : "", url->port);
    return true;
}
