/* What the client reads before it believes anything: addresses and the heads of replies. */
#include "client/head.h"
#include "client/url.h"
#include "tests/suite.h"

#include <string.h>

START_TEST(urls_are_parsed)
{
    struct kv_url url;
    ck_assert(kv_url_parse(&url, "http://127.0.0.1:8600", NULL));
    ck_assert_str_eq(url.host, "127.0.0.1");
    ck_assert_str_eq(url.port, "8600");
    ck_assert(kv_url_parse(&url, "http://[::1]:80/", NULL));
    ck_assert_str_eq(url.host, "::1");
    ck_assert_str_eq(url.authority, "[::1]:80");
    ck_assert(kv_url_parse(&url, "http://draft-kv.prod.svc:65535", NULL));
    ck_assert(kv_url_parse(&url, "unix:/run/kvmat.sock", NULL));
    ck_assert(url.is_unix);
    ck_assert_str_eq(url.path, "/run/kvmat.sock");
}
END_TEST

static const char *const bad_urls[] = {
    "",
    "127.0.0.1:8600",
    "https://h:1",
    "http://",
    "http://:80",
    "http://h",
    "http://h:",
    "http://h:0",
    "http://h:65536",
    "http://h:999999",
    "http://h:80x",
    "http://h:80/path",
    "http://u@h:80",
    "http://[::1:80",
    "http://[]:80",
    "http://::1:80",
    "http://h h:80",
    "unix:",
    "ftp://h:1",
    "http://h\r\n:80",
    "unix:/"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaa",
};

START_TEST(bad_urls_are_refused)
{
    struct kv_url url;
    struct kv_error err = {0};
    ck_assert(!kv_url_parse(&url, bad_urls[_i], &err));
    ck_assert_int_eq(err.fault, KV_OPTION_INVALID);
    ck_assert(strstr(err.hint, "http://HOST:PORT") != NULL);
}
END_TEST

START_TEST(heads_are_read)
{
    static const char text[] =
        "HTTP/1.1 429 Too Many Requests\r\ncontent-LENGTH:  7 \r\nRetry-After: 2\r\n"
        "Server-Timing: queue;dur=0.25, device;desc=\"x\";dur=1.5\r\nX-Request-Id: a-1\r\n"
        "Content-Type: application/json\r\nConnection: foo, Close\r\n\r\nrest";
    struct kv_head head;
    size_t bytes = kv_head_find_end(text, sizeof text - 1);
    ck_assert_uint_eq(bytes, sizeof text - 1 - 4);
    ck_assert_uint_eq(kv_head_find_end(text, bytes - 1), 0);
    ck_assert(kv_head_parse(&head, text, bytes, NULL));
    ck_assert_int_eq(head.status, 429);
    ck_assert(head.has_length && head.length == 7 && !head.keep);
    ck_assert_int_eq(head.retry_after_s, 2);
    ck_assert_double_eq(head.queue_ms, 0.25);
    ck_assert_double_eq(head.device_ms, 1.5);
    ck_assert_str_eq(head.request_id, "a-1");
    ck_assert_str_eq(head.content_type, "application/json");
}
END_TEST

static const char *const bad_heads[] = {
    "HTTP/2 200 OK\r\n\r\n",
    "HTTP/1.1 20 OK\r\n\r\n",
    "HTTP/1.1 2000 OK\r\n\r\n",
    "HTTP/1.1 099 Low\r\n\r\n",
    "ICY 200 OK......\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
    "HTTP/1.1 200 OK\r\nNo colon here\r\n\r\n",
    "HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
    "HTTP/1.1 200 OK\r\nName : spaced\r\n\r\n",
    "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
};

START_TEST(bad_heads_are_refused)
{
    struct kv_head head;
    struct kv_error err = {0};
    const char *text = bad_heads[_i];
    ck_assert_uint_eq(kv_head_find_end(text, strlen(text)), strlen(text));
    ck_assert(!kv_head_parse(&head, text, strlen(text), &err));
    ck_assert_int_eq(err.fault, KV_REPLY_MALFORMED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client head");
    TCase *tests = tcase_create("head");
    tcase_add_test(tests, urls_are_parsed);
    tcase_add_loop_test(tests, bad_urls_are_refused, 0, (int)(sizeof bad_urls / sizeof *bad_urls));
    tcase_add_test(tests, heads_are_read);
    tcase_add_loop_test(tests, bad_heads_are_refused, 0, (int)(sizeof bad_heads / sizeof *bad_heads));
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
