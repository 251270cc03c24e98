/* The index of a sharded checkpoint, through the same JSON door as the config. */
#include "server/index.h"

#include "server/config_json.h"

#include <jansson.h>

/* Inside the folder: no absolute path, no step up. A link is the operator's own doing. */
static bool stays_inside(const char *name)
{
    if (name[0] == '\0' || name[0] == '/') return false;
    for (const char *at = name; at;) {
        if (at[0] == '.' && at[1] == '.' && (at[2] == '/' || at[2] == '\0')) return false;
        at = strchr(at, '/');
        if (at) at++;
    }
    return true;
}

static bool known(const char *const *names, int32_t count, const char *name)
{
    for (int32_t i = count - 1; i >= 0; i--)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static bool add_shard(struct kv_index *index, const char *name, const char *tensor,
                      struct kv_findings *findings)
{
    if (known(index->shard, index->count, name)) return true;
    if (!stays_inside(name))
        return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, tensor,
                                kv_text("a file of the model's folder"), kv_text(name),
                                "the index places %.100s outside the folder", tensor);
    if (index->count == KV_SHARDS_MAX)
        return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, "weight_map", kv_integer(KV_SHARDS_MAX),
                                kv_none(), "the index names too many shards");
    index->shard[index->count++] = name;
    return true;
}

static bool read_map(struct kv_index *index, const struct kv_file *file, struct kv_findings *findings)
{
    struct kv_error error = {0};
    struct kv_object map = {0};
    *index = (struct kv_index){.json = kv_json_read(file, KV_INDEX_BYTES_MAX, &error)};
    if (!index->json) return kv_findings_add(findings, -1, &error);
    const struct kv_object root = {.json = index->json};
    enum kv_key found = kv_key_object(&root, "weight_map", &map, findings);
    if (found == KV_KEY_ABSENT)
        return kv_findings_fail(findings, -1, KV_CONFIG_INVALID, "weight_map", kv_text("an object"),
                                kv_text("nothing"), "%.128s has no weight_map", file->name);
    if (found == KV_KEY_WRONG) return false;
    const char *tensor;
    json_t *shard;
    bool good = true;
    json_object_foreach((json_t *)map.json, tensor, shard)
    {
        if (json_is_string(shard))
            good &= add_shard(index, json_string_value(shard), tensor, findings);
        else
            good = kv_key_wrong(&map, tensor, "the name of a file", shard, findings) == KV_KEY_FOUND;
        if (index->count == KV_SHARDS_MAX && !good) break;
    }
    return index->count > 0 || good;
}

bool kv_index_read(struct kv_index *index, const struct kv_file *file, struct kv_findings *findings)
{
    int32_t before = findings->count;
    bool good = read_map(index, file, findings);
    for (int32_t i = before; i < findings->count; i++) /* the code's own hint speaks of config.json */
        kv_error_hint(
            &findings->item[i].error,
            "Take %.128s from where the checkpoint was published: it names files of its own folder.",
            file->name);
    return good;
}

const char *kv_index_find(const struct kv_index *index, const char *tensor)
{
    const json_t *shard = json_object_get(json_object_get(index->json, "weight_map"), tensor);
    if (!shard) return NULL;
    return json_is_string(shard) ? json_string_value(shard) : "";
}

void kv_index_close(struct kv_index *index)
{
    json_decref(index->json);
    *index = (struct kv_index){0};
}
