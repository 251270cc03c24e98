/* Requests whose first line, headers or framing are wrong. See hostile.h. Where a body would be read
 * differently by another reader, it holds a request of its own, which must never be answered. */
#include "tests/hostile.h"

#include <microhttpd.h>

/* A piece of a request with its size: some hold NUL. */
#define BYTES(text) text, sizeof(text) - 1
#define GET "GET /health HTTP/1.1\r\nHost: x\r\n"
#define POST "POST /v1/materialize HTTP/1.1\r\nHost: x\r\n"
#define INNER "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Request-Id: smuggled\r\n\r\n"
#define INNER_BYTES "58"
_Static_assert(sizeof INNER - 1 == 58, "INNER_BYTES is what it says");
#define CHUNKS "5\r\nhello\r\n0\r\n\r\n"

/* A length that is no length: whoever reads on behind it reads something else. */
#define LENGTH(value)                                                                                        \
    {BYTES(GET "Content-Length:" value "\r\n\r\n" INNER), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},             \
    {                                                                                                        \
        BYTES(POST "Content-Length:" value "\r\n\r\n" INNER), HOSTILE_REFUSED, NULL, HOSTILE_ENDED           \
    }
/* Refused in our words where the library lets it through. */
#define CODING(lines)                                                                                        \
    {BYTES(GET lines "\r\n" CHUNKS), 400, "header_invalid", HOSTILE_ENDED},                                  \
    {                                                                                                        \
        BYTES(POST lines "\r\n" CHUNKS), 400, "header_invalid", HOSTILE_ENDED                                \
    }
#define CHUNK(text)                                                                                          \
    {                                                                                                        \
        BYTES(GET "Transfer-Encoding: chunked\r\n\r\n" text INNER), HOSTILE_REFUSED, NULL, HOSTILE_ENDED     \
    }
#define INVALID(text)                                                                                        \
    {                                                                                                        \
        BYTES(text), 400, "header_invalid", HOSTILE_ENDED                                                    \
    }
#define ABSENT(target)                                                                                       \
    {                                                                                                        \
        BYTES("GET " target " HTTP/1.1\r\nHost: x\r\n\r\n"), 404, "not_found", HOSTILE_KEPT                  \
    }
#define NO_METHOD(method, path)                                                                              \
    {                                                                                                        \
        BYTES(method " " path " HTTP/1.1\r\nHost: x\r\n\r\n"), 405, "method_not_allowed", HOSTILE_KEPT       \
    }
#define ENCODED(value)                                                                                       \
    {                                                                                                        \
        BYTES(POST "Content-Encoding: " value "\r\nContent-Length: " INNER_BYTES "\r\n\r\n" INNER), 415,     \
            "media_type_unsupported", HOSTILE_KEPT                                                           \
    }
#define EXPECTED(lines)                                                                                      \
    {                                                                                                        \
        BYTES(POST lines "Content-Length: 5\r\n\r\n"), 417, "expectation_failed", HOSTILE_ENDED              \
    }
#define TIMEOUT(value)                                                                                       \
    {                                                                                                        \
        BYTES(POST "X-Request-Timeout-Ms: " value "\r\nContent-Length: 5\r\n\r\nhello"), 400,                \
            "parameter_invalid", HOSTILE_KEPT                                                                \
    }
/* What is no HTTP at all is the library's to answer. */
#define NO_HTTP(text)                                                                                        \
    {                                                                                                        \
        BYTES(text), HOSTILE_ANY, NULL, HOSTILE_EITHER                                                       \
    }

/* Later versions of the library join the lines as they should be joined. */
#if MHD_VERSION < 0x01000000
#define FOLDED(text) INVALID(text)
#else
#define FOLDED(text) NO_HTTP(text)
#endif

