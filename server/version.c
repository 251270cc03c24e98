/* The one object that changes with every commit. */
#include "server/version.h"

const char kv_version[] = KV_VERSION;
