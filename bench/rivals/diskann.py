"""DiskANN's own program, `diskann-benchmark` of crates.io: builds, and searches by lists."""

import json
import os
import subprocess
import sys
import time

import versions

# By extension: what DiskANN calls the elements.
ELEMENTS = {".u8bin": "uint8", ".i8bin": "int8", ".fbin": "float32", ".hbin": "float16"}
READ = 4096  # bytes of one read of a node
DISTANCES = {"l2": "squared_l2", "ip": "inner_product", "cosine": "cosine"}


def run(command, **options):
    """Runs a command that must succeed; says what it costs: seconds, CPU seconds, peak memory of the process."""
    print("+", " ".join(str(word) for word in command), file=sys.stderr, flush=True)
    started = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], **options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"error: {command[0]} ended with status {process.returncode}, see above")
    return {
        "seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "read_bytes": usage.ru_inblock * 512,
    }


def path_of(folder):
    """The program, as `install` leaves it in the folder."""
    return folder / "cargo" / "bin" / "diskann-benchmark"


def install(folder):
    """Compiles the program, for AVX2, without which it is slower and says so."""
    if not path_of(folder).is_file():
        flags = {**os.environ, "RUSTFLAGS": "-Ctarget-cpu=x86-64-v3"} if os.uname().machine == "x86_64" else None
        run(["cargo", "install", "diskann-benchmark", "--version", versions.DISKANN, "--features", "disk-index",
             "--locked", "--root", folder / "cargo"], env=flags)


class DiskAnn:
    """An index of a job's rows, in files that begin with `prefix`."""

    def __init__(self, job, folder):
        self.job, self.folder = job, folder
        self.prefix = folder / f"diskann-{job.name}"

    def files(self):
        return [file for file in self.folder.glob(f"{self.prefix.name}*") if file.is_file()]

    def build(self):
        """What the build costs. The program builds nothing without a search, so it searches for one query."""
        job = self.job
        source = {
            "disk-index-source": "Build", "data_type": ELEMENTS[job.base.suffix], "data": str(job.base),
            "distance": DISTANCES[job.metric], "dim": job.dim, "max_degree": job.degree, "l_build": job.build_list,
            "num_threads": job.build_threads, "build_ram_limit_gb": 16.0, "num_pq_chunks": job.code_bytes,
            "quantization_type": "FP", "save_path": str(self.prefix),
        }
        one = job.part(self.folder, "one", range(1))
        return self.step("build", source, one["queries"], one["truth"], [job.k], 1, None)[1]

    def search(self, queries, truth, lists, threads, cached=None):
        """The points, and what the process took. So many nodes around the entry are in a cache."""
        source = {
            "disk-index-source": "Load", "data_type": ELEMENTS[self.job.base.suffix], "load_path": str(self.prefix),
        }
        output, cost = self.step("search", source, queries, truth, lists, threads, cached)
        return points(output, threads, cost["peak_bytes"]), cost

    def nodes_within(self, cap, queries, truth):
        """How many nodes the program can cache while its process takes at most so many bytes, and the bytes
        without a cache. None, if they are more."""
        taken = lambda cached: self.search(queries, truth, [self.job.k], 2, cached)[1]["peak_bytes"]
        bare = taken(None)
        each = self.job.element_bytes * self.job.dim + 4 * self.job.degree
        nodes = min(self.job.rows, max(0, cap - bare) // each)
        while nodes and (peak := taken(nodes)) > cap:
            nodes = min(nodes * 99 // 100, nodes * (cap - bare) // (peak - bare))
        return nodes or None, bare

    def step(self, what, source, queries, truth, lists, threads, cached):
        job = self.job
        search = {
            "queries": str(queries), "groundtruth": str(truth), "search_list": lists, "beam_width": job.beam,
            "recall_at": job.k, "num_threads": threads, "is_flat_search": False, "distance": DISTANCES[job.metric],
            "vector_filters_file": None, "num_nodes_to_cache": cached, "search_io_limit": None,
        }
        config, output = self.folder / f"diskann-{what}.in.json", self.folder / f"diskann-{what}.out.json"
        output.unlink(missing_ok=True)
        content = {"source": source, "search_phase": search}
        config.write_text(json.dumps({"search_directories": [], "jobs": [{"type": "disk-index", "content": content}]}))
        command = [path_of(self.folder), "run", "--input-file", config, "--output-file", output]
        return output, run(command, stdout=sys.stderr)


def microseconds(value, qps, threads):
    """A latency in microseconds, whatever unit it was given in: threads / qps says which it must be."""
    expected = threads * 1e6 / qps
    return min((value * scale for scale in (1e-3, 1.0, 1e3, 1e6)), key=lambda us: abs(us / expected - 1))


def points(output, threads, memory):
    """The points in what the program wrote."""
    with open(output, "rb") as file:
        results = json.load(file)[0]["results"]["search"]["search_results_per_l"]
    found = []
    for result in results:
        recall = result["recall"]
        # Written as a percentage by some versions.
        recall = recall / 100 if recall > 1 else recall
        scale = microseconds(result["mean_latency"], result["qps"], threads) / result["mean_latency"]
        found.append(
            {
                "list": result["search_l"],
                "recall": recall,
                "qps": result["qps"],
                "reads": result["mean_ios"],
                "mean_us": result["mean_latency"] * scale,
                "p95_us": result["p95_latency"] * scale,
                "p99_us": None,
                "p999_us": result["p999_latency"] * scale,
                "memory": memory,
            }
        )
    return found