static const struct hostile heads[] = {
    LENGTH(" 5, 5"),
    LENGTH(" 5,5"),
    LENGTH(" 5,"),
    LENGTH(" +5"),
    LENGTH(" -5"),
    LENGTH(" -0"),
    LENGTH(" 0x5"),
    LENGTH(" 5.0"),
    LENGTH(" 5e0"),
    LENGTH(" 5;"),
    LENGTH(" 5 5"),
    LENGTH(" 5\v"),
    LENGTH(""),
    LENGTH(" "),
    LENGTH(" five"),
    LENGTH(" 18446744073709551616"),
    LENGTH(" 18446744073709551621"), /* 5, were it to wrap */
    LENGTH(" 99999999999999999999999999"),
    /* a length with blanks before it, or zeros, is one */
    {BYTES(POST "Content-Length:\t 5\r\n\r\nhello"), 400, "body_malformed", HOSTILE_KEPT},
    {BYTES(POST "Content-Length:5\r\n\r\nhello"), 400, "body_malformed", HOSTILE_KEPT},
    {BYTES(POST "Content-Length: 000000000000000000000000005\r\n\r\nhello"), 400, "body_malformed",
     HOSTILE_KEPT},
    {BYTES(POST "Content-Length: 5 \r\n\r\nhello"), HOSTILE_REFUSED, NULL, HOSTILE_EITHER},
    {BYTES(POST "Content-Length: 9223372036854775807\r\n\r\n" INNER), 413, "payload_too_large",
     HOSTILE_ENDED},
    {BYTES(POST "Content-Length: 9223372036854775808\r\n\r\n" INNER), 413, "payload_too_large",
     HOSTILE_ENDED},
    {BYTES(POST "Content-Length: 18446744073709551615\r\n\r\n" INNER), 413, "payload_too_large",
     HOSTILE_ENDED},
    {BYTES("POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n" INNER), 404,
     "not_found", HOSTILE_ENDED},
    INVALID(GET "Content-Length: 0\r\nContent-Length: " INNER_BYTES "\r\n\r\n" INNER),
    INVALID(GET "Content-Length: " INNER_BYTES "\r\ncontent-length: 0\r\n\r\n" INNER),
    INVALID(GET "Content-Length: 0\r\nContent-Length: 0\r\n\r\n" INNER),

    CODING("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
    CODING("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"),
    CODING("Transfer-Encoding: gzip\r\n"),
    CODING("Transfer-Encoding: identity\r\n"),
    CODING("Transfer-Encoding: gzip, chunked\r\n"),
    CODING("Transfer-Encoding: chunked, gzip\r\n"),
    CODING("Transfer-Encoding: chunked, chunked\r\n"),
    CODING("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    CODING("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"),
    CODING("Transfer-Encoding: xchunked\r\n"),
    CODING("Transfer-Encoding: chunked;q=1\r\n"),
    CODING("Transfer-Encoding: \"chunked\"\r\n"),
    CODING("Transfer-Encoding: \vchunked\r\n"),
    CODING("Transfer-Encoding:\r\n"),
    {BYTES(POST "Transfer-Encoding: cHuNkEd\r\n\r\n" CHUNKS), 411, "length_required", HOSTILE_KEPT},
    {BYTES(POST "Transfer-Encoding: chunked\r\n\r\n" INNER_BYTES "; x\r\n"), HOSTILE_REFUSED, NULL,
     HOSTILE_ENDED},
    {BYTES(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n"), 411, "length_required",
     HOSTILE_KEPT}, /* a trailer frames nothing */
    {BYTES(GET "Transfer-Encoding: chunked\r\n\r\n3a\r\n" INNER "\r\n0\r\n\r\n"), 200, NULL, HOSTILE_KEPT},
    {BYTES(POST "Transfer-Encoding: chunked\r\n\r\n3A;x=y\r\n" INNER "\r\n0\r\n\r\n"), 411, "length_required",
     HOSTILE_KEPT},
    {BYTES("POST /nope HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n3a\r\n" INNER "\r\n0\r\n\r\n"),
     HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    CHUNK("zz\r\n"),
    CHUNK("-1\r\n"),
    CHUNK("0x5\r\n"),
    CHUNK(" 5\r\n"),
    CHUNK("\r\n"),
    CHUNK("5\r\nhello!"),
    CHUNK("10000000000000000\r\n"),
    CHUNK("100000000000000005\r\nhello\r\n0\r\n\r\n"),

    /* one header over two lines: some readers join them, some see two, some none */
    FOLDED(POST "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\nhello"),
    FOLDED(GET "Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n"),
    FOLDED(POST "Content-Length: 5\r\n 8\r\n\r\n" INNER),
    FOLDED(GET "X: y\r\n Content-Length: " INNER_BYTES "\r\n\r\n" INNER),
    FOLDED(GET "X: y\r\n z\r\n\r\n"),
    INVALID("GET /health HTTP/1.1\r\n Host: x\r\n\r\n"),
    /* and other names that are none */
    INVALID("GET /health HTTP/1.1\r\nHost : x\r\n\r\n"),
    INVALID(GET "Transfer-Encoding : chunked\r\n\r\n" CHUNKS),
    INVALID(GET "Content-Length\t: " INNER_BYTES "\r\n\r\n" INNER),
    INVALID(GET "X(y): z\r\n\r\n"),
    INVALID(GET "Content-Length\xc2\xa0: " INNER_BYTES "\r\n\r\n" INNER),
    {BYTES(GET "no colon\r\n\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES(GET "Content-Length\0: " INNER_BYTES "\r\n\r\n" INNER), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES(GET "X\0Y: z\r\n\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},

    INVALID("GET /health HTTP/1.1\r\n\r\n"),
    INVALID("GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"),
    INVALID(POST "X-Request-Timeout-Ms: 1000\r\nX-Request-Timeout-Ms: 0\r\nContent-Length: 5\r\n\r\nhello"),
    INVALID(POST "X-Request-Timeout-Ms: 0\r\nX-Request-Timeout-Ms: 1000\r\nContent-Length: 5\r\n\r\nhello"),
    TIMEOUT("0"),
    TIMEOUT("-1"),
    TIMEOUT("1e3"),
    TIMEOUT("3600001"),
    TIMEOUT("18446744073709551617"),
    TIMEOUT(""),

    ABSENT("http://x/health"),
    ABSENT("health"),
    ABSENT("*"),
    ABSENT("/health/"),
    ABSENT("//health"),
    ABSENT("/v1/../health"),
    ABSENT("/health#x"),
    ABSENT("/he\xff\xfe"),
    ABSENT("/v1/errors/\xff\x01"),
    ABSENT("/v1/errors/%73ize_mismatch"),
    {BYTES("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), 404, "not_found", HOSTILE_KEPT},
    {BYTES("CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"), 404, "not_found", HOSTILE_KEPT},
    NO_METHOD("OPTIONS", "/v1/materialize"),
    NO_METHOD("TRACE", "/health"),
    NO_METHOD("get", "/health"),
    NO_METHOD("GETGETGETGETGETGETGETGETGETGET", "/health"),
    NO_METHOD("PUT", "/v1/materialize"),
    {BYTES("PATCH /v1/materialize HTTP/1.1\r\nHost: x\r\nContent-Length: " INNER_BYTES "\r\n\r\n" INNER), 405,
     "method_not_allowed", HOSTILE_KEPT},
    {BYTES(POST "\r\n"), 411, "length_required", HOSTILE_KEPT},
    {BYTES(GET "Content-Length: " INNER_BYTES "\r\n\r\n" INNER), 200, NULL, HOSTILE_KEPT},

    ENCODED("gzip"),
    ENCODED("identity, gzip"),
    ENCODED("br"),
    ENCODED(""),
    ENCODED("identity\r\nContent-Encoding: identity"),
    {BYTES(GET "Content-Encoding: gzip\r\n\r\n"), 415, "media_type_unsupported", HOSTILE_KEPT},
    EXPECTED("Expect: the-moon\r\n"),
    EXPECTED("Expect: 100-continue, the-moon\r\n"),
    EXPECTED("Expect:\r\n"),
    EXPECTED("Expect: 100-continue\r\nExpect: 100-continue\r\n"),
    {BYTES("POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"), 404,
     "not_found", HOSTILE_ENDED},
    /* and the body comes all the same */
    {BYTES(POST "Expect: the-moon\r\nContent-Length: " INNER_BYTES "\r\n\r\n" INNER), 417,
     "expectation_failed", HOSTILE_ENDED},
    {BYTES("POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " INNER_BYTES
           "\r\n\r\n" INNER),
     404, "not_found", HOSTILE_ENDED},
    {BYTES(POST "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3a\r\n" INNER "\r\n0\r\n\r\n"),
     411, "length_required", HOSTILE_ENDED},
    /* Nothing to continue with: what follows is a request, and no body. */
    {BYTES(GET "Expect: 100-continue\r\n\r\n"), 200, NULL, HOSTILE_EITHER},
    {BYTES(GET "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"), 200, NULL, HOSTILE_EITHER},
    {BYTES(POST "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"), 400, "body_malformed", HOSTILE_EITHER},
    {BYTES(POST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"), 400, "body_malformed",
     HOSTILE_KEPT},

    {BYTES("GET /health HTTP/1.0\r\n\r\n"), 200, NULL, HOSTILE_ENDED},
    {BYTES("GET /health HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), 200, NULL, HOSTILE_EITHER},
    {BYTES("POST /v1/materialize HTTP/1.0\r\n\r\n"), 411, "length_required", HOSTILE_ENDED},
    {BYTES("POST /v1/materialize HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello"), 400, "body_malformed",
     HOSTILE_ENDED},
    {BYTES(GET "Connection: close\r\n\r\n"), 200, NULL, HOSTILE_ENDED},
    {BYTES(GET "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n"), 200, NULL,
     HOSTILE_KEPT},
    {BYTES("GET /health HTTP/2.0\r\nHost: x\r\n\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES("GET /health HTTP/1.\r\nHost: x\r\n\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES("GET /health HTTQ/1.1\r\nHost: x\r\n\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES("GET /health http/1.1\r\nHost: x\r\n\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES("GET /health\r\n"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},
    {BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"), HOSTILE_REFUSED, NULL, HOSTILE_ENDED},

    NO_HTTP("\x16\x03\x01\x00\xc4\x01\x00\x00\xc0\x03\x03 ClientHello"),
    NO_HTTP("\0\1\2\xff\r\n\r\n"),
    NO_HTTP("\r\n\r\n\r\n"),
    NO_HTTP(" GET /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    NO_HTTP("GET\t/health\tHTTP/1.1\r\nHost: x\r\n\r\n"),
    NO_HTTP("GET  /health  HTTP/1.1\r\nHost: x\r\n\r\n"),
    NO_HTTP("GET /he alth HTTP/1.1\r\nHost: x\r\n\r\n"),
    NO_HTTP("GET /health\0 HTTP/1.1\r\nHost: x\r\n\r\n"),
    NO_HTTP("GE\0T /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    NO_HTTP("GET /health HTTP/1.1\nHost: x\n\n"),
    NO_HTTP("POST /v1/materialize HTTP/1.1\nHost: x\nContent-Length: " INNER_BYTES "\n\n" INNER),
    NO_HTTP("GET /health HTTP/1.1\rHost: x\r\r"),
    NO_HTTP(GET "X: a\rb\r\n\r\n"),
    NO_HTTP(GET "Transfer-Encoding: chunked\r\n\r\n3a\n" INNER "\n0\n\n"),
    NO_HTTP(GET "X: a\0b\r\n\r\n"),
    NO_HTTP(GET "Host:\r\n\r\n"),
    NO_HTTP(GET ": value\r\n\r\n"),
    NO_HTTP(POST "Content-Length: " INNER_BYTES "\0 9\r\n\r\n" INNER),
    NO_HTTP(POST "Transfer-Encoding: chunked\0\r\n\r\n" CHUNKS),
    NO_HTTP("GET /health HTTP/1.2\r\nHost: x\r\n\r\n"),
    NO_HTTP("GET /health?%zz&&=&a%00=%ff HTTP/1.1\r\nHost: x\r\n\r\n"),
};

const struct hostile *hostile_heads(int32_t *count)
{
    *count = (int32_t)(sizeof heads / sizeof heads[0]);
    return heads;
}
