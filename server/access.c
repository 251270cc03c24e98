/* Files are read as a whole, and wiped when they are done with. */
#include "server/access.h"

#include "server/keys.h"
#include "server/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20 };

/* A file in memory, terminated. */
struct text {
    char *at;
    size_t bytes;
};

struct kv_access {
    struct kv_access_options options;
    struct text cert, key;
    pthread_rwlock_t lock; /* of keys */
    struct kv_keys *keys;  /* NULL: anybody may call */
};

static void wipe(struct text *text)
{
    if (text->at) explicit_bzero(text->at, text->bytes);
    free(text->at);
    *text = (struct text){0};
}

static bool check_file(const struct stat *about, bool secret, const char *option, const char *path,
                       struct kv_error *err)
{
    if (!S_ISREG(about->st_mode))
        return kv_fail_param(err, KV_OPTION_INVALID, option, "%.128s is not a regular file", path);
    if (secret && (about->st_mode & 0007) != 0) {
        char mode[16];
        snprintf(mode, sizeof mode, "%04o", (unsigned int)about->st_mode & 07777);
        kv_fail_values(err, KV_OPTION_INVALID, option, kv_text("no rights for others"), kv_text(mode),
                       "%.128s is open to others than its owner and group", path);
        kv_error_hint(err, "chmod o= %.128s", path);
        return false;
    }
    if (about->st_size > FILE_BYTES_MAX)
        return kv_fail_values(err, KV_OPTION_INVALID, option, kv_integer(FILE_BYTES_MAX),
                              kv_integer((int64_t)about->st_size), "%.128s has too many bytes", path);
    return true;
}

static bool read_whole(struct text *out, int fd, const char *option, const char *path, struct kv_error *err)
{
    out->at = malloc(FILE_BYTES_MAX + 1);
    if (!out->at) return kv_fail(err, KV_INTERNAL, "no memory for %.128s", path);
    while (out->bytes < FILE_BYTES_MAX) {
        ssize_t got = read(fd, out->at + out->bytes, FILE_BYTES_MAX - out->bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return kv_fail_param(err, KV_OPTION_INVALID, option, "%.128s cannot be read: %s", path,
                                 strerror(errno));
        if (got == 0) break;
        out->bytes += (size_t)got;
    }
    out->at[out->bytes] = '\0';
    return true;
}

/* `secret`: others than owner and group may not read it. */
static bool read_file(struct text *out, const char *option, const char *path, bool secret,
                      struct kv_error *err)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        kv_fail_param(err, KV_OPTION_INVALID, option, "%.128s cannot be opened: %s", path, strerror(errno));
        kv_error_hint(err, "Let the user that runs the daemon read it, as its owner or by its group.");
        return false;
    }
    bool ok =
        fstat(fd, &about) == 0 || kv_fail_param(err, KV_OPTION_INVALID, option,
                                                "%.128s cannot be looked at: %s", path, strerror(errno));
    ok = ok && check_file(&about, secret, option, path, err) && read_whole(out, fd, option, path, err);
    close(fd);
    if (!ok) wipe(out);
    return ok;
}

static bool read_pem(struct text *out, const char *option, const char *path, const char *mark, bool secret,
                     struct kv_error *err)
{
    if (!read_file(out, option, path, secret, err)) return false;
    if (strstr(out->at, mark)) return true;
    wipe(out);
    return kv_fail_values(err, KV_OPTION_INVALID, option, kv_text(mark), kv_none(),
                          "%.128s is no PEM file of the kind that is needed", path);
}

static bool read_keys(struct kv_keys **out, const char *path, struct kv_error *err)
{
    static const char option[] = "--api-key-file";
    struct text text = {0};
    *out = NULL;
    if (!read_file(&text, option, path, true, err)) return false;
    bool ok = kv_keys_parse(out, text.at, text.bytes, option, path, err);
    if (!ok) kv_error_hint(err, "Write one key a line; `openssl rand -hex 32` makes a good one.");
    wipe(&text);
    return ok;
}

bool kv_access_open(struct kv_access **out, const struct kv_access_options *options, struct kv_error *err)
{
    struct kv_access *access = calloc(1, sizeof *access);
    *out = NULL;
    if (!access) return kv_fail(err, KV_INTERNAL, "no memory for the API keys");
    access->options = *options;
    pthread_rwlock_init(&access->lock, NULL);
    bool ok = (!options->key_file || read_keys(&access->keys, options->key_file, err)) &&
              (!options->tls_cert || read_pem(&access->cert, "--tls-cert", options->tls_cert,
                                              "-----BEGIN CERTIFICATE-----", false, err)) &&
              (!options->tls_key ||
               read_pem(&access->key, "--tls-key", options->tls_key, "PRIVATE KEY-----", true, err));
    if (ok)
        *out = access;
    else
        kv_access_close(access);
    return ok;
}

void kv_access_close(struct kv_access *access)
{
    if (!access) return;
    wipe(&access->cert);
    wipe(&access->key);
    kv_keys_close(access->keys);
    pthread_rwlock_destroy(&access->lock);
    free(access);
}

void kv_access_reload(struct kv_access *access)
{
    struct kv_error err = {0};
    struct kv_keys *fresh = NULL;
    if (access->options.tls_cert)
        kv_log(KV_LOG_WARNING,
               "SIGHUP: the certificate stays: --tls-cert and --tls-key are read at start-up");
    if (!access->options.key_file) return;
    if (!read_keys(&fresh, access->options.key_file, &err)) {
        kv_log_error(&err);
        kv_log(KV_LOG_WARNING, "SIGHUP: the API keys stay as they were");
        return;
    }
    int32_t count = kv_keys_count(fresh);
    pthread_rwlock_wrlock(&access->lock);
    struct kv_keys *old = access->keys;
    access->keys = fresh;
    pthread_rwlock_unlock(&access->lock);
    kv_keys_close(old);
    kv_log(KV_LOG_INFO, "SIGHUP: API keys read again, %d in force", count);
}

bool kv_access_check(struct kv_access *access, int32_t count, const char *authorization, struct kv_error *err)
{
    static const char header[] = "Authorization";
    if (!access->options.key_file) return true;
    if (count != 1)
        return kv_fail_values(err, KV_UNAUTHORIZED, header, kv_integer(1), kv_integer(count),
                              count == 0 ? "there is no Authorization header"
                                         : "the Authorization header is given more than once");
    size_t bytes = 0;
    const char *key = kv_bearer_find(authorization, &bytes);
    if (!key)
        return kv_fail_values(err, KV_UNAUTHORIZED, header, kv_text("Bearer KEY"), kv_none(),
                              "the Authorization header is of another form");
    pthread_rwlock_rdlock(&access->lock);
    bool known = kv_keys_hold(access->keys, key, bytes);
    pthread_rwlock_unlock(&access->lock);
    return known || kv_fail_param(err, KV_UNAUTHORIZED, header, "the key is not known");
}

const char *kv_access_tls_cert(const struct kv_access *access)
{
    return access->cert.at;
}

const char *kv_access_tls_key(const struct kv_access *access)
{
    return access->key.at;
}

bool kv_access_refuse_tls(const struct kv_access *access, const char *reason, struct kv_error *err)
{
    kv_fail_param(err, KV_OPTION_INVALID, "--tls-cert", "%.80s and %.80s do not serve TLS: %s",
                  access->options.tls_cert, access->options.tls_key, reason);
    kv_error_hint(err, "The first certificate in the file is the daemon's own, and the key is that one's.");
    return false;
}
