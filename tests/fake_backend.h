/* A device for tests: computes a simple function of hidden bytes, position, layer and head at once, and does
 * what the test asks for besides: waits, faults, gets lost. Also what the HTTP benchmark serves: it only
 * touches memory. */
#ifndef KV_TESTS_FAKE_BACKEND_H
#define KV_TESTS_FAKE_BACKEND_H

#include "kernels/backend.h"

#include <stdatomic.h>

/* Zero: works at once. Set before open, or atomically while it runs. */
struct fake_device {
    _Atomic int32_t delay_us; /* of each batch */
    _Atomic int32_t held;     /* while set, batches stay pending */
    _Atomic int32_t lost;     /* wait says lost */
    _Atomic int32_t hang;     /* while set, submit does not return */
    _Atomic int32_t fault;    /* enum kv_fault for items whose first position is fault_position */
    _Atomic int64_t fault_position;
    _Atomic int32_t submit_fails;                                        /* enum kv_fault of submit */
    _Atomic int32_t batches, items, rows, rows_max_seen, items_max_seen; /* seen */
    _Atomic int32_t open, mems;       /* backends and memories not yet closed */
    _Atomic int64_t watched_position; /* the first of some item */
    _Atomic int32_t watched_batch;    /* the number, from 1, of the batch that had it; 0: none yet */
    int32_t span_rows, batches_max;
    bool copy_only; /* computes nothing: the reply is what the pool held */
};

/* The device that fake_ops.open opens; one test at a time. */
extern struct fake_device fake;
extern const struct kv_backend_ops fake_ops;

/* Opens it for a geometry; NULL on failure. */
struct kv_backend *fake_open(const struct kv_geometry *geometry);

/* The 16 bits that element d of a head must have. `first` is the first 16 bits of the hidden row. */
uint16_t fake_element(bool is_v, uint16_t first, int64_t position, int32_t layer, int32_t head, int32_t d);

#endif
