/* Writes files under a temporary name and renames them when they are whole. Knows no content. */
#include "client/output.h"

#include "client/channel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

void kv_output_catch_signals(void)
{
    const struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static bool unusable(const struct kv_output *output, const char *what, int cause, struct kv_error *err)
{
    return kv_fail_param(err, KV_FILE_UNUSABLE, output->path, "Cannot %s %s: %s", what, output->path,
                         strerror(cause));
}

/* ".NAME.PID.tmp" in the folder of `path`: the same file system, and out of the way of patterns. */
static bool name_temporary(struct kv_output *output, const char *path, struct kv_error *err)
{
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    int bytes = snprintf(output->temporary, sizeof output->temporary, "%.*s.%s.%d.tmp", folder, path,
                         path + folder, (int)getpid());
    if (bytes < 0 || (size_t)bytes >= sizeof output->temporary || path[folder] == '\0') {
        return kv_fail_param(err, KV_FILE_UNUSABLE, "",
                             "The path is empty, names a folder or is too long: %s", path);
    }
    memcpy(output->path, path, strlen(path) + 1);
    return true;
}

bool kv_output_open(struct kv_output *output, const char *path, uint64_t bytes, struct kv_error *err)
{
    *output = (struct kv_output){.fd = -1};
    if (!name_temporary(output, path, err)) return false;
    output->buffer = malloc(KV_OUTPUT_BUFFER_BYTES);
    if (!output->buffer) return kv_fail(err, KV_INTERNAL, "There is no memory for a buffer of 1 MiB");
    struct stat info;
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return unusable(output, "write", EISDIR, err);
        output->direct = !S_ISREG(info.st_mode);
    }
    output->fd = output->direct ? open(path, O_WRONLY | O_CLOEXEC)
                                : open(output->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output->fd < 0) return unusable(output, "create", errno, err);
    output->open = true;
    if (bytes > INT64_MAX) return unusable(output, "write", EFBIG, err);
    if (bytes > 0 && !output->direct && fallocate(output->fd, 0, 0, (off_t)bytes) != 0 &&
        (errno == ENOSPC || errno == EFBIG)) {
        unusable(output, "reserve the space for", errno, err);
        kv_error_hint(err, "%llu bytes are needed.", (unsigned long long)bytes);
        return false;
    }
    return true;
}

static bool flush(struct kv_output *output, const unsigned char *from, size_t bytes, struct kv_error *err)
{
    while (bytes > 0) {
        if (interrupted)
            return kv_fail_param(err, KV_FILE_UNUSABLE, output->path, "Interrupted: %s was not written",
                                 output->path);
        ssize_t now = write(output->fd, from, bytes);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) return unusable(output, "write", errno, err);
        from += now;
        bytes -= (size_t)now;
        output->written += (uint64_t)now;
    }
    return true;
}

static bool flush_buffer(struct kv_output *output, struct kv_error *err)
{
    size_t bytes = output->buffered;
    output->buffered = 0;
    return flush(output, output->buffer, bytes, err);
}

bool kv_output_room(struct kv_output *output, size_t bytes, void **to, struct kv_error *err)
{
    assert(bytes <= KV_OUTPUT_BUFFER_BYTES);
    if (output->buffered + bytes > KV_OUTPUT_BUFFER_BYTES && !flush_buffer(output, err)) return false;
    *to = output->buffer + output->buffered;
    return true;
}

void kv_output_filled(struct kv_output *output, size_t bytes)
{
    assert(output->buffered + bytes <= KV_OUTPUT_BUFFER_BYTES);
    output->buffered += bytes;
}

bool kv_output_write(struct kv_output *output, const void *from, size_t bytes, struct kv_error *err)
{
    void *to = NULL;
    if (bytes > KV_OUTPUT_BUFFER_BYTES) return flush_buffer(output, err) && flush(output, from, bytes, err);
    if (!kv_output_room(output, bytes, &to, err)) return false;
    memcpy(to, from, bytes);
    kv_output_filled(output, bytes);
    return true;
}

bool kv_output_finish(struct kv_output *output, struct kv_error *err)
{
    if (!flush_buffer(output, err)) return false;
    /* A reservation may be longer than what was written. */
    if (!output->direct && ftruncate(output->fd, (off_t)output->written) != 0)
        return unusable(output, "write", errno, err);
    int status = close(output->fd);
    output->fd = -1;
    return status == 0 || unusable(output, "write", errno, err);
}

bool kv_output_place(struct kv_output *output, struct kv_error *err)
{
    assert(output->open && output->fd < 0);
    if (!output->direct && rename(output->temporary, output->path) != 0)
        return unusable(output, "rename a finished file to", errno, err);
    output->open = false;
    return true;
}

void kv_output_close(struct kv_output *output)
{
    if (output->open) {
        if (output->fd >= 0) close(output->fd);
        if (!output->direct) unlink(output->temporary);
    }
    free(output->buffer);
    *output = (struct kv_output){.fd = -1};
}

void kv_progress_begin(struct kv_progress *progress, const char *what, uint64_t total)
{
    int64_t now = kv_clock_ms();
    *progress =
        (struct kv_progress){.what = what, .total = total, .begin_ms = now, .on = isatty(STDERR_FILENO) == 1};
}

void kv_progress_show(struct kv_progress *progress, uint64_t done)
{
    static const char full[] = "########################################";
    if (!progress->on || progress->total == 0) return;
    int64_t now = kv_clock_ms();
    if (now - progress->begin_ms < 1000 || now - progress->shown_ms < 100) return;
    progress->shown_ms = now;
    progress->drawn = true;
    double part = (double)done / (double)progress->total;
    if (part > 1) part = 1;
    int bar = (int)(part * 40);
    fprintf(stderr, "\r%s [%-40.*s] %3d%% %llu MiB", progress->what, bar, full, (int)(part * 100),
            (unsigned long long)(done >> 20));
    fflush(stderr);
}

void kv_progress_end(struct kv_progress *progress)
{
    if (progress->drawn) fprintf(stderr, "\r\033[K");
    progress->drawn = false;
}
