#!/bin/sh
# Random 4 KiB reads a second of the device under a folder, at queue depth 32, on one and on two threads.
# This is the upper bound of a search's reads a query times its queries a second.
#
#     bench/device.sh [FOLDER]        needs fio (apt-get install fio) and 1 GB of space
set -eu
folder=${1:-bench/out}
command -v fio >/dev/null || { echo "error: fio is missing. Install it: apt-get install fio" >&2; exit 1; }
mkdir -p "$folder"
file=$folder/fio.tmp
trap 'rm -f "$file"' EXIT
trap 'exit 1' INT TERM
for threads in 1 2; do
    fio --name=reads --filename="$file" --size=1G --rw=randread --bs=4k --iodepth=32 --ioengine=io_uring --direct=1 \
        --numjobs="$threads" --group_reporting --time_based --runtime=10 --output-format=json |
        python3 -c '
import json, sys
text = sys.stdin.read()
read = json.loads(text[text.index("{"):])["jobs"][0]["read"]
latency = read["clat_ns"]["mean"] / 1000
print("%s thread(s): %.0f reads a second, mean latency %.0f us" % (sys.argv[1], read["iops"], latency))
' "$threads"
done
