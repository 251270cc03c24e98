/* The daemon's options: defaults, flags, environment, and what is said of a wrong value. */
#include "server/options.h"
#include "tests/suite.h"

#include <stdlib.h>
#include <string.h>

static bool parse(struct kv_options *options, struct kv_error *err, const char *const *arguments)
{
    char *argv[16] = {(char[]){"kvmatd"}};
    int argc = 1;
    while (arguments[argc - 1]) {
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
        argc++;
    }
    return kv_options_parse(options, argc, argv, err);
}

#define PARSE(options, err, ...) parse(options, err, (const char *const[]){__VA_ARGS__, NULL})

START_TEST(test_defaults)
{
    struct kv_options options;
    ck_assert(PARSE(&options, NULL, "--model", "m"));
    ck_assert_str_eq(options.model, "m");
    ck_assert_int_eq(options.listens, 1);
    ck_assert_str_eq(options.listen[0], "127.0.0.1:8600");
    ck_assert_str_eq(options.device, "auto");
    ck_assert_ptr_null(options.name);
    ck_assert_int_eq(options.max_tokens, 16384);
    ck_assert_int_eq(options.max_body, 536870912);
    ck_assert_int_eq(options.max_queue, 256);
    ck_assert_int_eq(options.max_connections, 1024);
    ck_assert_int_eq(options.idle_timeout, 60);
    ck_assert_ptr_null(options.admin_listen);
    ck_assert_int_eq(options.max_batch_tokens, 8192);
    ck_assert_int_eq(options.batch_delay_us, 0);
    ck_assert_int_eq(options.spin_us, -1); /* what the device says */
    ck_assert_int_eq(options.drain_timeout, 30);
    ck_assert_int_eq(options.drain_grace, 0);
    ck_assert_int_eq(options.device_timeout, 30);
    ck_assert_int_eq(options.unix_mode, 0660);
    ck_assert(!options.api_key_file && !options.tls_cert && !options.tls_key);
    ck_assert(options.tune && !options.log_json && !options.check && !options.allow_anonymous);
    ck_assert(options.rope_theta == 0 && options.rope_attention_factor == -1);
}
END_TEST

START_TEST(test_flags)
{
    struct kv_options options;
    ck_assert(PARSE(&options, NULL, "--model=m", "--max-body=2MiB", "--pool-bytes", "3G", "--rope-theta=1e6",
                    "--rope-attention-factor", "0", "--tune=off", "--log-format", "json", "--check"));
    ck_assert_int_eq(options.max_body, 2 << 20);
    ck_assert_int_eq(options.pool_bytes, 3221225472);
    ck_assert(options.rope_theta == 1e6 && options.rope_attention_factor == 0);
    ck_assert(!options.tune && options.log_json && options.check);
    ck_assert(PARSE(&options, NULL, "--model", "m", "--listen", "a:1", "--listen=unix:b"));
    ck_assert_int_eq(options.listens, 2);
    ck_assert_str_eq(options.listen[1], "unix:b");
}
END_TEST

START_TEST(test_access)
{
    struct kv_options options;
    struct kv_error err = {0};
    ck_assert(PARSE(&options, NULL, "--model=m", "--api-key-file", "keys", "--tls-cert=c", "--tls-key=k",
                    "--unix-mode", "0600", "--allow-anonymous"));
    ck_assert_str_eq(options.api_key_file, "keys");
    ck_assert_str_eq(options.tls_cert, "c");
    ck_assert_str_eq(options.tls_key, "k");
    ck_assert_int_eq(options.unix_mode, 0600);
    ck_assert(options.allow_anonymous);
    ck_assert(PARSE(&options, NULL, "--model=m", "--unix-mode", "1"));
    ck_assert_int_eq(options.unix_mode, 1);
    ck_assert(PARSE(&options, NULL, "--model=m", "--unix-mode=777"));
    ck_assert_int_eq(options.unix_mode, 0777);
    ck_assert(!PARSE(&options, &err, "--model=m", "--tls-cert", "c"));
    ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
    ck_assert_str_eq(err.param, "--tls-key");
    err = (struct kv_error){0};
    ck_assert(!PARSE(&options, &err, "--model=m", "--tls-key", "k"));
    ck_assert_str_eq(err.param, "--tls-cert");
    setenv("KVMAT_UNIX_MODE", "640", 1);
    setenv("KVMAT_API_KEY_FILE", "keys of the environment", 1);
    setenv("KVMAT_ALLOW_ANONYMOUS", "1", 1);
    ck_assert(PARSE(&options, NULL, "--model=m"));
    ck_assert_int_eq(options.unix_mode, 0640);
    ck_assert_str_eq(options.api_key_file, "keys of the environment");
    ck_assert(options.allow_anonymous);
}
END_TEST

