"""Builds an index with DiskANN's own program, `diskann-benchmark` of crates.io, and searches the
index with each list size.
"""

import json
import os
import subprocess
import sys
import time

import versions

# DiskANN's name of the element type, by the extension of a file.
ELEMENTS = {".u8bin": "uint8", ".i8bin": "int8", ".fbin": "float32", ".hbin": "float16"}
READ = 4096  # bytes that DiskANN reads for one node
DISTANCES = {"l2": "squared_l2", "ip": "inner_product", "cosine": "cosine"}


def run(command, **options):
    """Runs a command, and returns its seconds, CPU seconds, peak memory in bytes, and bytes read
    from storage. If the command fails, this script ends with an error.
    """
    print("+", " ".join(str(word) for word in command), file=sys.stderr, flush=True)
    started = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], **options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"error: {command[0]}; it ended with exit status {process.returncode}. Its messages are above")
    return {
        "seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "read_bytes": usage.ru_inblock * 512,
    }


def path_of(folder):
    """The path of the program that `install` puts into the folder."""
    return folder / "cargo" / "bin" / "diskann-benchmark"


def install(folder):
    """Compiles the program if it is missing. On x86_64 it uses AVX2; without AVX2 the program is
    slower.
    """
    if not path_of(folder).is_file():
        flags = {**os.environ, "RUSTFLAGS": "-Ctarget-cpu=x86-64-v3"} if os.uname().machine == "x86_64" else None
        run(["cargo", "install", "diskann-benchmark", "--version", versions.DISKANN, "--features", "disk-index",
             "--locked", "--root", folder / "cargo"], env=flags)


class DiskAnn:
    """An index of a job's rows. The names of its files begin with `prefix`."""

    def __init__(self, job, folder):
        self.job, self.folder = job, folder
        self.prefix = folder / f"diskann-{job.name}"

    def files(self):
        return [file for file in self.folder.glob(f"{self.prefix.name}*") if file.is_file()]

    def build(self):
        """Builds the index, and returns the costs of the process. The program cannot build without
        a search, so it also searches with one query.
        """
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
        """Searches with each list size. Returns a point for each size, and the costs of the
        process. `cached` is the number of nodes around the entry point that the program caches.
        """
        source = {
            "disk-index-source": "Load", "data_type": ELEMENTS[self.job.base.suffix], "load_path": str(self.prefix),
        }
        output, cost = self.step("search", source, queries, truth, lists, threads, cached)
        return points(output, threads, cost["peak_bytes"]), cost

    def nodes_within(self, cap, queries, truth):
        """The number of nodes that the program can cache while the peak memory of its process is at
        most `cap` bytes, and the peak memory without a cache. The number is None if the cap has no
        space for a cache.
        """
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
    """A latency in microseconds. The unit of `value` is unknown, and the result is near threads /
    qps in only one unit.
    """
    expected = threads * 1e6 / qps
    return min((value * scale for scale in (1e-3, 1.0, 1e3, 1e6)), key=lambda us: abs(us / expected - 1))


def points(output, threads, memory):
    """A point for each list size, from the output file of the program."""
    with open(output, "rb") as file:
        results = json.load(file)[0]["results"]["search"]["search_results_per_l"]
    found = []
    for result in results:
        recall = result["recall"]
        # Some versions of the program write a percentage.
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
