#!/bin/sh
# Builds and searches two indexes of real data, beside brute force. `make demo` runs it; it needs nothing but the
# built command (STRATANN says where) and this folder's fixtures, and writes only below DEMO_OUT.
set -eu
cd "$(dirname "$0")"

stratann=${STRATANN:-target/release/stratann}
out=${DEMO_OUT:-$(dirname "$(dirname "$stratann")")/demo}
base=fixtures/photo-sift-20k.base.u8bin
queries=fixtures/photo-sift-20k.query.u8bin
truth=fixtures/photo-sift-20k.truth100.bin

if [ ! -x "$stratann" ]; then
    echo "error: $stratann is not there: run 'make demo', or set STRATANN to the command" >&2
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

say "Brute force: what a query costs without an index"
begun=$(date +%s%N)
run truth "$base" "$queries" "$out/exact.bin" -k 10 --threads 1
brute=$(( ($(date +%s%N) - begun) / 500000 ))
printf 'recall 1 at %d microseconds a query, each compared with all 20,000 vectors\n' "$brute"

say "Baseline: DiskANN's choices (input order, waits for each beam)"
run build "$base" "$out/diskann.idx" --preset diskann
run search "$out/diskann.idx" "$queries" --truth "$truth" -k 10 --list 10,20,40,60 --threads 1 --in-flight 1

say "StratANN's choices (locality order, pipelined, whole pages, navigation graph)"
run build "$base" "$out/stratann.idx" --preset stratann
run search "$out/stratann.idx" "$queries" --truth "$truth" -k 10 --list 10,20,40,60 --threads 1 --in-flight 1

say "What the index takes: on disk, and in memory while it is searched"
run stats "$out/stratann.idx"

say "Is every byte of it right?"
run verify "$out/stratann.idx"

cat <<END

== What to look at

  graph reads   4 KiB reads of the SSD a query: what limits speed once the collection has outgrown RAM
  recall@10     the share of the true ten nearest that was found, against exact ground truth

  brute force   $brute microseconds a query here, and it grows with the collection: fifty times as much at a
                million vectors, which it reads whole

Reads go past the page cache to the device, where the file system lets them. Twenty thousand vectors are few: what an
index is worth shows at a million and more.

== What to try next

  $stratann search $out/stratann.idx $queries --truth $truth --recall 0.99
  $stratann search $out/stratann.idx $queries --truth $truth --list 40 --no-nav --no-whole-page
  $stratann search $out/stratann.idx $queries --truth $truth --list 40      # a batch: more queries a second, each later
  $stratann presets
  $stratann build YOUR.fbin your.idx --metric cosine --memory 2GiB

  make bench          recall against reads and queries a second, as a table and a plot
  make bench-rivals   the same beside DiskANN's own program, and packages of pip
  pip install .       then: import stratann; stratann.open("$out/stratann.idx")
END
