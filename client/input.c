/* Maps a file for reading. */
#include "client/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool unusable(const char *path, int cause, struct kv_error *err)
{
    return kv_fail_param(err, KV_FILE_UNUSABLE, path, "Cannot read %s: %s", path, strerror(cause));
}

bool kv_input_file_open(struct kv_input_file *file, const char *path, struct kv_error *err)
{
    struct stat info;
    *file = (struct kv_input_file){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return unusable(path, errno, err);
    int cause = 0;
    if (fstat(fd, &info) != 0) {
        cause = errno;
    } else if (!S_ISREG(info.st_mode)) {
        cause = S_ISDIR(info.st_mode) ? EISDIR : ESPIPE;
    } else if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            cause = errno;
        } else {
            file->bytes = bytes;
            file->size = (uint64_t)info.st_size;
        }
    }
    close(fd);
    return cause == 0 || unusable(path, cause, err);
}

void kv_input_file_close(struct kv_input_file *file)
{
    if (file->bytes) munmap((void *)(uintptr_t)file->bytes, (size_t)file->size);
    *file = (struct kv_input_file){0};
}
