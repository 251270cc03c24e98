#!/bin/sh
# Tests check_layers.sh: a small clean house passes it, and each violation planted there is named with its
# file, its line and its reason. Knows nothing of the real house's files.
set -eu

checker=$(cd "$(dirname "$0")" && pwd)/check_layers.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
house=$scratch/house
passed=0
failed=0

write() { # FILE, text from standard input
    mkdir -p "$house/$(dirname "$1")"
    cat >"$house/$1"
}

build_house() {
    rm -rf "$house"
    write protocol/error.h <<'END'
/* Errors. Knows nothing else; "#include <jansson.h>" in a comment is no include. */
#include <stdbool.h>
END
    write protocol/tensor.h <<'END'
/* Tensors. */
#include "protocol/error.h"
END
    write protocol/safetensors.c <<'END'
/* Documents. */
#include "protocol/tensor.h"
#include <jansson.h>

static const char *const warning = "never call sprintf( or exit(";
static int sum(int count)
{
    int total = 0; /* system( in a comment is no call */
    while (count > 0) total += count--;
    return total;
}
END
    write kernels/backend.h <<'END'
/* The boundary. */
#include "protocol/tensor.h"
END
    write kernels/backend.c <<'END'
/* The backends of this build. */
#include "kernels/backend.h"
#ifdef KV_WITH_CUDA
#endif
END
    write server/http.h <<'END'
/* The service. */
#include "kernels/backend.h"
END
    write server/http.c <<'END'
/* The service over HTTP. */
#include "server/http.h"
#include <microhttpd.h>
#include <sys/socket.h>
END
    write server/main.c <<'END'
/* The daemon. */
#include "server/http.h"
#include <stdlib.h>

int main(void)
{
    exit(0);
}
END
    write client/client.h <<'END'
/* The client. */
#include "protocol/error.h"
END
    write tests/test_server_http.c <<'END'
/* Enters every room. */
#include "client/client.h"
#include "server/http.h"
#include <check.h>
#include <jansson.h>
END
}

