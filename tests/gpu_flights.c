/* Batches in flight on the tested device: as many as it says at once, waited for in any order, submitted and
 * waited for by several threads, each result the one of its rows computed alone. CK_RUN_CASE=small runs one
 * of each with few rows, for compute-sanitizer. */
#include "tests/row_table.h"

#include <pthread.h>
#include <stdlib.h>

enum { FLIGHTS_MOST = 16, FLIGHT_ITEMS = 3, DISTINCT = 47, THREADS = 6 };

static struct kv_geometry middling_geometry(uint64_t *state)
{
    struct kv_geometry geometry = random_geometry(state);
    geometry.layers = 2;
    geometry.kv_heads = 2;
    return geometry;
}

struct flight {
    struct kv_batch batch;
    struct kv_item item[FLIGHT_ITEMS];
    struct kv_ref bases[FLIGHT_ITEMS][TESTED_BASES_MAX];
    int64_t *pick[FLIGHT_ITEMS];
};

static void open_flight(struct flight *flight, struct row_table *table, int64_t rows_most, uint64_t *state)
{
    *flight = (struct flight){.batch = {.items = FLIGHT_ITEMS, .item = flight->item}};
    for (int32_t i = 0; i < FLIGHT_ITEMS; i++) {
        int64_t rows = random_below(state, rows_most + 1);
        flight->pick[i] = malloc((size_t)rows_most * sizeof *flight->pick[i]);
        ck_assert_ptr_nonnull(flight->pick[i]);
        row_table_pick(table, rows, state, flight->pick[i]);
        flight->item[i] = rig_item(&table->rig, &table->input, flight->pick[i], rows,
                                   &(struct rig_layout){.positions_checked = i == 0}, flight->bases[i]);
        flight->batch.rows += rows;
    }
}

static void close_flight(struct flight *flight, const struct row_table *table)
{
    for (int32_t i = 0; i < FLIGHT_ITEMS; i++) {
        row_table_check(table, &flight->item[i], flight->pick[i], "in flight beside others");
        free(flight->pick[i]);
    }
}

/* Fills the device with batches, and waits for them in a random order, now and then only looking. */
static void fly(struct row_table *table, int64_t rows_most, uint64_t *state)
{
    const struct rig *rig = &table->rig;
    static struct flight flight[FLIGHTS_MOST];
    int32_t order[FLIGHTS_MOST], flights = table->device.batches_max;
    if (flights > FLIGHTS_MOST) flights = FLIGHTS_MOST;
    rig_reset(&table->rig);
    for (int32_t i = 0; i < flights; i++) {
        struct kv_error err = {0};
        int32_t at = (int32_t)random_below(state, i + 1);
        order[i] = order[at];
        order[at] = i;
        open_flight(&flight[i], table, rows_most, state);
        ck_assert_msg(rig->ops->submit(rig->backend, &flight[i].batch, &err), "%s", err.message);
    }
    for (int32_t i = 0; i < flights; i++) {
        static const int64_t timeouts_us[] = {-1, 0, 20, 1000};
        int64_t timeout_us = timeouts_us[random_below(state, 4)];
        enum kv_wait seen = KV_WAIT_PENDING;
        struct kv_error err = {0};
        while (seen == KV_WAIT_PENDING)
            seen = rig->ops->wait(rig->backend, &flight[order[i]].batch, timeout_us, &err);
        ck_assert_msg(seen == KV_WAIT_DONE, "%s", err.message);
        close_flight(&flight[order[i]], table);
    }
    rig_check_guards(rig);
}

START_TEST(batches_fly_together)
{
    static const int64_t rows_most[] = {1, 20, 70, 300, 1000};
    uint64_t state = tested_seed() + 13000027 * (uint64_t)(_i + 1);
    struct kv_geometry geometry = middling_geometry(&state);
    struct row_table table;
    row_table_open(&table, &geometry, KV_F32, DISTINCT, FLIGHTS_MOST * FLIGHT_ITEMS * 1000, &state);
    for (size_t i = 0; i < sizeof rows_most / sizeof *rows_most; i++)
        for (int32_t round = 0; round < 8; round++) fly(&table, rows_most[i], &state);
    row_table_close(&table);
}
END_TEST

/* A batch of nothing, and one of empty items. */
START_TEST(nothing_is_done_at_once)
{
    uint64_t state = tested_seed() + 14000029;
    struct kv_geometry geometry = middling_geometry(&state);
    struct row_table table;
    struct kv_error err = {0};
    row_table_open(&table, &geometry, KV_BF16, 1, 4, &state);
    const struct rig *rig = &table.rig;
    struct kv_batch none = {0};
    ck_assert_msg(rig->ops->submit(rig->backend, &none, &err), "%s", err.message);
    ck_assert_int_eq(rig->ops->wait(rig->backend, &none, -1, &err), KV_WAIT_DONE);
    struct kv_item empty[3] = {{.fault = KV_INTERNAL}, {.fault = KV_INTERNAL}, {.fault = KV_INTERNAL}};
    rig_run(&table.rig, empty, 3);
    for (int32_t i = 0; i < 3; i++) ck_assert_int_eq(empty[i].fault, KV_OK);
    row_table_close(&table);
}
END_TEST