START_TEST(test_environment)
{
    struct kv_options options;
    struct kv_error err = {0};
    setenv("KVMAT_MODEL", "from the environment", 1);
    setenv("KVMAT_MAX_QUEUE", "7", 1);
    setenv("KVMAT_LISTEN", "a:1, unix:b", 1);
    setenv("KVMAT_CHECK", "true", 1);
    setenv("KVMAT_NAME", "", 1); /* empty is unset */
    ck_assert(PARSE(&options, NULL, "--max-tokens", "5"));
    ck_assert_str_eq(options.model, "from the environment");
    ck_assert_int_eq(options.max_queue, 7);
    ck_assert_int_eq(options.listens, 2);
    ck_assert_str_eq(options.listen[0], "a:1");
    ck_assert(options.check);
    ck_assert_ptr_null(options.name);
    ck_assert(PARSE(&options, NULL, "--max-queue", "8", "--listen", "c:3")); /* a flag beats it */
    ck_assert_int_eq(options.max_queue, 8);
    ck_assert_int_eq(options.listens, 1);
    ck_assert_str_eq(options.listen[0], "c:3");
    setenv("KVMAT_SPIN_US", "soon", 1);
    ck_assert(!PARSE(&options, &err, "--max-queue", "8"));
    ck_assert_str_eq(err.param, "--spin-us");
    ck_assert(strstr(err.hint, "KVMAT_SPIN_US"));
}
END_TEST

START_TEST(test_wrong)
{
    static const char *const wrong[][2] = {
        {"--max-tokens", "0"},
        {"--max-tokens", "-1"},
        {"--max-tokens", "12x"},
        {"--max-tokens", ""},
        {"--max-tokens", " 5"},
        {"--max-tokens", "1e3"},
        {"--max-connections", "0"},
        {"--idle-timeout", "0"},
        {"--admin-listen", ""},
        {"--max-queue", "0"},
        {"--max-body", "5TiB"},
        {"--max-body", "1"},
        {"--pool-bytes", "99999999999999999999"},
        {"--rope-theta", "0"},
        {"--rope-theta", "nan"},
        {"--rope-theta", "inf"},
        {"--rope-theta", "x"},
        {"--tune", "yes"},
        {"--rope-attention-factor", "-1"},
        {"--log-format", "xml"},
        {"--drain-timeout", "-1"},
        {"--device-timeout", "-1"},
        {"--device-timeout", "86401"},
        {"--model", ""},
        {"--pool-bytes", "9223372036854775807K"},
        {"--unix-mode", "0"},
        {"--unix-mode", "0000"},
        {"--unix-mode", "1000"},
        {"--unix-mode", "888"},
        {"--unix-mode", "0o66"},
        {"--unix-mode", "-1"},
        {"--unix-mode", " 660"},
        {"--unix-mode", "00660"},
        {"--unix-mode", "rw-rw----"},
        {"--api-key-file", ""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct kv_options options;
        struct kv_error err = {0};
        ck_assert_msg(!PARSE(&options, &err, "--model", "m", wrong[i][0], wrong[i][1]), "%s %s is taken",
                      wrong[i][0], wrong[i][1]);
        ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
        ck_assert_str_eq(err.param, wrong[i][0]);
        ck_assert_int_ne(err.expected.kind, KV_VALUE_NONE);
    }
    struct kv_options options;
    struct kv_error err = {0};
    ck_assert(!PARSE(&options, &err, "--model", "m", "--max-tokens")); /* no value */
    ck_assert(!PARSE(&options, &err, "--model", "m", "stray"));
    ck_assert(!PARSE(&options, &err, "--model", "m", "--check=1"));
    ck_assert(!PARSE(&options, &err, "--model", "m", "--max", "5"));
    ck_assert(!PARSE(&options, &err, "--check")); /* no model */
    ck_assert(PARSE(&options, &err, "--help"));   /* needs none */
}
END_TEST

/* --help names options with their values, defaults, and what the exit status means. */
START_TEST(test_help)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    kv_options_print_help(to);
    fclose(to);
    ck_assert(strstr(text, "--max-batch-tokens N"));
    ck_assert(strstr(text, "[127.0.0.1:8600]"));
    ck_assert(strstr(text, "Exit status"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/options");
    TCase *cases = tcase_create("options");
    tcase_add_test(cases, test_defaults);
    tcase_add_test(cases, test_flags);
    tcase_add_test(cases, test_access);
    tcase_add_test(cases, test_environment);
    tcase_add_test(cases, test_wrong);
    tcase_add_test(cases, test_help);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
