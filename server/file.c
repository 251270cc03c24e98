/* Files through open, fstat and pread. Non-regular files are refused after opening without blocking on them.
 */
#include "server/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool cannot_open(int folder, const char *name, enum kv_fault absent, int reason, struct kv_error *err)
{
    bool dangling = reason == ENOENT && kv_file_exists(folder, name);
    kv_fail_param(err, absent, name, "%.128s cannot be opened: %s", name,
                  dangling ? "it is a link to nothing" : strerror(reason));
    if (dangling) kv_error_hint(err, "Download the model again: the file behind the link is gone.");
    if (reason == EACCES) kv_error_hint(err, "Let the user that runs the daemon read the model's folder.");
    if (reason == EMFILE) kv_error_hint(err, "Raise the limit of open files (ulimit -n).");
    return false;
}

bool kv_file_open(struct kv_file *file, int folder, const char *name, enum kv_fault absent,
                  enum kv_fault broken, struct kv_error *err)
{
    *file = (struct kv_file){0};
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return cannot_open(folder, name, absent, errno, err);
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return kv_fail_param(err, broken, name, "%.128s is not a regular file", name);
    }
    file->name = strdup(name);
    if (!file->name) {
        close(fd);
        return kv_fail(err, KV_INTERNAL, "out of memory for a file name");
    }
    file->fd = fd;
    file->bytes = (uint64_t)about.st_size;
    file->fault = broken;
    return true;
}

bool kv_file_read(const struct kv_file *file, uint64_t offset, void *to, size_t bytes, struct kv_error *err)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(file->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return kv_fail_param(err, file->fault, file->name,
                                 "%.128s cannot be read at byte %" PRIu64 ": %s", file->name, offset,
                                 strerror(errno));
        if (got == 0)
            return kv_fail_param(err, file->fault, file->name,
                                 "%.128s ends at byte %" PRIu64 ", %zu bytes before it should", file->name,
                                 offset, bytes);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

bool kv_file_exists(int folder, const char *name)
{
    struct stat about;
    return fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) == 0;
}

void kv_file_close(struct kv_file *file)
{
    if (!file->name) return;
    close(file->fd);
    free(file->name);
    *file = (struct kv_file){0};
}