/* Threads that submit under one lock, as the engine's callers do, and wait each for their own. */
struct crowd {
    struct row_table table;
    pthread_mutex_t lock;
    pthread_cond_t room;
    int32_t flying;
    int32_t rounds;
};

struct member {
    struct crowd *crowd;
    pthread_t thread;
    uint64_t state;
    struct kv_ref bases[TESTED_BASES_MAX];
    struct kv_item item;
    int64_t wrong;
};

static void compute(struct member *member, int64_t rows)
{
    struct crowd *crowd = member->crowd;
    const struct rig *rig = &crowd->table.rig;
    struct kv_batch batch = {.rows = rows, .items = 1, .item = &member->item};
    member->item.rows = rows;
    member->item.fault = KV_FAULT_COUNT;
    pthread_mutex_lock(&crowd->lock);
    while (crowd->flying == crowd->table.device.batches_max) pthread_cond_wait(&crowd->room, &crowd->lock);
    crowd->flying++;
    bool submitted = rig->ops->submit(rig->backend, &batch, NULL);
    pthread_mutex_unlock(&crowd->lock);
    enum kv_wait seen = KV_WAIT_PENDING;
    while (submitted && seen == KV_WAIT_PENDING)
        seen = rig->ops->wait(rig->backend, &batch, random_below(&member->state, 4) * 50 - 50, NULL);
    pthread_mutex_lock(&crowd->lock);
    crowd->flying--;
    pthread_cond_signal(&crowd->room);
    pthread_mutex_unlock(&crowd->lock);
    if (!submitted || seen != KV_WAIT_DONE || member->item.fault != KV_OK) member->wrong++;
}

/* Counts what is wrong instead of failing: a test may only be ended by the thread that began it. */
static void *submit_and_wait(void *argument)
{
    struct member *member = argument;
    const struct row_table *table = &member->crowd->table;
    size_t row_bytes = (size_t)table->elements * sizeof *table->alone;
    uint16_t *got = malloc(row_bytes);
    for (int32_t round = 0; round < member->crowd->rounds && got; round++) {
        memset(table->rig.host + member->bases[0].offset, 0xff, DISTINCT * row_bytes); /* K and V, one piece
                                                                                        */
        compute(member, random_below(&member->state, DISTINCT + 1));
        for (int64_t t = 0; t < member->item.rows; t++) {
            row_table_gather(table, &member->item, t, got);
            member->wrong += memcmp(got, table->alone + t * table->elements, row_bytes) != 0;
        }
    }
    if (!got) member->wrong++;
    free(got);
    return NULL;
}

static void gather_crowd(int32_t threads, int32_t rounds, uint64_t *state)
{
    struct crowd crowd = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .room = PTHREAD_COND_INITIALIZER, .rounds = rounds};
    struct kv_geometry geometry = middling_geometry(state);
    struct member member[THREADS];
    row_table_open(&crowd.table, &geometry, KV_F32, DISTINCT, THREADS * DISTINCT, state);
    for (int32_t i = 0; i < threads; i++) {
        member[i] = (struct member){.crowd = &crowd, .state = random_bits(state)};
        member[i].item = rig_item(&crowd.table.rig, &crowd.table.input, NULL, DISTINCT,
                                  &(struct rig_layout){0}, member[i].bases);
    }
    for (int32_t i = 0; i < threads; i++)
        ck_assert_int_eq(pthread_create(&member[i].thread, NULL, submit_and_wait, &member[i]), 0);
    int64_t wrong = 0;
    for (int32_t i = 0; i < threads; i++) {
        pthread_join(member[i].thread, NULL);
        wrong += member[i].wrong;
    }
    ck_assert_int_eq(wrong, 0);
    rig_check_guards(&crowd.table.rig);
    row_table_close(&crowd.table);
}

START_TEST(threads_submit_and_wait)
{
    uint64_t state = tested_seed() + 15000017 * (uint64_t)(_i + 1);
    gather_crowd(THREADS, 300, &state);
}
END_TEST

START_TEST(a_few_of_each)
{
    uint64_t state = tested_seed() + 16000057;
    struct kv_geometry geometry = middling_geometry(&state);
    struct row_table table;
    row_table_open(&table, &geometry, KV_F32, 5, FLIGHTS_MOST * FLIGHT_ITEMS * 20, &state);
    fly(&table, 1, &state);
    fly(&table, 20, &state);
    row_table_close(&table);
    gather_crowd(2, 5, &state);
}
END_TEST

int main(void)
{
    int status = tested_probe();
    if (status != 0) return status;
    Suite *suite = suite_create("gpu: batches in flight");
    TCase *flights = tcase_create("flights"), *small = tcase_create("small");
    tcase_add_loop_test(flights, batches_fly_together, 0, 4);
    tcase_add_test(flights, nothing_is_done_at_once);
    tcase_add_loop_test(flights, threads_submit_and_wait, 0, 3);
    tcase_add_test(small, a_few_of_each);
    suite_add_tcase(suite, flights);
    suite_add_tcase(suite, small);
    return tested_run(suite);
}
