/* kvmatd: reads the options and does what they say. */
#include "server/log.h"
#include "server/service.h"
#include "server/version.h"

#include <fcntl.h>
#include <unistd.h>

/* What a parent closed is opened on nothing: else a connection would get the number of the log. */
static void fill_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    struct kv_options options;
    struct kv_error err = {0};
    if (!kv_options_parse(&options, argc, argv, &err)) {
        fprintf(stderr, "kvmatd: %s\n", err.message);
        if (err.hint[0]) fprintf(stderr, "%s\n", err.hint);
        return KV_EXIT_USAGE;
    }
    if (options.help) {
        kv_options_print_help(stdout);
        return KV_EXIT_OK;
    }
    if (options.version) {
        printf("kvmatd %s\n", kv_version);
        return KV_EXIT_OK;
    }
    kv_log_open(options.log_json ? KV_LOG_JSON : KV_LOG_TEXT);
    if (options.check) return (int)kv_service_check(&options);
    bool left_behind = false;
    enum kv_exit status = kv_service_run(&options, kv_backends(), &left_behind);
    /* No handlers at exit beside a thread that is stuck in a driver: the driver's own would wait for it. */
    if (left_behind) _exit((int)status);
    return (int)status;
}
