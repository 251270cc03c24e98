/* TLS is the HTTP library's, which is built with GnuTLS for it; what it makes of certificate and key is asked
 * before anything listens. */
#include "server/http_exchange.h"

#include <stdio.h>
#include <string.h>

enum { SAID_BYTES = 160 };

static const char versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

/* The first that the library says, without its line end. */
static void keep_said(void *cls, const char *format, va_list arguments)
{
    char *said = cls;
    if (said[0]) return;
    vsnprintf(said, SAID_BYTES, format, arguments);
    said[strcspn(said, "\r\n")] = '\0';
}

/* The library starts nothing without one; it has no connection to call it for. */
static enum MHD_Result serve_nothing(void *cls, struct MHD_Connection *connection, const char *path,
                                     const char *method, const char *version, const char *data, size_t *bytes,
                                     void **context)
{
    (void)cls, (void)connection, (void)path, (void)method, (void)version, (void)data, (void)bytes;
    (void)context;
    return MHD_NO;
}

void kv_tls_items(const struct kv_access *access, struct MHD_OptionItem *items)
{
    /* The library takes the texts as not constant, and only reads them. */
    items[0] =
        (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)kv_access_tls_cert(access)};
    items[1] =
        (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)kv_access_tls_key(access)};
    items[2] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)versions};
    items[3] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
}

bool kv_tls_check(const struct kv_access *access, struct kv_error *err)
{
    struct MHD_OptionItem items[KV_TLS_ITEMS];
    char said[SAID_BYTES] = "";
    if (!kv_access_tls_cert(access)) return true;
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return kv_fail_param(err, KV_OPTION_INVALID, "--tls-cert",
                             "the libmicrohttpd of this build has no TLS");
    kv_tls_items(access, items);
    struct MHD_Daemon *tried = MHD_start_daemon(MHD_USE_TLS | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0,
                                                NULL, NULL, serve_nothing, NULL, MHD_OPTION_EXTERNAL_LOGGER,
                                                keep_said, said, MHD_OPTION_ARRAY, items, MHD_OPTION_END);
    if (!tried) return kv_access_refuse_tls(access, said, err);
    MHD_stop_daemon(tried);
    return true;
}

bool kv_tls_is_spoken(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION) != NULL;
}
