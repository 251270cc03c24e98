/* Memory runs out at every place there is: the n-th allocation fails, of this program and of the libraries
 * under it, for n = 1, 2, 3, ... until an open gets by without it; once that one alone, and once all from it
 * on. Each failure is a clean refusal for want of memory, and the next try works. Leaks are the sanitizer's
 * to find. */
#include "server/options.h"
#include "tests/checkpoint_maker.h"
#include "tests/documents.h"
#include "tests/http_rig.h"
#include "tests/suite.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

/* The C library's own, or the sanitizer's, whose places are taken below. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REAL(name) __interceptor_##name
#define SANITIZED true
#else
#define REAL(name) __libc_##name
#define SANITIZED false
#endif
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming) */
void *REAL(malloc)(size_t bytes);
void *REAL(calloc)(size_t count, size_t bytes);
void *REAL(realloc)(void *memory, size_t bytes);
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming) */
/* Called before a sanitizer has begun, too. */
#define PLAIN __attribute__((no_sanitize("thread", "address", "undefined")))

/* A sanitizer allocates as a thread starts, and gives up where it cannot. */
enum { TRIES_MAX = 20000, STARTING = 8 };

static struct {
    int64_t fails_at;  /* which allocation; 0: none */
    bool fails_behind; /* and all behind it */
} plan;
static _Atomic bool armed;
static _Atomic int64_t seen, refused;
static _Thread_local bool mine; /* the thread that arms */

PLAIN static bool refuse(void)
{
    static _Thread_local int32_t calls;
    if (!atomic_load(&armed)) return false;
    if (SANITIZED && !mine && calls++ < STARTING) return false;
    int64_t number = atomic_fetch_add(&seen, 1) + 1;
    if (number != plan.fails_at && (number < plan.fails_at || !plan.fails_behind)) return false;
    atomic_fetch_add(&refused, 1);
    errno = ENOMEM;
    return true;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): theirs are reserved names. */
PLAIN void *malloc(size_t bytes)
{
    return refuse() ? NULL : REAL(malloc)(bytes);
}

PLAIN void *calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : REAL(calloc)(count, bytes);
}

PLAIN void *realloc(void *memory, size_t bytes)
{
    return refuse() ? NULL : REAL(realloc)(memory, bytes);
}

char *strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* Allocations count from here to disarm, in every thread. */
static void arm(void)
{
    mine = true;
    atomic_store(&seen, 0);
    atomic_store(&armed, plan.fails_at > 0);
}

static void disarm(void)
{
    atomic_store(&armed, false);
}

/* Opens between arm and disarm, closes what it opened, and says whether that went well. */
typedef bool attempt(struct kv_error *err);

static void exhaust(const char *name, attempt *open)
{
    for (int32_t mode = 0; mode < 2; mode++) {
        int64_t failed = 0, n = 1;
        for (; n <= TRIES_MAX; n++) {
            struct kv_error err = {0}, again = {0};
            plan.fails_at = n;
            plan.fails_behind = mode == 1;
            atomic_store(&refused, 0);
            bool ok = open(&err);
            plan.fails_at = 0;
            if (!ok && err.fault != KV_INTERNAL && err.fault != KV_DEVICE_OUT_OF_MEMORY)
                ck_abort_msg("%s: without allocation %lld it says %s: %s", name, (long long)n,
                             kv_fault_info(err.fault)->code, err.message);
            ck_assert(ok || err.message[0]);
            if (atomic_load(&refused) == 0) {
                ck_assert_msg(ok, "%s: fails with all its memory: %s", name, err.message);
                break;
            }
            failed += !ok;
            ck_assert_msg(open(&again), "%s: after allocation %lld had failed: %s", name, (long long)n,
                          again.message);
        }
        ck_assert_int_le(n, TRIES_MAX);
        printf("%s: %lld allocations, %lld of them needed\n", name, (long long)n - 1, (long long)failed);
    }
}

static bool open_document(struct kv_error *err)
{
    struct bytes body = file_of("tests/vectors/one_token/request.safetensors");
    struct kv_document document;
    arm();
    bool ok = kv_document_open(&document, body.data, body.size, KV_DOCUMENT_REQUEST, err);
    disarm();
    kv_document_close(&document);
    free(body.data);
    return ok;
}