verdict() { # what, whether
    if [ "$2" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $1; check_layers said:"
        sed 's/^/  /' "$scratch/said"
    fi
}

expect_clean() { # what
    if sh "$checker" "$house" >"$scratch/said" 2>&1; then verdict "$1" yes; else verdict "$1" no; fi
}

expect_named() { # what, the start of the line that must be printed, a part of its reason
    if sh "$checker" "$house" >"$scratch/said" 2>&1; then
        verdict "$1 (exit status 0)" no
    elif grep -F "$2" "$scratch/said" | grep -qF -- "$3"; then
        verdict "$1" yes
    else
        verdict "$1 (not named)" no
    fi
}

plant_include() { # FILE, the line
    { cat "$house/$1" && printf '#include %s\n' "$2"; } >"$scratch/planted"
    cp "$scratch/planted" "$house/$1"
}

arrow() { # FILE, the include, a part of the reason
    build_house
    plant_include "$1" "$2"
    expect_named "$1 includes $2" "$1:$(grep -c '' "$house/$1"): " "$3"
}

append() { # FILE, text from standard input
    cat >>"$house/$1"
}

build_house
expect_clean "a clean house"
rm -rf "$house/client" "$house/tests"
expect_clean "a house without some of its rooms"

arrow protocol/tensor.h '"kernels/backend.h"' 'protocol/ knows no other room'
arrow protocol/error.h '<sys/socket.h>' 'knows no sockets'
arrow protocol/tensor.h '<jansson.h>' "one door"
arrow kernels/backend.c '"server/http.h"' 'kernels/ may include only'
arrow kernels/backend.c '"protocol/safetensors.h"' 'kernels/ may include only'
arrow kernels/backend.c '<cublasLt.h>' "one door"
arrow server/http.c '"kernels/cpu_panel.h"' 'through kernels/backend.h only'
arrow server/http.c '"client/client.h"' 'server/ knows no client/'
arrow server/http.c '<cuda_runtime_api.h>' "one door"
arrow server/http.c '<xxhash.h>' "one door"
arrow server/main.c '<microhttpd.h>' "one door"
arrow client/client.h '"server/http.h"' 'client/ speaks protocol/ only'
arrow client/client.h '<check.h>' "one door"
arrow server/http.c '"tests/data.h"' 'nothing but tests/'
arrow server/http.c '<zlib.h>' 'a library without a door'
arrow server/http.c '"http.h"' 'written from the root'
arrow server/http.c '"server/../protocol/error.h"' 'written from the root'
arrow server/http.c '"server/absent.h"' 'there is no such file'

build_house
plant_include protocol/error.h '"protocol/tensor.h"'
expect_named "a cycle" "protocol/tensor.h:2: " "protocol/error.h -> protocol/tensor.h -> protocol/error.h"

build_house
plant_include protocol/error.h '"protocol/error.h"'
expect_named "a file that includes itself" "protocol/error.h:3: " "a cycle of includes"

build_house
write server/http.c <<'END'
/* The service over HTTP. */
#include <microhttpd.h>
#include "server/http.h"
END
expect_named "own header second" "server/http.c:2: " "its own header comes first"

build_house
write server/http_body.h <<'END'
/* Private to http_body.c's family. */
#include "server/http.h"
END
write server/http.c <<'END'
/* The service over HTTP. */
#include "server/http_body.h"
END
expect_clean "a private header that begins with the file's name comes first"

for call in 'sprintf(to, "x")' 'strcpy(a, b)' 'strcat (a, b)' 'gets(a)' 'atoi(a)' 'strtok(a, b)' 'system(a)' \
    'exit(1)' 'abort()' '_exit(2)'; do
    build_house
    append server/http.c <<END
static void act(void)
{
    $call;
}
END
    expect_named "call of $call" "server/http.c:7: ${call%%[ (]*}()" ""
done

for call in 'kv_exit(1)' 'my_system(a)' 'snprintf(to, 1, "exit(1)")' \
    'at_exit /* ( */' "use('\"'); /* exit(1) */"; do
    build_house
    append server/http.c <<END
static void act(void)
{
    $call;
}
END
    expect_clean "no banned call in $call"
done

repeat() { # how often, the line
    awk -v count="$1" -v line="$2" 'BEGIN { for (i = 0; i < count; i++) print line }'
}

build_house
{
    printf 'static void long_one(int a,\n                     int b)\n{\n'
    repeat 69 '    a++;'
    printf '}\n'
} | append server/http.c
expect_named "a function of 71 lines" "server/http.c:7: long_one" "function of 71 lines"

build_house
{
    printf 'static void long_one(void)\n{\n'
    repeat 68 '    a++;'
    printf '}\n'
} | append server/http.c
expect_clean "a function of 70 lines"

build_house
printf 'static void act(void) {\n}\n' | append server/http.c
expect_named "a brace at the end of the line" "server/http.c:5: act" "on its own line"

build_house
repeat 397 '' | append server/http.c
expect_named "a file of 401 lines" "server/http.c:401: " "file of 401 lines"

build_house
repeat 396 '' | append server/http.c
expect_clean "a file of 400 lines"

wide=$(repeat 107 x | tr -d '\n')
build_house
printf '/* %sé */\n' "${wide%????}" | append server/http.c
expect_clean "110 columns, one of them two bytes"

build_house
printf '/* %s*/\n' "${wide}" | append server/http.c
expect_named "112 columns" "server/http.c:5: " "112 columns"

build_house
printf '#!/bin/sh\n# %s\n' "$wide$wide" | write tests/smoke.sh
expect_named "a wide script" "tests/smoke.sh:2: " "columns"

build_house
printf 'int a;\n' | write server/count.c
expect_named "a file without an opening comment" "server/count.c:1: " "opens with a comment"

build_house
printf '/* Odds and ends. */\n' | write server/string_utils.c
expect_named "a name that says nothing" "server/string_utils.c:1: " "a name that says nothing"

build_house
printf 'typedef struct kv_thing kv_thing;\n' | append server/http.h
expect_named "a typedef of a struct" "server/http.h:3: " "typedef of a struct"

build_house
printf '#ifdef KV_WITH_CUDA\n#endif\n' | append server/main.c
expect_named "a second #ifdef for CUDA" "server/main.c:9: " "holds the only one"

build_house
printf '\tint a;\n' | append server/main.c
expect_named "a tab" "server/main.c:9: " "a tab"

build_house
printf 'Start it with /%s/somebody/kvmatd\n' home | write README.md
expect_named "a path into a home" "README.md:1:" "one machine only"

build_house
rm -rf "$house"
mkdir "$house"
expect_named "no rooms at all" "check_layers: no rooms" ""

echo "check_layers: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
