/* Bodies that a stranger would send, over real connections: each is refused in our words, the connection goes
 * on, the next request has the right bits, and what a body can make the server allocate is bounded. */
#include "tests/hostile.h"
#include "tests/suite.h"

#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

static struct http_rig rig;

static void setup(void)
{
    memset(&fake, 0, sizeof fake);
    http_rig_open(&rig, (struct kv_engine_options){.spin_us = 20});
}

static void teardown(void)
{
    http_rig_close(&rig);
}

/* Sends a body, and sees that the promise is kept. 0, or 1 after having said what is wrong. */
static int send_body(const void *body, size_t bytes, int status, const char *code, const char *what)
{
    static int turn;
    size_t count;
    unsigned char *wire = hostile_post(body, bytes, "", &count);
    const struct hostile promise = {NULL, 0, status, code, HOSTILE_KEPT};
    struct talk talk = talk_with(&rig, ++turn % 2, wire, count, TALK_WHOLE);
    const char *wrong = hostile_verdict(&promise, &talk);
    free(wire);
    if (wrong) fprintf(stderr, "%s: expected %d %s, got %s\n", what, status, code ? code : "", wrong);
    return wrong != NULL;
}

START_TEST(test_bodies)
{
    int32_t count;
    int wrong = 0;
    const struct hostile_body *bodies = hostile_bodies(&count);
    for (int32_t i = 0; i < count; i++) {
        size_t bytes;
        char text[400];
        unsigned char *document = hostile_document(&bodies[i], &bytes);
        wrong += send_body(document, bytes, bodies[i].status, bodies[i].code,
                           hostile_print(bodies[i].header, bodies[i].header_bytes, text, sizeof text));
        ck_assert(http_rig_alive(&rig));
        free(document);
    }
    ck_assert_msg(wrong == 0, "%d of %d bodies", wrong, count);
}
END_TEST

/* The body of a good request. */
static unsigned char *good_body(int64_t tokens, size_t *bytes)
{
    size_t all, head;
    unsigned char *wire = http_rig_request(tokens, 5, "", &all, &head);
    *bytes = all - head;
    memmove(wire, wire + head, *bytes);
    return wire;
}

/* Announced and sent up to any byte: cut in the prefix, in the header, in the data, and with more behind it.
 */