/* Names whose closing quote is what the JSON library's buffer has no room for. */
static bool open_names(struct kv_error *err)
{
    static const char names[] = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz";
    bool ok = true;
    arm();
    for (size_t length = 14; ok && length <= 62; length = 2 * length + 2) {
        struct kv_document document;
        char body[256];
        int bytes = snprintf(body + 8, sizeof body - 8,
                             "{\"%.*s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                             (int)length, names);
        const uint64_t prefix = (uint64_t)bytes;
        memcpy(body, &prefix, sizeof prefix);
        ok = kv_document_open(&document, body, sizeof prefix + prefix, KV_DOCUMENT_REQUEST, err) &&
             strlen(document.tensors[0].name) == length;
        kv_document_close(&document);
    }
    disarm();
    return ok;
}

static bool decode_request(struct kv_error *err)
{
    unsigned char body[1024];
    size_t bytes = 0;
    const struct engine_rig_request about = {.tokens = 3, .seed = 1};
    const struct kv_request_limits limits = {.tokens_max = 64};
    struct kv_request request;
    engine_rig_fill(&about, body, &bytes);
    arm();
    bool ok = kv_request_decode(&request, body, bytes, &engine_rig_geometry, &limits, err);
    disarm();
    return ok;
}

static bool open_folder(const char *folder, struct kv_error *err)
{
    const struct kv_checkpoint_options options = {.directory = folder, .attention_factor = -1};
    struct kv_description description = {.name = "test"};
    struct kv_checkpoint *checkpoint = NULL;
    struct kv_findings findings;
    kv_findings_init(&findings);
    arm();
    bool ok = kv_checkpoint_open(&checkpoint, &options, &findings) && kv_checkpoint_scan(checkpoint);
    if (ok) kv_checkpoint_describe(checkpoint, &description);
    disarm();
    ck_assert(ok == (findings.count == 0));
    ck_assert(!ok || strlen(description.fingerprint) == KV_FINGERPRINT_BYTES - 1);
    for (int32_t i = 0; i < findings.count && err->fault != KV_INTERNAL; i++)
        if (i == 0 || findings.item[i].error.fault == KV_INTERNAL) *err = findings.item[i].error;
    kv_checkpoint_close(checkpoint);
    kv_findings_free(&findings);
    return ok;
}

static bool open_sharded(struct kv_error *err)
{
    return open_folder("tests/vectors/sharded_fp16_v4", err);
}

static bool open_converted(struct kv_error *err)
{
    return open_folder("tests/vectors/f32_weights", err);
}

static bool open_taps(struct kv_error *err)
{
    return open_folder("tests/vectors/dflash_target_hidden", err);
}

static struct made broken;

/* A folder with a score of faults is refused whatever else happens; opening it "goes well" when it is. */
static bool refuse_broken(struct kv_error *err)
{
    return !open_folder(broken.folder, err);
}

static bool open_engine(struct kv_error *err)
{
    const struct kv_engine_options options = {.limits = {.tokens_max = 64,
                                                         .pool_bytes = 1 << 20,
                                                         .queue_max = 4,
                                                         .batch_tokens_max = 64,
                                                         .connections_max = 8}};
    struct kv_backend *backend = NULL;
    bool ok = false;
    arm();
    struct kv_engine *engine = kv_engine_open(&options);
    if (engine) backend = fake_open(&engine_rig_geometry);
    if (backend)
        ok = kv_engine_start(engine, &fake_ops, backend, &engine_rig_geometry, err);
    else
        kv_fail(err, KV_INTERNAL, "NULL is all that these two say");
    disarm();
    kv_engine_close(engine);
    ck_assert_int_eq(fake.open, 0);
    ck_assert_int_eq(fake.mems, 0);
    return ok;
}

static bool read_zeros(void *source, int32_t layer, enum kv_part part, uint64_t offset, void *to,
                       size_t bytes, struct kv_error *err)
{
    (void)source, (void)layer, (void)part, (void)offset, (void)err;
    memset(to, 0, bytes);
    return true;
}

static bool open_cpu(struct kv_error *err)
{
    const struct kv_backend_ops *ops = kv_backend_find("cpu");
    const struct kv_weights weights = {engine_rig_geometry, NULL, read_zeros};
    const struct kv_backend_options options = {.threads = 2, .rows_max = 64, .items_max = 4};
    struct kv_backend *backend = NULL;
    struct kv_mem *mem = NULL;
    void *host = NULL;
    arm();
    bool ok = ops->open(&backend, &weights, &options, err) && ops->alloc(backend, 4096, &mem, &host, err);
    disarm();
    if (backend) ops->release(backend, mem);
    ops->close(backend);
    return ok;
}

static bool listen_at(const char *address, struct kv_error *err)
{
    struct kv_listener listener;
    arm();
    bool ok = kv_listener_open(&listener, address, NULL, err);
    disarm();
    kv_listener_close(&listener);
    return ok;
}

/* A number, not a name: glibc 2.36 looks names up through a pointer that it got no memory for. */
static bool listen_tcp(struct kv_error *err)
{
    return listen_at("127.0.0.1:0", err);
}

static bool listen_unix(struct kv_error *err)
{
    char address[64];
    snprintf(address, sizeof address, "unix:/tmp/kvmat_allocations_%d.sock", (int)getpid());
    return listen_at(address, err);
}

static struct kv_engine *engine_served;

static bool open_http(struct kv_error *err)
{
    struct kv_listener listener[2];
    struct kv_http *http = NULL;
    for (int32_t i = 0; i < 2; i++) ck_assert(kv_listener_open(&listener[i], "127.0.0.1:0", NULL, NULL));
    const struct kv_http_options options = {engine_served, listener, 2, "test", "test", false, NULL};
    arm();
    bool ok = kv_http_open(&http, &options, err);
    disarm();
    ck_assert(ok == (http != NULL));
    kv_http_close(http);
    for (int32_t i = 0; i < 2; i++) kv_listener_close(&listener[i]);
    return ok;
}

static struct http_rig rig;

/* One request: a right reply, an error, or a closed connection, and the server lives on. */
static bool exchange(struct kv_error *err)
{
    size_t bytes = 0;
    unsigned char *wire = http_rig_request(5, 77, "", &bytes, NULL);
    char reply[16 * 1024];
    size_t count = 0;
    arm();
    int fd = http_rig_connect(&rig, true);
    ssize_t got = http_rig_send(fd, wire, bytes);
    shutdown(fd, SHUT_WR);
    while (got > 0) {
        got = recv(fd, reply + count, sizeof reply - 1 - count, 0);
        if (got > 0) count += (size_t)got;
    }
    int why = errno;
    disarm(); /* before anything is asserted: libcheck allocates too */
    ck_assert_msg(got == 0 || why == ECONNRESET, "neither an answer nor an end");
    close(fd);
    free(wire);
    reply[count] = '\0';
    static const char good[] = "HTTP/1.1 200 ";
    bool ok = count >= sizeof good - 1 && memcmp(reply, good, sizeof good - 1) == 0;
    if (count > 0 && !ok) ck_assert_ptr_nonnull(strstr(reply, "\"code\""));
    ck_assert(http_rig_alive(&rig));
    return ok || kv_fail(err, KV_INTERNAL, "%s", count ? "an error" : "a closed connection");
}

static bool parse_options(struct kv_error *err)
{
    char *const argv[] = {"kvmatd", "--model", "a", "--listen=127.0.0.1:1", "--max-body", "1M"};
    struct kv_options options;
    setenv("KVMAT_LISTEN", "127.0.0.1:2, unix:/tmp/x", 1);
    arm();
    bool ok = kv_options_parse(&options, 6, argv, err);
    disarm();
    return ok;
}

START_TEST(documents)
{
    exhaust("kv_document_open", open_document);
    exhaust("a document of awkward names", open_names);
    exhaust("kv_request_decode", decode_request);
    exhaust("kv_options_parse", parse_options);
}
END_TEST

START_TEST(checkpoints)
{
    exhaust("a checkpoint of shards", open_sharded);
    exhaust("a checkpoint to convert", open_converted);
    exhaust("a checkpoint with taps", open_taps);
    made_begin(&broken);
    made_config(&broken, "{\"hidden_size\": 0, \"rms_norm_eps\": \"x\", \"layer_types\": [1, 2, 3]}");
    made_change(&broken, "drop layers.1.self_attn.k_proj.weight; add fc.bias BF16 32; fc 2");
    made_write(&broken);
    exhaust("a broken checkpoint", refuse_broken);
    made_end(&broken);
}
END_TEST

START_TEST(devices)
{
    fake = (struct fake_device){0};
    exhaust("kv_engine_start", open_engine);
    exhaust("the CPU backend", open_cpu);
}
END_TEST

START_TEST(servers)
{
    exhaust("kv_listener_open, TCP", listen_tcp);
    exhaust("kv_listener_open, unix", listen_unix);
    engine_served = engine_rig_open((struct kv_engine_options){0});
    exhaust("kv_http_open", open_http);
    engine_rig_close(engine_served);
    http_rig_open(&rig, (struct kv_engine_options){0});
    exhaust("a request", exchange);
    http_rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server/allocations");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, documents);
    tcase_add_test(tests, checkpoints);
    tcase_add_test(tests, devices);
    tcase_add_test(tests, servers);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
