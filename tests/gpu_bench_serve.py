"""The served path on loopback, in one interleaved run: kvmatd over TCP and over a unix socket, the service a
Python user would write, and a bare echo of the same bytes over both kinds of socket. The client is
`kvmat bench` for all of them. Before anything is timed, the two services' answers are compared."""

import argparse
import contextlib
import csv
import datetime
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HEAD = "date commit gpu driver shape T mode what us gemm_first_us gemm_best_us floor_us ratio".split()
ROUNDS, MANY, MANY_TOKENS_MAX, START_S, CALL_S = 3, 64, 512, 90, 60
TARGETS = ("kvmatd_tcp", "kvmatd_unix", "aiohttp", "echo_tcp", "echo_unix")
BARE = {"kvmatd_unix": "echo_unix", "echo_unix": "echo_unix"}  # the rest is beside echo_tcp


def run_length(tokens, connections):
    """How long one measurement is, as arguments of `kvmat bench`."""
    if connections > 1:
        return ["--seconds", "1" if tokens <= 64 else "2", "--warmup", "1"]
    if tokens > 2048:
        return ["--requests", "5", "--warmup", "1"]
    return ["--seconds", "0.7" if tokens <= 64 else "1", "--warmup", "10"]


class Processes(contextlib.ExitStack):
    """What was started, each ended at the end."""

    def start(self, arguments, **how):
        process = subprocess.Popen([str(a) for a in arguments], text=True, stdin=subprocess.PIPE, **how)
        self.callback(self._end, process)
        return process

    @staticmethod
    def _end(process):
        process.stdin.close()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_line(path, process, read):
    """What `read` finds in the growing file; gives up when the process has ended."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        ended = process.poll() is not None
        text = path.read_text()
        found = read(text)
        if found:
            return found
        if ended:
            break
        time.sleep(0.05)
    raise SystemExit(f"{process.args[0]} did not start:\n{text}")


def start_kvmatd(processes, options, model, scratch, name="kvmatd", more=()):
    log = scratch / f"{name}.log"
    unix = f"unix:{scratch}/{name}.sock"
    arguments = [
        options.build / "kvmatd",
        "--model",
        model,
        "--device",
        options.device,
        "--pool-bytes",
        "2GiB",
        *more,
    ]
    with log.open("w") as file:
        process = processes.start(arguments + ["--listen", "127.0.0.1:0", "--listen", unix], stderr=file)

    def read_url(text):
        places = [
            line.split("listening on ")[1].split()[0] for line in text.splitlines() if "listening on " in line
        ]
        return next((place for place in places if place.startswith("http")), None)

    url = wait_for_line(log, process, read_url)
    subprocess.run(
        [options.build / "kvmat", "ready", "--url", url, "--wait", str(START_S)], check=True, stdout=-3
    )
    return url, unix


def start_aiohttp(processes, options, model, scratch):
    said = scratch / "aiohttp.said"
    arguments = [
        sys.executable,
        HERE / "gpu_service_aiohttp.py",
        "--model",
        model,
        "--device",
        options.device,
    ]
    if options.sglang:
        arguments += ["--sglang", options.sglang]
    with said.open("w") as file:
        process = processes.start(arguments, stdout=file)
    return f"http://127.0.0.1:{wait_for_line(said, process, str.strip)}"


def start_echo(processes, options, scratch, model_reply, reply):
    (scratch / "echo.model").write_bytes(model_reply)
    (scratch / "echo.reply").write_bytes(reply)
    said = scratch / "echo.said"
    place = scratch / "echo.sock"
    place.unlink(missing_ok=True)
    echo = options.build / "tests" / "gpu_bench_echo"
    arguments = [echo, scratch / "echo.model", scratch / "echo.reply", place]
    with said.open("w") as file:
        process = processes.start(arguments, stdout=file)
    return f"http://127.0.0.1:{wait_for_line(said, process, str.strip)}", f"unix:{place}"


def exchange(url, head, body=b""):
    """One request; the whole reply as it came, and its body."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=CALL_S) as connection:
        connection.sendall(
            f"{head} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        got = bytearray()
        total = None
        while total is None or len(got) < total:
            part = connection.recv(1 << 20)
            if not part:
                raise SystemExit(f"{url} closed: {bytes(got[:300])}")
            got += part
            end = got.find(b"\r\n\r\n") + 4
            if total is None and end > 3:
                lines = bytes(got[:end]).lower().split(b"\r\n")
                if b" 200 " not in lines[0] + b" ":
                    raise SystemExit(f"{url}: {head}: {bytes(got[:300])}")
                length = [line for line in lines if line.startswith(b"content-length:")][0]
                total = end + int(length.split(b":")[1])
    return bytes(got), bytes(got[end:])


def compare(options, scratch, model, urls, tokens):
    """The answers of both services to one request must agree; returns kvmatd's reply as it came."""
    request = scratch / "request"
    request.unlink(missing_ok=True)
    kvmat = options.build / "kvmat"
    make = [kvmat, "make-request", "--model", model, "--tokens", str(tokens), request]
    subprocess.run(make, check=True, stdout=-3)
    reply, ours = exchange(urls["kvmatd_tcp"], "POST /v1/materialize", request.read_bytes())
    if tokens <= MANY_TOKENS_MAX:
        (scratch / "ours").write_bytes(ours)
        (scratch / "theirs").write_bytes(
            exchange(urls["aiohttp"], "POST /v1/materialize", request.read_bytes())[1]
        )
        test = [kvmat, "compare", "--tolerance", "5e-3", scratch / "ours", scratch / "theirs"]
        subprocess.run(test, check=True, stdout=-3)
    return reply


def bench(options, url, tokens, connections):
    """What `kvmat bench` says, as {name: number}."""
    arguments = ["--url", url, "--tokens", str(tokens), "--connections", str(connections)]
    command = [options.build / "kvmat", "bench", *arguments, *run_length(tokens, connections)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"kvmat bench {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def measure(options, urls, tokens, connections):
    """{target: {name: median over the rounds}}."""
    seen = {target: [] for target in TARGETS}
    for turn in range(ROUNDS):
        for i in range(len(TARGETS)):
            target = TARGETS[(i + turn) % len(TARGETS)]
            seen[target].append(bench(options, urls[target], tokens, connections))
    return {
        target: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for target, runs in seen.items()
    }


def busy(url):
    """What /metrics counts: seconds that batches were with the device, and requests answered."""
    text = exchange(url, "GET /metrics")[1].decode()
    names = ("kvmat_device_busy_seconds_total ", 'kvmat_requests_total{route="materialize",code="ok"} ')
    return [
        next((float(line[len(name) :]) for line in text.splitlines() if line.startswith(name)), 0.0)
        for name in names
    ]


def measure_batching(options, processes, scratch, model, joined):
    """Many small requests at once, joined into batches and each in a batch of its own."""
    tokens = min(options.sizes)
    alone = start_kvmatd(processes, options, model, scratch, "alone", ["--max-batch-tokens", str(tokens)])[0]
    seen = {"joined": [], "alone": []}
    for turn in range(ROUNDS):
        for name, url in (("joined", joined), ("alone", alone))[:: 1 - 2 * (turn % 2)]:
            before = busy(url)
            run = bench(options, url, tokens, MANY)
            seconds, requests = (after - then for after, then in zip(busy(url), before))
            seen[name].append(run | {"device_us": seconds * 1e6 / requests})
    print(f"\nT = {tokens}, {MANY} connections, TCP: requests joined into batches, and each in one of its own")
    print("       requests/s    p50 ms    p99 ms device us a request")
    for name, runs in seen.items():
        of = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(
            f"{name:6s} {of['requests_per_s']:10.1f} {of['latency_ms_p50']:9.3f} {of['latency_ms_p99']:9.3f}"
            f" {of['device_us']:10.2f}"
        )
        append_values(
            options.csv,
            tokens,
            f"{MANY}_connections_{name}",
            {"per_request": 1e6 / of["requests_per_s"], "device_per_request": of["device_us"]},
        )


def print_rows(tokens, connections, results):
    for target, of in results.items():
        p50, p99, rate = of["latency_ms_p50"], of["latency_ms_p99"], of["requests_per_s"]
        bodies = of["request_gb_per_s"] + of["reply_gb_per_s"]
        over = (p50 - results[BARE.get(target, "echo_tcp")]["latency_ms_p50"]) * 1e3
        better = (results["aiohttp"]["latency_ms_p50"] / p50, rate / results["aiohttp"]["requests_per_s"])
        print(
            f"{tokens:6d} {connections:5d} {target:12s} {p50:9.3f} {p99:9.3f} {rate:10.1f} {bodies:8.2f}"
            f" {over:10.0f} {better[connections > 1]:9.2f}"
        )
    sys.stdout.flush()


def append_rows(path, rows):
    """Rows from the column `shape` on."""
    if not path:
        return
    with open(path, "a", newline="", encoding="ascii") as file:
        out = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            out.writerow(HEAD)
        first = [datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")]
        first += [os.environ.get(f"KVMAT_{name}", "unknown") for name in ("COMMIT", "GPU", "DRIVER")]
        out.writerows(first + row for row in rows)


def append_values(path, tokens, what, values):
    append_rows(
        path, [["L5_H4096", tokens, mode, what, f"{us:.2f}", "", "", "", ""] for mode, us in values.items()]
    )


def append_csv(path, tokens, connections, results):
    """Microseconds: p50 and p99 of one connection, time per request of many; the ratio is to the echo."""

    def times(of):
        if connections > 1:
            return {f"{connections}_connections_per_request": 1e6 / of["requests_per_s"]}
        return {f"1_connection_p{n}": of[f"latency_ms_p{n}"] * 1e3 for n in (50, 99)}

    rows = []
    for target, of in results.items():
        bare = times(results[BARE.get(target, "echo_tcp")])
        for mode, us in times(of).items():
            rows.append(
                ["L5_H4096", tokens, mode, target, f"{us:.2f}", "", "", "", f"{us / bare[mode]:.3f}"]
            )
    append_rows(path, rows)


def serve_and_measure(options, processes, scratch):
    until = time.monotonic() + options.seconds
    model = scratch / "model"
    sizes = ["--layers", "5", "--hidden", "4096", "--kv-heads", "8", "--head-dim", "128"]
    subprocess.run([options.build / "kvmat", "make-model", *sizes, model], check=True, stdout=-3)
    tcp, unix = start_kvmatd(processes, options, model, scratch)
    urls = {
        "kvmatd_tcp": tcp,
        "kvmatd_unix": unix,
        "aiohttp": start_aiohttp(processes, options, model, scratch),
    }
    model_reply = exchange(tcp, "GET /v1/model")[0]
    print("Served on loopback, L5 H4096 Hkv8 D128; medians of interleaved runs; client: kvmat bench")
    print("     T conns target         p50 ms    p99 ms requests/s     GB/s p50 - echo x aiohttp")
    print("                                                           bodies         us")
    for tokens in options.sizes:
        reply = compare(options, scratch, model, urls, tokens)
        with Processes() as echo:
            urls["echo_tcp"], urls["echo_unix"] = start_echo(echo, options, scratch, model_reply, reply)
            for connections in (1, MANY) if tokens <= MANY_TOKENS_MAX else (1,):
                if time.monotonic() > until:
                    print(f"{tokens:6d} {connections:5d} left out: the time is over")
                    continue
                results = measure(options, urls, tokens, connections)
                print_rows(tokens, connections, results)
                append_csv(options.csv, tokens, connections, results)
    if time.monotonic() < until:
        measure_batching(options, processes, scratch, model, tcp)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder of the binaries")
    parser.add_argument("--csv")
    parser.add_argument("--device", default="cuda", help="of both services; cpu is for trying this out")
    parser.add_argument("--sglang", metavar="PATH", help="let the Python service use the helper of an SGLang")
    parser.add_argument("--seconds", type=float, default=140, help="no measurement begins later")
    parser.add_argument(
        "--sizes", type=lambda text: [int(part) for part in text.split(",")], default=[16, 512, 8192]
    )
    options = parser.parse_args()
    options.build = options.build.resolve()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, Processes() as processes:
        serve_and_measure(options, processes, pathlib.Path(scratch))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
