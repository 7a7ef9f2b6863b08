#!/bin/sh
# Builds and searches two indexes of real data, and compares them with brute force. `make demo` runs
# it. It needs only the built command (its path is in STRATANN) and the fixtures of this folder. It
# writes only below DEMO_OUT.
set -eu
cd "$(dirname "$0")"

stratann=${STRATANN:-target/release/stratann}
out=${DEMO_OUT:-$(dirname "$(dirname "$stratann")")/demo}
base=fixtures/photo-sift-20k.base.u8bin
queries=fixtures/photo-sift-20k.query.u8bin
truth=fixtures/photo-sift-20k.truth100.bin

if [ ! -x "$stratann" ]; then
    echo "error: $stratann does not exist. Run 'make demo', or set STRATANN to the path of the command" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out"

say() {
    printf '\n== %s\n\n' "$1"
}
run() {
    printf '$ stratann %s\n' "$*"
    "$stratann" "$@"
}

say "The data: SIFT descriptors of photographs, 20,000 x 128 uint8, and 500 queries from other pictures"
ls -l "$base" "$queries" "$truth"

say "Brute force: the cost of a query without an index"
begun=$(date +%s%N)
run truth "$base" "$queries" "$out/exact.bin" -k 10 --threads 1
brute=$(( ($(date +%s%N) - begun) / 500000 ))
printf 'recall 1 at %d microseconds a query; each query is compared with all 20,000 vectors\n' "$brute"

say "Baseline: DiskANN's choices (input order, waits for each beam)"
run build "$base" "$out/diskann.idx" --preset diskann
run search "$out/diskann.idx" "$queries" --truth "$truth" -k 10 --list 10,20,40,60 --threads 1 --in-flight 1

say "StratANN's choices (locality order, pipelined, whole pages, navigation graph)"
run build "$base" "$out/stratann.idx" --preset stratann
run search "$out/stratann.idx" "$queries" --truth "$truth" -k 10 --list 10,20,40,60 --threads 1 --in-flight 1

say "Size of the index: on disk, and in memory during searches"
run stats "$out/stratann.idx"

say "Verify every byte of the index"
run verify "$out/stratann.idx"

cat <<END

== How to read these figures

  graph reads   reads of 4 KiB from the SSD for each query. They limit the speed of a collection that
                is larger than RAM.
  recall@10     the share of the true ten nearest vectors that was found
  brute force   $brute microseconds a query here. The time grows with the collection: a million vectors
                take fifty times as long.

Reads bypass the page cache if the file system allows it. Twenty thousand vectors are few: the index
pays off with a million and more.

== Next steps

  $stratann search $out/stratann.idx $queries --truth $truth --recall 0.99
  $stratann search $out/stratann.idx $queries --truth $truth --list 40 --no-nav --no-whole-page
  $stratann search $out/stratann.idx $queries --truth $truth --list 40      # a batch: more queries a second, each with more latency
  $stratann presets
  $stratann build YOUR.fbin your.idx --metric cosine --memory 2GiB

  make bench          recall, reads and queries a second, as a table and a plot
  make bench-rivals   the same beside DiskANN's own program, and packages of pip
  pip install .       then in Python: import stratann; stratann.open("$out/stratann.idx")
END
