/* The pool's book: takes, gives and shrinks at random against a plain map of who owns each unit. */
#include "server/pool.h"
#include "tests/suite.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = 257, RANGES = 40 };

START_TEST(test_edges)
{
    struct kv_pool pool;
    struct kv_range all, none, over;
    ck_assert(kv_pool_open(&pool, 1000, 4)); /* 15 units of 64 bytes */
    ck_assert_uint_eq(pool.bytes, 960);
    ck_assert(kv_pool_take(&pool, 0, &none));
    ck_assert_uint_eq(none.bytes, 0);
    ck_assert(!kv_pool_take(&pool, 961, &over));
    ck_assert(!kv_pool_take(&pool, UINT64_MAX, &over));
    ck_assert(kv_pool_take(&pool, 960, &all));
    ck_assert(!kv_pool_take(&pool, 1, &over));
    kv_pool_shrink(&pool, &all, 65);
    ck_assert_uint_eq(all.bytes, 128);
    ck_assert_uint_eq(pool.used, 128);
    kv_pool_give(&pool, &all);
    kv_pool_give(&pool, &all); /* emptied by the first */
    kv_pool_give(&pool, &none);
    ck_assert_uint_eq(pool.used, 0);
    ck_assert_int_eq(pool.count, 1);
    ck_assert_uint_eq(pool.used_max, 960);
    kv_pool_close(&pool);
}
END_TEST

static void paint(unsigned char *owner, const struct kv_range *range, unsigned char from, unsigned char to)
{
    for (uint64_t i = range->offset / KV_POOL_ALIGNMENT;
         i < (range->offset + range->bytes) / KV_POOL_ALIGNMENT; i++) {
        ck_assert_uint_eq(owner[i], from);
        owner[i] = to;
    }
}

START_TEST(test_random)
{
    struct kv_pool pool;
    struct kv_range range[RANGES] = {{0, 0}};
    unsigned char owner[UNITS] = {0};
    ck_assert(kv_pool_open(&pool, UNITS * KV_POOL_ALIGNMENT, RANGES));
    srand(7);
    for (int step = 0; step < 20000; step++) {
        int at = rand() % RANGES;
        unsigned char mark = (unsigned char)(at + 1);
        if (range[at].bytes == 0) {
            uint64_t bytes = (uint64_t)(rand() % (rand() % 4 ? 12 : 120)) * KV_POOL_ALIGNMENT;
            if (kv_pool_take(&pool, bytes, &range[at])) paint(owner, &range[at], 0, mark);
        } else if (rand() % 3) {
            paint(owner, &range[at], mark, 0);
            kv_pool_give(&pool, &range[at]);
        } else {
            uint64_t kept = range[at].bytes / 2 / KV_POOL_ALIGNMENT * KV_POOL_ALIGNMENT;
            struct kv_range tail = {range[at].offset + kept, range[at].bytes - kept};
            paint(owner, &tail, mark, 0);
            kv_pool_shrink(&pool, &range[at], kept);
        }
        uint64_t used = 0;
        for (int i = 0; i < UNITS; i++) used += owner[i] ? KV_POOL_ALIGNMENT : 0;
        ck_assert_uint_eq(used, pool.used);
        for (int i = 1; i < pool.count; i++)
            ck_assert_uint_lt(pool.free_range[i - 1].offset + pool.free_range[i - 1].bytes,
                              pool.free_range[i].offset);
    }
    kv_pool_close(&pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/pool");
    TCase *cases = tcase_create("pool");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_edges);
    tcase_add_test(cases, test_random);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
