/* kvmat bench as a command: what it prints, the files it writes, and how it exits. */
#include "client/bench_report.h"
#include "tests/bench_command.h"
#include "tests/suite.h"

#include <ctype.h>
#include <jansson.h>
#include <unistd.h>

static char folder[] = "/tmp/kvmat-report-XXXXXX";

static double line(const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\n%s ", name);
    const char *at = strstr(text, key);
    ck_assert_msg(at, "no line %s in:\n%s", name, text);
    return strtod(strchr(at, ' '), NULL);
}

START_TEST(lines_are_names_and_numbers)
{
    ck_assert_int_eq(bench_served(answer_well, "--requests 40 --tokens 5 --connections 2"), KV_EXIT_OK);
    char copy[8192];
    ck_assert_int_lt(snprintf(copy, sizeof copy, "%s", text), (int)sizeof copy);
    for (char *rest, *at = strtok_r(copy, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        char *end, *space = strchr(at, ' ');
        ck_assert_msg(space, "%s", at);
        strtod(space + 1, &end);
        ck_assert_msg(end > space + 1 && *end == '\0', "%s", at);
    }
    ck_assert_double_eq(line("connections"), 2);
    ck_assert_double_eq(line("tokens_per_request"), 5);
    ck_assert_double_eq(line("requests"), 40);
    ck_assert_double_eq(line("failed"), 0);
    ck_assert_double_gt(line("requests_per_s"), 0);
    ck_assert_double_gt(line("latency_ms_p50"), 0);
    ck_assert_double_ge(line("latency_ms_p99"), line("latency_ms_p50"));
    ck_assert_double_ge(line("latency_ms_max"), line("latency_ms_p99"));
    ck_assert(line("request_gb_per_s") >= 0 && line("reply_gb_per_s") >= 0);
    ck_assert_double_eq(line("device_ms_mean"), 2);
}
END_TEST

START_TEST(lines_of_a_mix_name_each_size)
{
    const char *words = "--rates 500,1000 --requests 60 --mix 2:1,4:1 --seed 3 --format lines";
    ck_assert_int_eq(bench_served(answer_well, words), KV_EXIT_OK);
    ck_assert_double_eq(line("rate_per_s"), 500);
    ck_assert_double_eq(line("requests_t2") + line("requests_t4"), 60);
    ck_assert_double_gt(line("latency_ms_p99_t4"), 0);
    ck_assert_ptr_nonnull(strstr(text, "\nrate_per_s 1000\n"));
    double mean = line("tokens_per_request");
    ck_assert(mean > 2 && mean < 4);
}
END_TEST

/* Columns as a terminal counts them; all is ASCII. */
static void check_columns(void)
{
    int columns = 0;
    for (const char *at = text; *at; at++) {
        columns = *at == '\n' ? 0 : columns + 1;
        ck_assert_msg(columns <= 80 && (*at == '\n' || isprint((unsigned char)*at)), "%s", text);
    }
}

START_TEST(tables_fit_a_terminal)
{
    const char *words = "--requests 80 --warmup 0 --mix 2:1,4:1 --format table --allow-errors";
    ck_assert_int_eq(bench_served(answer_in_turns, words), KV_EXIT_OK);
    check_columns();
    static const char *const parts[] = {"p50     p75     p90     p95     p99   p99.9     max ms\n",
                                        "closed loop, 1 connection\n",
                                        BENCH_MODEL_NAME " at http://",
                                        "\n        2 ",
                                        "\n      all         20 ",
                                        "  200  ok                                         20  25.00 %\n",
                                        "  429  queue_full                                 20  25.00 %\n",
                                        "  503  draining                                   20  25.00 %\n",
                                        "    -  connection lost                            20  25.00 %\n",
                                        "  19 connections were opened again\n",
                                        " |####################################"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(text, parts[i]), "no '%s' in:\n%s", parts[i], text);
    words = "--rates 300,600 --seconds 0.1 --format table";
    ck_assert_int_eq(bench_served(answer_well, words), KV_EXIT_OK);
    check_columns();
    ck_assert_ptr_nonnull(strstr(text, "open loop, constant arrivals, 0.1 s at each rate, 1 connection\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n      300 "));
    ck_assert_ptr_nonnull(strstr(text, "\n      600 "));
}
END_TEST

START_TEST(help_fits_a_terminal)
{
    ck_assert_int_eq(bench("unix:/nowhere", "--help"), KV_EXIT_OK);
    check_columns();
    ck_assert_ptr_nonnull(strstr(text, "Exit status: 0 "));
}
END_TEST

static int64_t count_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_integer(value), "%s is no integer", key);
    return json_integer_value(value);
}

/* Counts over the buckets, each longer than the one before. */
static int64_t histogram_of(const json_t *object)
{
    int64_t count = 0;
    double before = -1;
    size_t i;
    json_t *bucket;
    json_array_foreach(json_object_get(object, "histogram"), i, bucket)
    {
        double from = json_number_value(json_object_get(bucket, "from_ms"));
        ck_assert(from > before);
        before = json_number_value(json_object_get(bucket, "to_ms"));
        ck_assert(before >= from);
        count += count_of(bucket, "count");
    }
    return count;
}

