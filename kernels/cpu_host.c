/* Large memory and facts about the machine, from Linux. Knows no tensors. */
#include "kernels/cpu_host.h"

#include "protocol/tensor.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024, LINE_BYTES = 64 };

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; an older kernel refuses it and pages are touched one by one */
#endif

bool kv_region_map(struct kv_region *region, uint64_t bytes, const char *what, struct kv_error *err)
{
    *region = (struct kv_region){0};
    uint64_t free_bytes = kv_host_free_bytes();
    /* Memory is promised generously and taken back by killing: ask before, not when it is too late. */
    bool fits = bytes <= free_bytes && bytes <= SIZE_MAX - 2 * HUGE_PAGE_BYTES;
    size_t spare = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    size_t mapped_bytes = fits ? (size_t)bytes + spare + LINE_BYTES : 0;
    void *base = MAP_FAILED;
    if (fits) base = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return kv_fail(err, KV_DEVICE_OUT_OF_MEMORY,
                       "no memory for %s: needed %" PRIu64 " bytes, free %" PRIu64, what, bytes, free_bytes);
    uintptr_t begin = (uintptr_t)base;
    if (spare > 0) {
        /* Both ends that are not on a whole huge page go back, so that what is left can be huge all over. */
        size_t before = (HUGE_PAGE_BYTES - begin % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
        if (before > 0) munmap(base, before);
        base = (unsigned char *)base + before;
        mapped_bytes -= before;
        madvise(base, mapped_bytes, MADV_HUGEPAGE);
    }
    *region = (struct kv_region){.base = base, .bytes = (size_t)bytes, .mapped_bytes = mapped_bytes};
    return true;
}

/* Bytes of a slice, rounded up to whole lines; false on overflow. */
static bool slice_bytes(const struct kv_slice *slice, uint64_t *bytes)
{
    return kv_mul((uint64_t)slice->a, (uint64_t)slice->b, bytes) &&
           kv_mul(*bytes, (uint64_t)slice->c, bytes) && kv_mul(*bytes, slice->element_bytes, bytes) &&
           !__builtin_add_overflow(*bytes, -*bytes % LINE_BYTES, bytes);
}

bool kv_region_carve(struct kv_region *region, struct kv_slice *slices, int32_t count, const char *what,
                     struct kv_error *err)
{
    uint64_t total = 0, bytes;
    bool fits = true;
    for (int32_t i = 0; i < count; i++)
        fits = fits && slice_bytes(&slices[i], &bytes) && !__builtin_add_overflow(total, bytes, &total);
    if (!kv_region_map(region, fits ? total : UINT64_MAX, what, err)) return false;
    unsigned char *next = region->base;
    for (int32_t i = 0; i < count && slice_bytes(&slices[i], &bytes); i++) {
        slices[i].at = bytes > 0 ? next : NULL;
        next += bytes;
    }
    return true;
}

void kv_region_touch(struct kv_region *region)
{
    if (!region->base || madvise(region->base, region->mapped_bytes, MADV_POPULATE_WRITE) == 0) return;
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < region->bytes; i += page_bytes) ((volatile unsigned char *)region->base)[i] = 0;
}

void kv_region_unmap(struct kv_region *region)
{
    if (region->base) munmap(region->base, region->mapped_bytes);
    *region = (struct kv_region){0};
}

/* The text after "<key><blanks>:<blanks>" in a file of such lines; false when it is not there. */
static bool find_line(const char *path, const char *key, char *to, size_t to_bytes)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *value = line + strlen(key);
        value += strspn(value, " \t");
        if (*value != ':') continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(to, to_bytes, "%.*s", (int)strcspn(value, "\n"), value);
        found = true;
    }
    fclose(file);
    return found;
}

uint64_t kv_host_free_bytes(void)
{
    char text[64];
    uint64_t kibibytes, bytes;
    if (!find_line("/proc/meminfo", "MemAvailable", text, sizeof text)) return UINT64_MAX;
    if (sscanf(text, "%" SCNu64, &kibibytes) != 1 || !kv_mul(kibibytes, 1024, &bytes)) return UINT64_MAX;
    return bytes;
}

int32_t kv_host_cpus(void)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) return CPU_COUNT(&cpus) > 0 ? CPU_COUNT(&cpus) : 1;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT32_MAX ? (int32_t)online : 1;
}

const char *kv_host_name(char *to, size_t to_bytes)
{
    struct utsname names;
    if (find_line("/proc/cpuinfo", "model name", to, to_bytes)) return to;
    snprintf(to, to_bytes, "%s", uname(&names) == 0 ? names.machine : "unknown");
    return to;
}
