/* The version of this build. */
#ifndef KV_SERVER_VERSION_H
#define KV_SERVER_VERSION_H
extern const char kv_version[]; /* what git calls it, or "unknown" */
#endif