static void check_json(json_t *root)
{
    ck_assert_msg(root, "%s", text);
    const json_t *settings = json_object_get(root, "settings"), *runs = json_object_get(root, "runs"),
                 *run = json_array_get(runs, 0), *answers = json_object_get(run, "answers"),
                 *sizes = json_object_get(run, "by_tokens");
    ck_assert_str_eq(json_string_value(json_object_get(settings, "model")), BENCH_MODEL_NAME);
    ck_assert_str_eq(json_string_value(json_object_get(settings, "loop")), "open");
    ck_assert_str_eq(json_string_value(json_object_get(settings, "arrivals")), "poisson");
    ck_assert_int_eq(count_of(settings, "seed"), 9);
    ck_assert(json_is_null(json_object_get(settings, "seconds")));
    ck_assert_uint_eq(json_array_size(json_object_get(settings, "mix")), 2);
    ck_assert_uint_eq(json_array_size(runs), 1);
    ck_assert_int_eq(count_of(run, "requests"), 10);
    ck_assert_int_eq(count_of(run, "failed"), 30);
    ck_assert_uint_eq(json_array_size(answers), 4);
    int64_t answered = 0;
    for (size_t i = 0; i < 4; i++) answered += count_of(json_array_get(answers, i), "count");
    ck_assert_int_eq(answered, 40);
    const json_t *latency = json_object_get(run, "latency_ms");
    double p50 = json_number_value(json_object_get(latency, "p50")),
           max = json_number_value(json_object_get(latency, "max"));
    ck_assert(p50 > 0 && max >= p50 && json_is_number(json_object_get(latency, "p99.9")));
    ck_assert_int_eq(histogram_of(run), 10);
    ck_assert_int_eq(histogram_of(json_array_get(sizes, 0)) + histogram_of(json_array_get(sizes, 1)), 10);
    json_decref(root);
}

START_TEST(json_has_all_of_it)
{
    char words[256], path[64];
    snprintf(path, sizeof path, "%s/j.json", folder);
    snprintf(words, sizeof words,
             "--rate 2000 --requests 40 --warmup 0 --arrivals poisson --seed 9 --mix 2:1,4:1 --format json "
             "--json %s",
             path);
    ck_assert_int_eq(bench_served(answer_in_turns, words), KV_EXIT_NO);
    check_json(json_loads(text, JSON_REJECT_DUPLICATES, NULL));
    check_json(json_load_file(path, JSON_REJECT_DUPLICATES, NULL));
    unlink(path);
}
END_TEST

/* Steps over one tag's attributes, name="value" each; returns what is behind them. */
static const char *skip_attributes(const char *at)
{
    while (*at == ' ') {
        at += strspn(at, " ");
        size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
        ck_assert_msg(name > 0 && strncmp(at + name, "=\"", 2) == 0, "an attribute at: %.40s", at);
        at += name + 2;
        at += strcspn(at, "\"<&");
        ck_assert_msg(*at == '"', "an attribute's value at: %.40s", at);
        at++;
    }
    return at;
}

/* Well-formed: one element, tags that close in order, and no bare < or & in text. */
static void check_xml(void)
{
    const char *open[16];
    int depth = 0, elements = 0;
    for (const char *at = text; *at;) {
        if (*at == '&') {
            bool known =
                strncmp(at, "&amp;", 5) == 0 || strncmp(at, "&lt;", 4) == 0 || strncmp(at, "&gt;", 4) == 0;
            ck_assert_msg(known, "an entity at: %.40s", at);
        }
        if (*at != '<') {
            ck_assert_msg(depth > 0 || isspace((unsigned char)*at), "text outside at: %.40s", at);
            at++;
            continue;
        }
        bool closing = at[1] == '/';
        const char *name = at + 1 + closing;
        size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz");
        ck_assert_msg(bytes > 0, "a tag at: %.40s", at);
        at = skip_attributes(name + bytes);
        if (closing) {
            ck_assert(depth-- > 0 && strncmp(open[depth], name, bytes) == 0);
        } else if (*at == '/') {
            at++;
        } else {
            ck_assert(depth > 0 || elements == 0);
            ck_assert_int_lt(depth, 16);
            open[depth++] = name;
            elements++;
        }
        ck_assert_msg(*at == '>', "the end of a tag at: %.40s", at);
        at++;
    }
    ck_assert(depth == 0 && elements > 0);
}

static int occurrences(const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) count++;
    return count;
}

