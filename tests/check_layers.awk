# The rules that check_layers.sh proves, over every code file of the house at once. Prints `file:line: reason`
# for each violation and, with -v summary=1, one line of counts at the end. Knows our own style only: a
# function's body starts with `{` and ends with `}` in the first column.

BEGIN {
    lines_max = 400; function_lines_max = 70; columns_max = 110

    # One door for each library: who may include its headers. tests/ may include all of them.
    door["microhttpd"] = "^server/http[a-z_]*[.][ch]$"
    door["jansson"] = "^(protocol/(safetensors(_parse)?[.]c|json_value[.][ch]|description[.]c)|" \
        "server/(config(_[a-z]+)?|index)[.]c|client/decode[.]c)$"
    door["xxhash"] = "^server/(parts|fingerprint)[a-z_]*[.]c$"
    door["cuda"] = "^kernels/cuda_[a-z_]*[.](c|h|cu|cuh)$"
    door["check"] = "^tests/"
    door["cblas"] = "^tests/"
    door["dlfcn"] = "^tests/"

    # What the C library, the compiler and the kernel offer is no library in that sense.
    standard = "^(assert|ctype|errno|float|inttypes|limits|locale|math|fenv|setjmp|signal|stdalign|stdarg|" \
        "stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|strings|time|wchar|dirent|endian|" \
        "fnmatch|glob|fcntl|getopt|libgen|malloc|pthread|sched|semaphore|spawn|termios|unistd|immintrin|" \
        "cpuid|sys/[a-z_]+|linux/[a-z_]+)[.]h$"
    sockets = "^(netdb|poll|ifaddrs|sys/(socket|un|epoll|select|poll)|netinet/[a-z_]+|arpa/inet|" \
        "net/[a-z_]+)[.]h$"

    banned = "sprintf|vsprintf|strcpy|strcat|gets|atoi|atol|atoll|atof|strtok|system|alloca"
    instead["sprintf"] = instead["vsprintf"] = "snprintf"
    instead["strcpy"] = instead["strcat"] = "memcpy with a checked size, or snprintf"
    instead["gets"] = "fgets"
    instead["atoi"] = instead["atol"] = instead["atoll"] = instead["atof"] = "strtoll or strtod with checks"
    instead["strtok"] = "strcspn and strspn"
    instead["system"] = "posix_spawn, or nothing"
    instead["alloca"] = "a sized buffer"
    mains = "^(server/main[.]c|client/kvmat[.]c|tests/.*)$"
}

function report(path, line, reason)
{
    printf "%s:%d: %s\n", path, line, reason
    violations++
}

function room_of(path)
{
    return substr(path, 1, index(path, "/") - 1)
}

# The rest of `text` behind the literal that `quote` has opened; all of it when the literal does not end here.
function after_literal(text, quote,    i, c)
{
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "\\") i++
        else if (c == quote) return substr(text, i + 1)
    }
    return ""
}

