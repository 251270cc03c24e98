/* A sweep as a picture: latency over rate, both axes logarithmic. The page's colours follow the reader's. */
#include "client/bench_report.h"

#include <math.h>

enum {
    WIDTH = 760,
    HEIGHT = 440,
    LEFT = 70,
    RIGHT = 730,
    TOP = 84,
    BOTTOM = 380,
    INSET = 24,
    LABEL_WIDTH = 48
};
enum { LINES = 3, TICK_FIRST = -18, TICK_LAST = 33 }; /* 1e-6 to 1e11 ms */

static const struct kv_bench_part lines[LINES] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};

static const char style[] =
    "<style>\n"
    "text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}.faint{fill:#666}\n"
    ".back{fill:#fff}.grid{stroke:#ddd}.axis{stroke:#888}.line{fill:none;stroke-width:2}circle{stroke-width:"
    "2}\n"
    ".p50{stroke:#1f6fd0;fill:#1f6fd0}.p90{stroke:#c26a00;fill:#c26a00}.p99{stroke:#b3245f;fill:#b3245f}\n"
    ".line,circle.lossy{fill:none}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6e6e6}.faint{fill:#a0a0a0}.back{fill:#16181c}\n"
    ".grid{stroke:#33373d}.axis{stroke:#777}.p50{stroke:#6fb1ff;fill:#6fb1ff}.p90{stroke:#ffb454;fill:#"
    "ffb454}\n"
    ".p99{stroke:#ff7fae;fill:#ff7fae}.line,circle.lossy{fill:none}}\n"
    "</style>\n";

struct plot {
    FILE *to;
    const struct kv_bench_run *run[KV_RATES_MAX]; /* by rate */
    int32_t runs;
    int tick_first, tick_last; /* of latency */
};

/* 1, 2 and 5 times each power of ten. */
static double tick(int index)
{
    static const double steps[] = {1, 2, 5};
    int step = (index % 3 + 3) % 3, exponent = (index - step) / 3;
    return steps[step] * pow(10, exponent);
}

static double latency_ms(const struct kv_bench_run *run, int line)
{
    return (double)kv_latencies_at(&run->result->latency, lines[line].part) / 1e6;
}

/* Along an axis from `from` to `to`, where first and last are not the same: else in the middle. */
static double place(double value, double first, double last, double from, double to)
{
    return last > first ? from + (to - from) * log(value / first) / log(last / first) : (from + to) / 2;
}

static double x_of(const struct plot *plot, double rate)
{
    return place(rate, plot->run[0]->rate, plot->run[plot->runs - 1]->rate, LEFT + INSET, RIGHT - INSET);
}

static double y_of(const struct plot *plot, double ms)
{
    return place(ms, tick(plot->tick_first), tick(plot->tick_last), BOTTOM, TOP);
}

static void order(struct plot *plot, const struct kv_bench_report *report)
{
    for (int32_t i = 0; i < report->runs; i++) {
        int32_t at = plot->runs++;
        for (; at > 0 && plot->run[at - 1]->rate > report->run[i].rate; at--)
            plot->run[at] = plot->run[at - 1];
        plot->run[at] = &report->run[i];
    }
}

/* The ticks around all latencies; without any, from 1 to 10 ms. */
static void scale(struct plot *plot)
{
    double min = INFINITY, max = 0;
    for (int32_t i = 0; i < plot->runs; i++) {
        if (plot->run[i]->result->requests == 0) continue;
        min = fmin(min, latency_ms(plot->run[i], 0));
        max = fmax(max, latency_ms(plot->run[i], LINES - 1));
    }
    if (max <= 0) min = 1, max = 10;
    plot->tick_first = TICK_LAST - 1;
    while (plot->tick_first > TICK_FIRST && tick(plot->tick_first) > min) plot->tick_first--;
    plot->tick_last = plot->tick_first + 1;
    while (plot->tick_last < TICK_LAST && tick(plot->tick_last) < max) plot->tick_last++;
}

/* Text as it may stand between tags, cut to fit. */
static void put_text(FILE *to, const char *text)
{
    char printable[88];
    kv_text_print(text, printable, sizeof printable);
    for (const char *at = printable; *at; at++) {
        switch (*at) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        default: fputc(*at, to);
        }
    }
}

