/* Lines are built on the stack and written by one write(2), so that lines of several threads never mix. */
#include "server/log.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

/* A line in the making; what does not fit is cut, the end of the line always fits. */
struct line {
    char text[LINE_BYTES];
    size_t bytes;
};

static enum kv_log_format log_format = KV_LOG_TEXT;

void kv_log_open(enum kv_log_format format)
{
    log_format = format;
}

static void put(struct line *line, const char *format, ...) KV_PRINTF(2, 3);
static void put(struct line *line, const char *format, ...)
{
    enum { ROOM = LINE_BYTES - 4 };
    if (line->bytes >= ROOM) return;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line->text + line->bytes, ROOM - line->bytes, format, arguments);
    va_end(arguments);
    if (wanted < 0) return;
    size_t left = ROOM - line->bytes - 1;
    line->bytes += (size_t)wanted < left ? (size_t)wanted : left;
}

/* A string between quotes; only ASCII is let through, so that a line is valid JSON whatever a caller sent. */
static void put_quoted(struct line *line, const char *text)
{
    put(line, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c && line->bytes < LINE_BYTES - 16; c++) {
        if (*c == '"' || *c == '\\')
            put(line, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            put(line, "?");
        else
            put(line, "%c", *c);
    }
    put(line, "\"");
}

static void put_member(struct line *line, const char *name, const char *value)
{
    if (!value || !value[0]) return;
    if (log_format == KV_LOG_JSON) {
        put(line, ",\"%s\":", name);
        put_quoted(line, value);
    } else if (strcspn(value, " \"\\") == strlen(value)) {
        put(line, " %s=%s", name, value);
    } else {
        put(line, " %s=", name);
        put_quoted(line, value);
    }
}

static void put_number(struct line *line, const char *name, double value, int decimals)
{
    put(line, log_format == KV_LOG_JSON ? ",\"%s\":%.*f" : " %s=%.*f", name, decimals, value);
}

static void begin(struct line *line, enum kv_log_level level)
{
    static const char *const names[] = {
        [KV_LOG_INFO] = "info", [KV_LOG_WARNING] = "warning", [KV_LOG_ERROR] = "error"};
    struct timeval now;
    struct tm utc;
    char second[32];
    gettimeofday(&now, NULL);
    gmtime_r(&now.tv_sec, &utc);
    strftime(second, sizeof second, "%Y-%m-%dT%H:%M:%S", &utc);
    put(line, log_format == KV_LOG_JSON ? "{\"time\":\"%s.%03dZ\",\"level\":\"%s\"" : "%s.%03dZ %s", second,
        (int)(now.tv_usec / 1000), names[level]);
}

static void end(struct line *line)
{
    if (log_format == KV_LOG_JSON) line->text[line->bytes++] = '}';
    line->text[line->bytes++] = '\n';
    /* A log that nobody reads must not stop the service: a line that would block is dropped, and counted. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t dropped;
    char note[128];
    pthread_mutex_lock(&lock);
    struct pollfd log = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&log, 1, 0) == 1 && (log.revents & POLLOUT) != 0) {
        if (dropped > 0 && log_format == KV_LOG_TEXT) {
            int bytes =
                snprintf(note, sizeof note, "(%llu lines before this one were dropped: nobody read them)\n",
                         (unsigned long long)dropped);
            if (write(STDERR_FILENO, note, (size_t)bytes) > 0) dropped = 0;
        }
        if (write(STDERR_FILENO, line->text, line->bytes) < 0) dropped++;
    } else {
        dropped++;
    }
    pthread_mutex_unlock(&lock);
}

void kv_log(enum kv_log_level level, const char *format, ...)
{
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* a line is one line, whatever a name holds */
    struct line line = {.bytes = 0};
    begin(&line, level);
    if (log_format == KV_LOG_JSON)
        put_member(&line, "message", message);
    else
        put(&line, " %s", message);
    end(&line);
}

void kv_log_error(const struct kv_error *err)
{
    char hint[KV_MESSAGE_BYTES];
    struct line line = {.bytes = 0};
    begin(&line, KV_LOG_ERROR);
    if (log_format == KV_LOG_JSON)
        put_member(&line, "message", err->message);
    else
        put(&line, " %s", err->message);
    put_member(&line, "code", kv_fault_info(err->fault)->code);
    put_member(&line, "hint", kv_error_hint_print(err, hint, sizeof hint));
    end(&line);
}

void kv_log_fields(enum kv_log_level level, const char *message, const struct kv_log_field *field,
                   int32_t count)
{
    struct line line = {.bytes = 0};
    begin(&line, level);
    if (log_format == KV_LOG_JSON)
        put_member(&line, "message", message);
    else
        put(&line, " %s", message);
    for (int32_t i = 0; i < count; i++) put_member(&line, field[i].name, field[i].value);
    end(&line);
}

void kv_log_finished(const struct kv_log_request *request)
{
    struct line line = {.bytes = 0};
    begin(&line, request->status >= 500 ? KV_LOG_WARNING : KV_LOG_INFO);
    if (log_format == KV_LOG_JSON)
        put_member(&line, "message", "request");
    else
        put(&line, " request");
    put_member(&line, "id", request->id);
    put_member(&line, "trace_id", request->trace_id);
    put_member(&line, "span_id", request->span_id);
    put_member(&line, "method", request->method);
    put_member(&line, "route", request->route);
    put_number(&line, "status", request->status, 0);
    put_member(&line, "code", request->code);
    if (request->tokens >= 0) put_number(&line, "tokens", (double)request->tokens, 0);
    put_number(&line, "body_bytes", (double)request->body_bytes, 0);
    put_number(&line, "reply_bytes", (double)request->reply_bytes, 0);
    put_number(&line, "queue_ms", (double)request->queue_us / 1e3, 3);
    put_number(&line, "device_ms", (double)request->device_us / 1e3, 3);
    put_number(&line, "total_ms", (double)request->total_us / 1e3, 3);
    put_member(&line, "error", request->error);
    end(&line);
}
