"""Device time of the stage through PyTorch as a user would write it, and through SGLang's helper where a
path to an installed one is given, each checked against float64 before it is timed. Medians in microseconds.

alone:              one call on an idle device, from before its first launch to the end of its last kernel
sustained, burst:   a graph of many calls, the weights rotating over three L2 caches; after work, and after
                    15 ms of idle before each measurement
"""

import argparse
import csv
import datetime
import math
import os
import signal
import statistics
import time

import torch

from gpu_stage import SglangStage, Shape, check, random_input, random_stage

SHAPES = (Shape("L5_H4096", 5, 4096), Shape("L5_H2560", 5, 2560), Shape("L6_H7168", 6, 7168))
ROWS = (16, 64, 128, 256, 512, 1024, 2048, 8192, 16384, 1)  # 1 is compiled anew, so it comes last
LAUNCHES, BURST_US, IDLE_S, SETTLE_S, COVER_BYTES = 24, 8000, 0.015, 0.25, 128 << 20
HEAD = "date commit gpu driver shape T mode what us gemm_first_us gemm_best_us floor_us ratio".split()


class Clock:
    """Times work on the device. A copy before each measurement hides the launch and clears the cache."""

    def __init__(self, started, seconds):
        self.cover = [torch.full((COVER_BYTES,), 0x5A, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.deadline = started + seconds

    def over(self):
        return time.monotonic() > self.deadline

    def _once(self, work, idle):
        self.cover[1].copy_(self.cover[0])
        if idle:
            torch.cuda.synchronize()
        self.begin.record()
        work()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e3

    def alone(self, works, budget_s):
        """{name: us} of single calls that start on an idle device."""
        return self._rounds(works, budget_s, lambda work: self._once(work, True), 0)

    def graphs(self, graphs, launches, burst, budget_s):
        def run(graph):
            if burst:
                time.sleep(IDLE_S)
            return self._once(graph.replay, False) / launches

        return self._rounds(graphs, budget_s, run, 0 if burst else SETTLE_S)

    @staticmethod
    def _rounds(works, budget_s, run, settle_s):
        """Interleaved rounds, at least 7, after one that does not count and `settle_s` of the same work."""
        settled = time.monotonic() + settle_s
        while True:
            for work in works.values():
                run(work)
            if time.monotonic() >= settled:
                break
        seen, began, order = {name: [] for name in works}, time.monotonic(), list(works)
        while len(seen[order[0]]) < 7 or (time.monotonic() - began < budget_s and len(seen[order[0]]) < 40):
            order.append(order.pop(0))
            for name in order:
                seen[name].append(run(works[name]))
        return {name: statistics.median(times) for name, times in seen.items()}


def capture(calls, launches):
    """`launches` calls in one graph, in turn over the copies."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    return graph


def launches_for(us, copies):
    """A multiple of the copies, at least 20 while a graph of as many is short."""
    return max(copies, min(LAUNCHES, int(BURST_US / us)) // copies * copies)


def check_all(stage, sglang, hidden, positions):
    check("torch", stage(hidden, positions), stage, hidden, positions)
    if sglang:
        sglang(hidden, positions)
        check("sglang", sglang.result(), stage, hidden, positions)


def warm_compiled(compiled, stage, hidden, positions):
    """The compiled stage as a call, after it has been compiled, recorded and checked."""

    def call():
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(hidden, positions)

    for _ in range(3):
        call()
    check("torch.compile", call(), stage, hidden, positions)
    return call


def measure_rows(clock, stages, sglangs, compiled, rows):
    """{mode: {what: us}}; `gemm` is the matrix product alone."""
    stage, shape = stages[0], stages[0].shape
    hidden, positions = random_input(shape, rows, "cuda")
    check_all(stage, sglangs and sglangs[0], hidden, positions)
    single = {"gemm": lambda: stage.project(hidden), "torch_eager": lambda: stage(hidden, positions)}
    if compiled is not None and not clock.over():
        single["torch_compile"] = warm_compiled(compiled, stage, hidden, positions)
    calls = {
        "gemm": [lambda s=s: s.project(hidden) for s in stages],
        "torch_graph": [lambda s=s: s(hidden, positions) for s in stages],
    }
    if sglangs:
        single["sglang_eager"] = lambda: sglangs[0](hidden, positions)
        calls["sglang_graph"] = [lambda s=s: s(hidden, positions) for s in sglangs]
    times = {"alone": clock.alone(single, 0.3)}
    launches = launches_for(times["alone"]["gemm"], len(stages))
    graphs = {name: capture(copies, launches) for name, copies in calls.items()}
    times["sustained"] = clock.graphs(graphs, launches, False, 0.4)
    times["burst"] = clock.graphs(graphs, launches, True, 0.5)
    return times


def append_csv(path, shape, rows, times):
    if not path:
        return
    with open(path, "a", newline="", encoding="ascii") as file:
        out = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            out.writerow(HEAD)
        first = (
            datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            os.environ.get("KVMAT_COMMIT", "unknown"),
            torch.cuda.get_device_name(),
            os.environ.get("KVMAT_DRIVER", f"CUDA {torch.version.cuda}"),
        )
        for mode, of in times.items():
            for what, us in of.items():
                if what != "gemm":
                    row = (shape.name, rows, mode, what, f"{us:.2f}", f"{of['gemm']:.2f}", "", "")
                    out.writerow(first + row + (f"{us / of['gemm']:.3f}",))


COLUMNS = (
    ("alone", "gemm"),
    ("alone", "torch_eager"),
    ("alone", "torch_compile"),
    ("alone", "sglang_eager"),
    *((mode, what) for mode in ("sustained", "burst") for what in ("gemm", "torch_graph", "sglang_graph")),
)


def print_row(rows, times):
    cells = (times.get(mode, {}).get(what) for mode, what in COLUMNS)
    print(f"{rows:6d}", *("            -" if us is None else f"{us:13.1f}" for us in cells), flush=True)


def measure_shape(clock, shape, options):
    cache = 3 * torch.cuda.get_device_properties(0).L2_cache_size
    copies = max(2, math.ceil(cache / (2 * shape.layers * shape.outputs * shape.hidden * 2)))
    while LAUNCHES % copies:
        copies += 1
    stages = [random_stage(shape, "cuda", seed) for seed in range(copies)]
    sglangs = [SglangStage(options.sglang, stage) for stage in stages] if options.sglang else []
    torch.compiler.reset()
    compiled = None if options.no_compile else torch.compile(stages[0], mode="reduce-overhead", dynamic=True)
    print(f"\n{shape.name}, {copies} copies of the weights; microseconds, medians")
    print(" " * 6, *(f"{mode:>13}" for mode, _ in COLUMNS))
    print("     T", *(f"{what:>13}" for _, what in COLUMNS))
    for rows in ROWS:
        if clock.over():
            print(f"{rows:6d} left out: the time is over")
            continue
        times = measure_rows(clock, stages, sglangs, compiled, rows)
        print_row(rows, times)
        append_csv(options.csv, shape, rows, times)


def main():
    started = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv")
    parser.add_argument("--sglang", metavar="PATH", help="a folder of SGLang, or its fused_kv_materialize.py")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--check", action="store_true", help="check small shapes on the CPU and time nothing")
    parser.add_argument("--seconds", type=float, default=105, help="no row begins later")
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        if options.check:
            shape = Shape("small", 2, 192, kv_heads=2, head_dim=64, positions=4096)
            for rows in (1, 16, 100):
                check_all(random_stage(shape, "cpu", rows), None, *random_input(shape, rows, "cpu"))
            print("checked")
            return
        if not torch.cuda.is_available():
            print("skip: no CUDA device")
            return
        signal.alarm(int(options.seconds) + 15)
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
        clock = Clock(started, options.seconds)
        for shape in SHAPES:
            measure_shape(clock, shape, options)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
