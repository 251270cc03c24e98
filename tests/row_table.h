/* Rows with the bits of K and V that the tested device gives for each of them alone: what every other way of
 * computing the same rows is held against. */
#ifndef KV_TESTS_ROW_TABLE_H
#define KV_TESTS_ROW_TABLE_H

#include "tests/tested_device.h"

struct row_table {
    struct random_weights *weights;
    struct rig rig;
    struct kv_backend_description device;
    struct rig_input input;
    int64_t elements; /* K and V of a row */
    uint16_t *alone;  /* [input.rows][elements]: all K of a row, then all V */
};

/* Opens the tested device for random weights, and computes `rows` random rows, each alone. The rig's slab has
 * room for items of `rows_max` rows in all. */
void row_table_open(struct row_table *table, const struct kv_geometry *geometry, enum kv_dtype dtype,
                    int64_t rows, int64_t rows_max, uint64_t *state);
void row_table_close(struct row_table *table);

/* Random numbers of rows [count]. */
void row_table_pick(const struct row_table *table, int64_t count, uint64_t *state, int64_t *pick);

/* The item is done without a fault, and its row t has the bits of row pick[t], where pick[t] >= 0; other rows
 * are not looked at. `what` is for the message. */
void row_table_check(const struct row_table *table, const struct kv_item *item, const int64_t *pick,
                     const char *what);

/* All K, then all V of row t of an item. */
void row_table_gather(const struct row_table *table, const struct kv_item *item, int64_t t, uint16_t *to);

/* Computes an item of any length as the engine does: in spans of at most the device's, as many in flight as
 * it takes. */
void row_table_run_spans(struct row_table *table, struct kv_item *item);

#endif
