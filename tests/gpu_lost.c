/* The daemon when its GPU fails: one that has too little memory to begin with, and one that fails while it
 * serves. A kernel that fails is brought in by gpu_trap.cu, which is preloaded. */
#include "tests/daemon_rig.h"
#include "tests/golden.h"
#include "tests/tested_device.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char trap_library[1024];

/* Rows of 64 layers, a million of them: some 260 GB for the outputs of one batch. */
START_TEST(too_little_memory_ends_the_start)
{
    char folder[64], *errors = NULL;
    snprintf(folder, sizeof folder, "/tmp/kvmat_lost_%d", (int)getpid());
    const char *const make[] = {"make-model", "--layers",   "64",  "--hidden", "64", "--kv-heads",
                                "8",          "--head-dim", "128", folder,     NULL};
    ck_assert_int_eq(daemon_run(daemon_path("kvmat"), make, NULL, NULL), 0);
    const char *const serve[] = {"--model",  folder, "--listen",           "127.0.0.1:0",
                                 "--device", "cuda", "--max-batch-tokens", "1048576",
                                 NULL};
    int status = daemon_run(daemon_path("kvmatd"), serve, NULL, &errors);
    ck_assert_msg(status == 4, "exit status %d: %s", status, errors);
    ck_assert_msg(strstr(errors, "device_out_of_memory") && strstr(errors, "needed") &&
                      strstr(errors, "free"),
                  "%s", errors);
    free(errors);
    const char *const remove_it[] = {"-r", folder, NULL};
    ck_assert_int_eq(daemon_run("/bin/rm", remove_it, NULL, NULL), 0);
}
END_TEST

static struct golden_case golden_default(void)
{
    int at = 0;
    while (at < GOLDEN_CASES && strcmp(golden_case(at).name, "dflash_default") != 0) at++;
    ck_assert_int_lt(at, GOLDEN_CASES);
    return golden_case(at);
}

START_TEST(a_gpu_that_fails_ends_the_daemon)
{
    char file[64];
    struct golden_case golden = golden_default();
    struct daemon daemon;
    struct kv_client *client = NULL;
    struct kv_response ready;
    struct kv_reply_view reply;
    struct kv_error err = {0};
    uint64_t bytes;
    snprintf(file, sizeof file, "/tmp/kvmat_trap_%d", (int)getpid());
    unlink(file);
    ck_assert(setenv("LD_PRELOAD", trap_library, 1) == 0 && setenv("KVMAT_TRAP", file, 1) == 0);
    daemon_start(&daemon, golden.folder, (const char *const[]){"--device", "cuda", NULL});
    ck_assert(unsetenv("LD_PRELOAD") == 0 && unsetenv("KVMAT_TRAP") == 0);
    ck_assert_msg(daemon_await_ready(&daemon), "not ready; its log is %s", daemon.log_path);
    void *request = golden_read(&golden, "request.safetensors", &bytes);
    ck_assert_msg(kv_client_open(&client, daemon.url, NULL, &err), "%s", err.message);
    ck_assert_msg(kv_client_materialize_document(client, request, bytes, NULL, &reply, &err), "%s",
                  err.message);

    int fd = open(file, O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert(!kv_client_materialize_document(client, request, bytes, NULL, &reply, &err));
    ck_assert_msg(err.fault == KV_DEVICE_LOST, "%s: %s", kv_fault_info(err.fault)->code, err.message);
    ck_assert_msg(strstr(err.message, "failure") != NULL, "does not say what CUDA said: %s", err.message);
    /* It may be gone before this is asked; while it is there, it is not ready. */
    if (kv_client_call(client, "GET", "/ready", NULL, 0, NULL, 0, &ready, NULL))
        ck_assert_int_eq(ready.status, 503);
    ck_assert_int_eq(daemon_reap(&daemon), 4);
    ck_assert(daemon_logged(&daemon, "device_lost"));
    kv_client_close(client);
    free(request);
    unlink(file);
}
END_TEST

int main(int argc, char **argv)
{
    (void)argc;
    daemon_find(argv[0]);
    int status = tested_probe();
    if (status != 0) return status;
    snprintf(trap_library, sizeof trap_library, "%s", argv[0]);
    char *slash = strrchr(trap_library, '/');
    size_t at = slash ? (size_t)(slash + 1 - trap_library) : 0;
    snprintf(trap_library + at, sizeof trap_library - at, "gpu_trap.so");
    if (strcmp(tested_name(), "cuda") != 0 || access(trap_library, R_OK) != 0) {
        puts("a GPU that fails: 0 passed, 0 failed, 1 skipped");
        return 0;
    }
    Suite *suite = suite_create("gpu: the device fails");
    TCase *lost = tcase_create("lost");
    tcase_add_test(lost, too_little_memory_ends_the_start);
    tcase_add_test(lost, a_gpu_that_fails_ends_the_daemon);
    suite_add_tcase(suite, lost);
    return tested_run(suite);
}