static void put_titles(const struct plot *plot, const struct kv_bench_report *report)
{
    const struct kv_bench_options *how = report->how;
    char mix[KV_BENCH_MIX_BYTES];
    fprintf(plot->to, "<text class=\"title\" x=\"%d\" y=\"26\">", LEFT);
    put_text(plot->to, how->model->name);
    fprintf(plot->to, "</text>\n<text class=\"faint\" x=\"%d\" y=\"46\">tokens ", LEFT);
    put_text(plot->to, kv_bench_mix_print(&how->mix, mix, sizeof mix));
    fprintf(plot->to, "; %s arrivals, %d connection%s, %.15g s each</text>\n",
            how->poisson ? "poisson" : "constant", how->connections, how->connections > 1 ? "s" : "",
            how->seconds);
}

static void put_axes(const struct plot *plot)
{
    FILE *to = plot->to;
    bool crowded = plot->tick_last - plot->tick_first > 15;
    for (int i = plot->tick_first; i <= plot->tick_last; i++) {
        double y = y_of(plot, tick(i));
        if (crowded && (i % 3 + 3) % 3 != 0) continue;
        fprintf(to, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, RIGHT, y,
                y);
        fprintf(to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, y + 4, tick(i));
    }
    fprintf(to, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", LEFT, RIGHT, BOTTOM,
            BOTTOM);
    double labelled = -LABEL_WIDTH;
    for (int32_t i = 0; i < plot->runs; i++) {
        double x = x_of(plot, plot->run[i]->rate);
        fprintf(to, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x, BOTTOM,
                BOTTOM + 5);
        if (x - labelled < LABEL_WIDTH) continue;
        labelled = x;
        fprintf(to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", x, BOTTOM + 20,
                plot->run[i]->rate);
    }
    fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">requests per second due</text>\n",
            (LEFT + RIGHT) / 2, BOTTOM + 44);
    fprintf(to,
            "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">latency in ms</text>\n",
            (TOP + BOTTOM) / 2);
}

static void put_line(const struct plot *plot, int line)
{
    FILE *to = plot->to;
    const char *name = lines[line].name;
    int key = LEFT + line * 72;
    fprintf(to, "<line class=\"line %s\" x1=\"%d\" x2=\"%d\" y1=\"66\" y2=\"66\"/>\n", name, key, key + 24);
    fprintf(to, "<text x=\"%d\" y=\"70\">%s</text>\n<polyline class=\"line %s\" points=\"", key + 30, name,
            name);
    for (int32_t i = 0; i < plot->runs; i++) {
        const struct kv_bench_run *run = plot->run[i];
        if (run->result->requests == 0) continue;
        fprintf(to, "%.1f,%.1f ", x_of(plot, run->rate), y_of(plot, latency_ms(run, line)));
    }
    fprintf(to, "\"/>\n");
    for (int32_t i = 0; i < plot->runs; i++) {
        const struct kv_bench_run *run = plot->run[i];
        const struct kv_bench_result *result = run->result;
        if (result->requests == 0) continue;
        bool lossy = result->failed + result->not_begun > 0;
        fprintf(to, "<circle class=\"%s%s\" r=\"3.5\" cx=\"%.1f\" cy=\"%.1f\">", name, lossy ? " lossy" : "",
                x_of(plot, run->rate), y_of(plot, latency_ms(run, line)));
        fprintf(to, "<title>%g/s: %s %.3f ms, %llu answered, %llu failed, %llu not begun</title></circle>\n",
                run->rate, name, latency_ms(run, line), (unsigned long long)result->requests,
                (unsigned long long)result->failed, (unsigned long long)result->not_begun);
    }
}

void kv_bench_svg(FILE *to, const struct kv_bench_report *report)
{
    struct plot plot = {.to = to};
    order(&plot, report);
    scale(&plot);
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "role=\"img\" aria-label=\"Latency over rate\">\n%s<rect class=\"back\" width=\"%d\" "
            "height=\"%d\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, style, WIDTH, HEIGHT);
    put_titles(&plot, report);
    put_axes(&plot);
    for (int line = 0; line < LINES; line++) put_line(&plot, line);
    fprintf(to,
            "<text class=\"faint\" x=\"%d\" y=\"70\" text-anchor=\"end\">hollow: some failed or were not "
            "begun</text>\n",
            RIGHT);
    fprintf(to, "</svg>\n");
}