# The line without comments, its literals emptied. in_comment lives from line to line.
function code_of(text,    out, token)
{
    out = ""
    while (text != "") {
        if (in_comment) {
            if (!match(text, /\*\//)) return out
            text = substr(text, RSTART + 2)
            in_comment = 0
            continue
        }
        if (!match(text, /\/\*|\/\/|"|'/)) return out text
        token = substr(text, RSTART, RLENGTH)
        out = out substr(text, 1, RSTART - 1)
        text = substr(text, RSTART + RLENGTH)
        if (token == "//") return out
        if (token == "/*") {
            in_comment = 1
            out = out " "
        } else {
            text = after_literal(text, token)
            out = out token token
        }
    }
    return out
}

function check_own(path, line, target,    room, other)
{
    room = room_of(path)
    other = room_of(target)
    if (target !~ /\// || target ~ /(^|\/)[.][.]?\// || target ~ /^\//) {
        report(path, line, "\"" target "\": includes are written from the root, as \"room/file.h\"")
        return
    }
    edges++
    edge_to[path] = edge_to[path] " " target
    edge_line[path, target] = line
    if (room == "tests" || other == room) return
    if (other == "tests") report(path, line, target ": nothing but tests/ may include from tests/")
    else if (room == "protocol") report(path, line, target ": protocol/ knows no other room")
    else if (room == "kernels" && target !~ /^protocol\/(error|tensor)[.]h$/)
        report(path, line, target ": kernels/ may include only protocol/error.h and protocol/tensor.h")
    else if (room == "server" && other == "kernels" && target != "kernels/backend.h")
        report(path, line, target ": server/ reaches the devices through kernels/backend.h only")
    else if (room == "server" && other == "client") report(path, line, target ": server/ knows no client/")
    else if (room == "client" && other != "protocol")
        report(path, line, target ": client/ speaks protocol/ only")
}

function check_library(path, line, target,    room, library)
{
    room = room_of(path)
    library = target
    sub(/[.]h$/, "", library)
    if (library ~ /^(cuda|cublas|nv|driver_types|vector_types|cooperative_groups|mma)/) library = "cuda"
    if (library ~ /^(cblas|openblas)/) library = "cblas"
    if (library in door) {
        if (room != "tests" && path !~ door[library])
            report(path, line, "<" target ">: this library's one door is elsewhere: " door[library])
    } else if (target ~ sockets) {
        if (room == "protocol" || room == "kernels")
            report(path, line, "<" target ">: " room "/ knows no sockets")
    } else if (target !~ standard) {
        report(path, line, "<" target ">: a library without a door; check_layers.awk lists the doors")
    }
}

function check_include(path, line, text,    target)
{
    target = text
    if (text ~ /include[ \t]*"/) {
        sub(/^[^"]*"/, "", target)
        sub(/".*$/, "", target)
        check_own(path, line, target)
    } else if (text ~ /include[ \t]*</) {
        sub(/^[^<]*</, "", target)
        sub(/>.*$/, "", target)
        check_library(path, line, target)
    } else {
        report(path, line, "an include of neither \"...\" nor <...>")
    }
    if (!(path in first_include)) {
        first_include[path] = target
        first_line[path] = line
    }
}

function check_calls(path, line, code,    name)
{
    while (match(code, "(^|[^A-Za-z0-9_])(" banned "|exit|_exit|_Exit|quick_exit|abort)[ \t]*[(]")) {
        name = substr(code, RSTART, RLENGTH)
        code = substr(code, RSTART + RLENGTH)
        gsub(/[^A-Za-z0-9_]/, "", name)
        if (name in instead) report(path, line, name "() is banned: use " instead[name])
        else if (path !~ mains) report(path, line, name "() below main: fail with kv_fail instead")
    }
}

function check_functions(path, line, code,    long)
{
    if (code ~ /^[A-Za-z_].*[(]/ && !body_line) {
        function_name = code
        sub(/[ \t]*[(].*$/, "", function_name)
        sub(/^.*[ \t*]/, "", function_name)
        if (function_name ~ /^START_TEST$/) function_name = code
        if (code ~ /[)][ \t]*[{][ \t]*$/)
            report(path, line, function_name ": a function's { stands on its own line")
    }
    if (code ~ /^[{]/ && !body_line) body_line = line
    if (code ~ /^[}]/ && body_line) {
        long = line - body_line + 1
        if (long > function_lines_max)
            report(path, body_line, function_name ": function of " long " lines, at most " function_lines_max)
        body_line = 0
    }
}

function end_file()
{
    if (!file) return
    if (lines > lines_max && file !~ /[.]def$/)
        report(file, lines, "file of " lines " lines, at most " lines_max)
}

function begin_file(    name)
{
    end_file()
    file = FILENAME
    sub(/^[.]\//, "", file)
    known[file] = 1
    order[++files] = file
    script = file !~ /[.](c|h|cu|cuh|def)$/
    in_comment = body_line = 0
    name = file
    sub(/^.*\//, "", name)
    if (name ~ /(^|_)(utils?|common|helpers?|manager|misc)([_.]|$)/)
        report(file, 1, "a name that says nothing: " name)
    if (!script && $0 !~ /^\/[*\/]/)
        report(file, 1, "a file opens with a comment: what it is and what it does not know")
}

FNR == 1 { begin_file() }

{
    lines = FNR
    seen = $0
    gsub(/[\200-\277]/, "", seen)
    if (length(seen) > columns_max) report(file, FNR, length(seen) " columns, at most " columns_max)
}

script { next }

/\t/ { report(file, FNR, "a tab; indent with four spaces") }

{
    code = code_of($0)
    if (code ~ /^[ \t]*#[ \t]*include/) {
        check_include(file, FNR, $0)
    } else if (code ~ /^[ \t]*#[ \t]*(el)?ifn?(def)?[^a-z]/) {
        if (code ~ /CUDA|NVCC/ && file !~ /^kernels\/(backend[.]c|cuda_.*|.*[.]cuh?)$/)
            report(file, FNR, "#if for CUDA: kernels/backend.c holds the only one")
    } else {
        check_calls(file, FNR, code)
        if (code !~ /^[ \t]*#/) check_functions(file, FNR, code)
        if (code ~ /(^|[^A-Za-z0-9_])typedef[ \t]+(struct|enum|union)([^A-Za-z0-9_]|$)/)
            report(file, FNR, "typedef of a struct, enum or union: write struct kv_noun")
    }
}

# Depth first over the includes; `trail` is " a b c " down to this file.
function walk(path, trail,    target, count, i)
{
    state[path] = 1
    count = split(edge_to[path], target, " ")
    for (i = 1; i <= count; i++) {
        if (state[target[i]] == 1) {
            sub("^.* " target[i] " ", target[i] " ", trail)
            gsub(/ $/, "", trail)
            gsub(/ /, " -> ", trail)
            report(path, edge_line[path, target[i]], "a cycle of includes: " trail " -> " target[i])
        } else if (!state[target[i]] && target[i] in known) {
            walk(target[i], trail target[i] " ")
        }
    }
    state[path] = 2
}

# What can be said of a file only once all are known.
function check_whole(path,    target, count, i, own, family)
{
    count = split(edge_to[path], target, " ")
    for (i = 1; i <= count; i++)
        if (!(target[i] in known))
            report(path, edge_line[path, target[i]], target[i] ": there is no such file")
    own = family = path
    sub(/[.](c|cu)$/, "_[a-z_]*[.]h", family) # queue.c may begin with queue_state.h, its private header
    if (sub(/[.](c|cu)$/, ".h", own) && own in known && first_include[path] != own &&
        first_include[path] !~ "^" family "$")
        report(path, first_line[path] + 0, "its own header comes first: \"" own "\"")
    if (!state[path]) walk(path, " " path " ")
}

END {
    end_file()
    for (i = 1; i <= files; i++) check_whole(order[i])
    if (summary) printf "layers: %d files, %d arrows between them, %d violations\n", files, edges, violations
    exit violations > 0
}
