#!/bin/sh
# CPU time of a read by its parts, in microseconds: the kernel, distances, and the engine's own code.
# Samples the searching threads only. Distances are the functions of crates/vector.
#
#     bench/cpu.sh INDEX QUERIES [search options]      needs perf (apt-get install linux-perf)
set -eu
command -v perf >/dev/null || { echo "error: perf is missing. Install it: apt-get install linux-perf" >&2; exit 1; }
stratann=${STRATANN:-target/release/stratann}
samples=$(mktemp)
found=$(mktemp)
trap 'rm -f "$samples" "$found"' EXIT
rate=5000
perf record --quiet --event cpu-clock --freq "$rate" --output "$samples" -- \
    "$stratann" search "$@" --json >"$found"
perf report --input "$samples" --sort comm,dso,symbol --field-separator '	' --show-nr-samples 2>/dev/null |
    python3 -c '
import json, sys
queries, rate, found = int(sys.argv[1]), int(sys.argv[2]), [json.loads(line) for line in open(sys.argv[3])]
reads = queries * sum(f["per_query"]["graph_reads"] + f["per_query"]["vector_reads"] for f in found)
parts = {"kernel": 0, "distances": 0, "engine": 0}
names = {}
for line in sys.stdin:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) < 5 or not fields[2].startswith("stratann-"):
        continue
    samples, symbol = int(fields[1]), fields[4]
    part = "kernel" if symbol.startswith("[k]") else "distances" if "stratann_vector::" in symbol else "engine"
    parts[part] += samples
    if part == "engine":
        names[symbol[4:]] = names.get(symbol[4:], 0) + samples
print("%.0f reads" % reads)
for part, samples in parts.items():
    print("%-10s %6.3f us a read" % (part, samples / rate * 1e6 / reads))
print("\nof the engine:")
for name, samples in sorted(names.items(), key=lambda item: -item[1])[:12]:
    print("%6.3f  %s" % (samples / rate * 1e6 / reads, name[:100]))
' "$(python3 -c 'import struct,sys; print(struct.unpack("<I", open(sys.argv[1],"rb").read(4))[0])' "$2")" "$rate" "$found"