START_TEST(a_sweep_is_drawn)
{
    char words[256], path[64];
    snprintf(path, sizeof path, "%s/a.svg", folder);
    snprintf(words, sizeof words, "--rates 400,100,200 --seconds 0.1 --mix 2:1,4:3 --svg %s", path);
    ck_assert_int_eq(bench_served(answer_well, words), KV_EXIT_OK);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    read_all(file, text);
    fclose(file);
    unlink(path);
    check_xml();
    ck_assert_ptr_nonnull(strstr(text, ">a&lt;b&gt;&amp;\"c</text>"));
    ck_assert_ptr_nonnull(strstr(text, ">tokens 2:1,4:3; constant arrivals, 1 connection, 0.1 s each<"));
    ck_assert_int_eq(occurrences("<polyline "), 3);
    ck_assert_int_eq(occurrences("<circle "), 9);
    /* In the order of the rates, whatever the order of the runs. */
    const char *first = strstr(text, ">100</text>"), *last = strstr(text, ">400</text>");
    ck_assert(first && last && first < last);
    ck_assert(!strstr(text, "<script") && !strstr(text, "href") && !strstr(text, "url("));
}
END_TEST

/* Where nothing was answered, or all latencies are one, axes are drawn all the same. */
START_TEST(a_sweep_without_points_is_drawn)
{
    struct kv_bench_result *result = calloc(1, sizeof *result);
    const struct kv_bench_run run = {.rate = 10, .result = result};
    const struct kv_client_model model = {.name = "m"};
    const struct kv_bench_options how = {.model = &model, .mix = {.count = 1, .tokens = {16}}};
    const struct kv_bench_report report = {.how = &how, .run = &run, .runs = 1};
    ck_assert_ptr_nonnull(result);
    for (int i = 0; i < 2; i++) {
        FILE *file = tmpfile();
        ck_assert_ptr_nonnull(file);
        kv_bench_svg(file, &report);
        read_all(file, text);
        fclose(file);
        check_xml();
        ck_assert(!strstr(text, "nan") && !strstr(text, "inf"));
        ck_assert_int_eq(occurrences("<circle "), 3 * i);
        result->requests = 1;
        kv_latencies_add(&result->latency, 1000000);
    }
    free(result);
}
END_TEST

static void answer_full_always(struct fake *connection, int number, int64_t tokens)
{
    (void)number, (void)tokens;
    answer_full(connection, "");
}

static void lose_connection(struct fake *connection, int number, int64_t tokens)
{
    (void)number, (void)tokens;
    fake_hang_up(connection);
}

START_TEST(exit_statuses_say_what_happened)
{
    static const struct {
        void (*answer)(struct fake *, int, int64_t);
        const char *words;
        int status;
    } cases[] = {
        {answer_well, "--requests 4", KV_EXIT_OK},
        {answer_in_turns, "--requests 8 --warmup 0", KV_EXIT_NO},
        {answer_in_turns, "--requests 8 --warmup 0 --allow-errors", KV_EXIT_OK},
        {answer_full_always, "--requests 8 --allow-errors", KV_EXIT_NO},
        {lose_connection, "--requests 3 --allow-errors", KV_EXIT_UNREACHABLE},
        {answer_changed_once, "--requests 8 --warmup 0 --verify --allow-errors", KV_EXIT_NO},
        {answer_well, "--requests 4 --json /nowhere/at/all.json", KV_EXIT_USAGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(bench_served(cases[i].answer, cases[i].words) == cases[i].status, "%s", cases[i].words);
    ck_assert_int_eq(atomic_load(&bench_requests), 0); /* that the file cannot be written is said at once */
}
END_TEST

START_TEST(progress_is_shown_where_it_is_asked_for)
{
    ck_assert_int_eq(bench_served(answer_in_turns, "--rate 40 --seconds 1.2 --allow-errors --progress"), 0);
    ck_assert_ptr_nonnull(strstr(said, " requests/s, p50 "));
    ck_assert_ptr_nonnull(strstr(said, " queue_full"));
    ck_assert_ptr_nonnull(strstr(said, " connection lost"));
    ck_assert_int_eq(bench_served(answer_well, "--rate 20 --seconds 1.2"), 0);
    ck_assert_str_eq(said, "\n");
}
END_TEST

START_TEST(options_that_do_not_fit_are_refused)
{
    static const char *const wrong[] = {
        "--mix 16 --tokens 5", "--rate 5 --rates 1,2", "--svg a.svg", "--arrivals poisson",
        "--mix 16:x",          "--rates 1,x",          "--rate 0",    "--format yaml"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(bench("unix:/nowhere", wrong[i]) == KV_EXIT_USAGE, "%s", wrong[i]);
}
END_TEST

static void make_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    rmdir(folder);
}

int main(void)
{
    Suite *suite = suite_create("client report");
    TCase *tests = tcase_create("report");
    tcase_add_unchecked_fixture(tests, make_folder, remove_folder);
    tcase_add_test(tests, lines_are_names_and_numbers);
    tcase_add_test(tests, lines_of_a_mix_name_each_size);
    tcase_add_test(tests, tables_fit_a_terminal);
    tcase_add_test(tests, help_fits_a_terminal);
    tcase_add_test(tests, json_has_all_of_it);
    tcase_add_test(tests, a_sweep_is_drawn);
    tcase_add_test(tests, a_sweep_without_points_is_drawn);
    tcase_add_test(tests, exit_statuses_say_what_happened);
    tcase_add_test(tests, progress_is_shown_where_it_is_asked_for);
    tcase_add_test(tests, options_that_do_not_fit_are_refused);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