START_TEST(test_cut_at_every_byte)
{
    size_t bytes;
    unsigned char *body = good_body(3, &bytes);
    uint64_t header_bytes;
    char what[64];
    int wrong = 0;
    memcpy(&header_bytes, body, sizeof header_bytes);
    for (size_t cut = 0; cut <= bytes + 3; cut++) {
        const char *code = cut < 8 + header_bytes ? "body_malformed" : cut == bytes ? NULL : "size_mismatch";
        snprintf(what, sizeof what, "cut at %zu of %zu", cut, bytes);
        wrong += send_body(body, cut, code ? 400 : 200, code, what);
    }
    free(body);
    ck_assert_int_eq(wrong, 0);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* A good body whose header says that it has another length. */
START_TEST(test_header_lengths)
{
    static const uint64_t lengths[] = {0,
                                       1,
                                       7,
                                       65535,
                                       65536,
                                       65537,
                                       (uint64_t)1 << 32,
                                       INT64_MAX,
                                       (uint64_t)1 << 63,
                                       UINT64_MAX,
                                       UINT64_MAX - 7,
                                       UINT64_MAX - 8,
                                       0x7b7b7b7b7b7b7b7b};
    size_t bytes;
    unsigned char *body = good_body(3, &bytes);
    char what[64];
    int wrong = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        snprintf(what, sizeof what, "a header of %llu bytes", (unsigned long long)lengths[i]);
        memcpy(body, &lengths[i], sizeof lengths[i]);
        wrong += send_body(body, sizeof lengths[i], 400, "body_malformed", what);
        wrong += send_body(body, sizeof lengths[i] + 1, 400, "body_malformed", what);
        wrong += send_body(body, bytes, 400, "body_malformed", what);
    }
    free(body);
    ck_assert_int_eq(wrong, 0);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* A request of three rows whose second has this position. */
static int send_position(enum kv_dtype dtype, int64_t value, bool good)
{
    enum { TOKENS = 3 };
    unsigned char body[1024] = {0};
    struct kv_error err = {0};
    char what[64];
    size_t head_bytes = 0, step = kv_dtype_bytes(dtype);
    ck_assert(kv_request_encode(body, sizeof body, &engine_rig_geometry, KV_HIDDEN_STATES, KV_F32, dtype,
                                TOKENS, &head_bytes, &err));
    size_t hidden_bytes = TOKENS * (size_t)engine_rig_geometry.hidden * 4;
    int32_t narrow = (int32_t)value;
    memcpy(body + head_bytes + hidden_bytes + step,
           dtype == KV_I64 ? (const void *)&value : (const void *)&narrow, step);
    snprintf(what, sizeof what, "%s position %lld", kv_dtype_name(dtype), (long long)value);
    return send_body(body, head_bytes + hidden_bytes + TOKENS * step, good ? 200 : 400,
                     good ? NULL : "position_out_of_range", what);
}

START_TEST(test_positions_at_the_edges)
{
    const int64_t limit = engine_rig_geometry.positions;
    const int64_t values[] = {0,
                              1,
                              limit - 1,
                              limit,
                              limit + 1,
                              -1,
                              -limit,
                              INT32_MAX - 1,
                              INT32_MAX,
                              INT32_MIN,
                              (int64_t)INT32_MAX + 1, /* the rest in I64 only; cut to 32 bits some are good */
                              (int64_t)1 << 32,
                              ((int64_t)1 << 32) + 5,
                              (int64_t)1 << 62,
                              INT64_MAX,
                              INT64_MAX - 1,
                              INT64_MIN,
                              INT64_MIN + 5};
    int wrong = 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        bool good = values[i] >= 0 && values[i] < limit;
        wrong += send_position(KV_I64, values[i], good);
        if (values[i] == (int32_t)values[i]) wrong += send_position(KV_I32, values[i], good);
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert(http_rig_alive(&rig));
}
END_TEST

/* What the JSON library has allocated, and the most that it had since a test looked. */
static _Atomic int64_t json_bytes, json_bytes_max;

static void *json_take(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) return NULL;
    int64_t now = atomic_fetch_add(&json_bytes, (int64_t)malloc_usable_size(memory));
    now += (int64_t)malloc_usable_size(memory);
    int64_t most = atomic_load(&json_bytes_max);
    while (now > most && !atomic_compare_exchange_weak(&json_bytes_max, &most, now)) continue;
    return memory;
}

static void json_give(void *memory)
{
    if (memory) atomic_fetch_sub(&json_bytes, (int64_t)malloc_usable_size(memory));
    free(memory);
}

/* A document of `open`, `piece` repeated until the header is as long as wanted, and `close`. */
static unsigned char *repeat(const char *open, const char *piece, const char *close, uint64_t header_bytes,
                             size_t *bytes)
{
    size_t step = strlen(piece), tail = strlen(close);
    unsigned char *body = malloc(8 + header_bytes), *at = body + 8;
    ck_assert(body);
    memcpy(body, &header_bytes, sizeof header_bytes);
    at = mempcpy(at, open, strlen(open));
    while ((size_t)(at - body) + step + tail <= 8 + header_bytes) at = mempcpy(at, piece, step);
    at = mempcpy(at, close, tail);
    memset(at, ' ', 8 + header_bytes - (size_t)(at - body));
    *bytes = 8 + header_bytes;
    return body;
}

/* JSON makes up to seventy bytes of memory from one of text. A header of the largest size that is looked at
 * makes no more than a few times its own, and a larger one nothing at all. */
