/* A vector: one JSON file of tests/vectors/refused/ or accepted/ that says what to change in the base
 * checkpoint and what must come out. This makes the changed folder and tells what comes out; judging it is
 * the test's.
 *
 *   why      one sentence
 *   without  [KEY...], taken out of config.json
 *   config   merged into config.json; null is written as null
 *   change   [COMMAND...] of made_change
 *   index    merged into the index of a sharded checkpoint
 *   files    [{"file": NAME, and what becomes of it}], in this order once all is written: one of
 *              "text": TEXT (with "times": N), "json": VALUE, "hex": BYTES,
 *              "header": TEXT (a safetensors file with "data": N bytes behind it),
 *              "cut": N bytes off the end, "append": N zeros,
 *              "rename": NAME, "link": TARGET, "folder": true, "pipe": true, "remove": true
 *   options  max_position, rope_theta, rope_attention_factor
 *   open     a name inside the folder, to open in the folder's place
 *
 * refused:
 *   errors   all that come out, in any order: [{"code", and where it matters "layer", "tensor",
 *            "expected", "got", as the report of --check shows them, "says" and "hint": words of the
 *            sentence and of the hint}]
 *
 * accepted:
 *   model    some of what the report shows; geometry has k_norm, k_bias, v_bias and value_scale too
 *   notes    [words that the log says]
 *   warnings [words of each warning], all of them; without it there may be none
 *   same_as  the vector that has the same fingerprint, hence the same K and V */
#ifndef KV_TESTS_VECTOR_H
#define KV_TESTS_VECTOR_H

#include <stdbool.h>

struct json_t;

/* Reads a vector. What it is not to have, such as a member that is misspelt, fails the test. */
struct json_t *vector_read(const char *path);

/* What --check reports of the changed folder, and the log's lines as "notes". */
struct json_t *vector_report(const char *path, const struct json_t *vector);

/* Are two values, or lists of them, alike? Numbers may differ in their last digits. */
bool vector_agrees(const struct json_t *want, const struct json_t *got);

/* Does the report's model have all that `model` has, member by member and in each section? */
bool vector_describes(const struct json_t *model, const struct json_t *got);

#endif