START_TEST(test_memory_of_headers)
{
    enum { LOOKED_AT = KV_HEADER_BYTES_MAX_REQUEST, LARGE = 6 << 20, TREE_BYTES_MAX = 6 * LOOKED_AT };
    static const struct {
        const char *open, *piece, *close, *code;
    } rows[] = {
        {"{\"a\":", "[", "", "body_malformed"},
        {"{\"a\":", "{\"\":", "", "body_malformed"},
        {"{\"a\":[0", ",{}", "]}", "body_malformed"},
        {"{\"a\":[0", ",[]", "]}", "body_malformed"},
        {"{\"a\":[0", ",0", "]}", "body_malformed"},
        {"{\"a\":[0", ",\"\"", "]}", "body_malformed"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0", ",0", "],\"data_offsets\":[0,0]}}", "body_malformed"},
        {"{\"__metadata__\":{\"a\":\"", "\\u00e4", "\"}}", "tensor_missing"},
        {"{\"__metadata__\":{\"a\":\"", "\xf0\x9f\x98\x80", "\"}}", "tensor_missing"},
        {"{\"", "a", "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "tensor_unexpected"},
        {"{\"a\":", "1", "}", "body_malformed"},
        {"{\"a\":0.", "1", "}", "body_malformed"},
        {"", " ", "{}", "tensor_missing"},
        {"{\"", "\\\\", "\":0}", "body_malformed"},
        {"{\"a\":\"", "\\\"{[", "", "body_malformed"},
    };
    int wrong = 0;
    char what[64];
    json_set_alloc_funcs(json_take, json_give);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t bytes;
        unsigned char *body = repeat(rows[i].open, rows[i].piece, rows[i].close, LOOKED_AT, &bytes);
        atomic_store(&json_bytes_max, 0);
        snprintf(what, sizeof what, "%.20s...%.20s", rows[i].open, rows[i].piece);
        wrong += send_body(body, bytes, 400, rows[i].code, what);
        ck_assert_msg(json_bytes_max <= TREE_BYTES_MAX, "%s: %lld bytes", what, (long long)json_bytes_max);
        free(body);

        body = repeat(rows[i].open, rows[i].piece, rows[i].close, LARGE, &bytes);
        atomic_store(&json_bytes_max, 0);
        wrong += send_body(body, bytes, 400, "body_malformed", what);
        ck_assert_msg(json_bytes_max < LOOKED_AT, "%s: %lld bytes", what, (long long)json_bytes_max);
        free(body);
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert(http_rig_alive(&rig));
    json_set_alloc_funcs(malloc, free);
}
END_TEST

/* As many values as the bounds let through, in memory, and many of them at the same time. */
START_TEST(test_memory_of_many_entries)
{
    enum { ENTRIES = 64, TREE_BYTES_MAX = 6 * KV_HEADER_BYTES_MAX_REQUEST };
    char header[16384] = "{";
    json_set_alloc_funcs(json_take, json_give);
    for (int count = ENTRIES; count <= ENTRIES + 1; count++) {
        size_t at = 1;
        for (int i = 0; i < count; i++)
            at += (size_t)snprintf(header + at, sizeof header - at,
                                   "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,0],"
                                   "\"data_offsets\":[0,0]}",
                                   i ? "," : "", i);
        header[at++] = '}';
        size_t bytes;
        const struct hostile_body row = {header, at, 0, 400, NULL};
        unsigned char *document = hostile_document(&row, &bytes);
        atomic_store(&json_bytes_max, 0);
        ck_assert_int_eq(send_body(document, bytes, 400,
                                   count == ENTRIES ? "tensor_unexpected" : "body_malformed", "many entries"),
                         0);
        ck_assert_msg(json_bytes_max <= TREE_BYTES_MAX, "%lld bytes", (long long)json_bytes_max);
        free(document);
    }
    ck_assert(http_rig_alive(&rig));
    json_set_alloc_funcs(malloc, free);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/bodies");
    TCase *cases = tcase_create("bodies");
    tcase_set_timeout(cases, 240);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_bodies);
    tcase_add_test(cases, test_cut_at_every_byte);
    tcase_add_test(cases, test_header_lengths);
    tcase_add_test(cases, test_positions_at_the_edges);
    tcase_add_test(cases, test_memory_of_headers);
    tcase_add_test(cases, test_memory_of_many_entries);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
