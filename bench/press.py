#!/usr/bin/env python3
"""Counts distance computations of PRESS, as in Table 1 of DistVS.

    bench/press.py STRATANN DATA FOLDER DATASET [--recall R] [--beams W[,W..]]
                   [--single-beams W[,W..]] [--code-bytes B] [--separate] [--more L,R[:L,R..]]

Prints the numbers of distances by low codes, by high codes and by exact vectors, for PRESS and for
searches with codes of one precision. DATASET is photo-sift-100k, photo-sift-1m or package-text, in
the folder DATA. The script builds three indexes with the same graph (R=64, L=100, one thread) in
FOLDER if they are missing:

- with nested codes of B bytes (32 of uint8, 96 of float32: C_high = 4 and 16);
- with separate codes: high codes of the same length, and low codes half as long (--separate);
- with codes of half as many bytes, trained separately.

It searches the indexes with growing list sizes, and prints the costs of each method at the recall
(0.95), interpolated between the two list sizes around it:

    low-only   Best-first search by the short codes, half of the list re-ranked, with each of
               --single-beams (8, 1), from the graph's entry.
    high-only  The same by the long codes.
    ... seeds  Both from the seeds where PRESS begins. Low codes find them, at a cost that counts.
    paper      PRESS with the paper's numbers (D_low = 2 D_high, refinement ratio .3, from the
               graph's entry), with each beam width (8, 1).
    ... seeds  The same from seeds.
    PRESS      PRESS with the preset's numbers, by nested codes. With --separate it is run by
               separate codes too, and so is high-only.
    --more     PRESS with other numbers: LOW,RATIO for each, as 2,0.2:4,0.15.

"Equiv." is low / C_low + high / C_high + full (the paper's §3.1). The columns beside it have its
ratios to high-only and low-only: to searches from the entry, as in the paper, and to searches from
seeds. Rounds are hops divided by the beam width. For PRESS with a beam width of 8, this number is 2
too small, since its first rounds visit 1, 2 and 4 nodes. "Pulled" is the kB of high codes per query
that a compute server would fetch if it searched only by high codes (DistVS-H, the paper's Figure
12). CPU is microseconds a query of one thread, with eight queries in flight and lists read from
storage. Needs Python 3.8 and nothing else.
"""

import json
import os
import subprocess
import sys

SETS = {
    # name: ending, metric, bytes of a vector, bytes of a high code, list sizes
    "photo-sift-100k": ("u8bin", "l2", 128, 32, [16, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 250, 320, 400, 500]),
    "photo-sift-1m": ("u8bin", "l2", 128, 32, [20, 30, 40, 50, 65, 80, 100, 130, 160, 200, 250, 320, 400, 500, 650, 800]),
    "package-text": ("fbin", "cosine", 1536, 96, [20, 30, 40, 50, 65, 80, 100, 130, 160, 200, 250, 320, 400]),
}


def main():
    words, options = [], {"--recall": "0.95", "--beams": "8,1", "--single-beams": "8,1", "--code-bytes": "", "--more": ""}
    separate = "--separate" in sys.argv
    given = iter(word for word in sys.argv[1:] if word != "--separate")
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 4 or words[3] not in SETS:
        sys.exit(__doc__)
    program, data, folder, name = words
    ending, metric, row, high, lists = SETS[name]
    recall = float(options["--recall"])
    usual, high = high, int(options["--code-bytes"] or high)
    os.makedirs(folder, exist_ok=True)
    base, queries = (os.path.join(data, f"{name}.{part}.{ending}") for part in ("base", "query"))
    truth = os.path.join(data, f"{name}.truth100.bin")

    def index(what, code_bytes, *more):
        path = os.path.join(folder, f"{name}-{what}" + ("" if high == usual else f"-{high}"))
        if not os.path.exists(os.path.join(path, "MANIFEST")):
            build = [program, "build", base, path, "--overwrite", "--quiet", "--metric", metric, "--degree", "64"]
            build += ["--build-list", "100", "--threads", "1", "--code-bytes", str(code_bytes), *more]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        return path

    nested = index("nested", high, "--preset", "distvs")
    apart = index("separate", high, "--preset", "distvs", "--low-codes", "separate") if separate else None
    short = index("short", high // 2, "--preset", "decouplevs", "--order", "locality")
    one = ["--strategy", "best-first", "--rerank-ratio", "0.5", "--no-nav"]
    paper = ["--low-list", "2", "--refine", "0.3"]
    from_seeds, from_entry = ["--seeds", "64"], ["--seeds", "0"]
    print(f"{name}: C_high = {row / high:.2f}, C_low = {row / (high // 2):.2f}\n")
    print("| method | list | low | high | full | equiv. | hops | CPU | rounds | of high-only, entry | of low-only, entry | of high-only, seeds | of low-only, seeds | pulled, kB |")
    print("|---" * 14 + "|")
    known = {}

    def show(method, path, beam, *more, low_only=False, beside=None):
        before = None
        for size in lists:
            search = [program, "search", path, queries, "--truth", truth, "-k", "10", "--threads", "1", "--in-flight", "8", "--list", str(size), "--json", *more]
            said = json.loads(subprocess.run(search, check=True, stdout=subprocess.PIPE).stdout)
            per = said["per_query"]
            low, full = per.get("low_computations", 0), per["reranked"]
            rest = per["distance_computations"] - low - full
            low, rest = (rest, 0) if low_only else (low, rest)
            work = low / (row / (high // 2)) + rest / (row / high) + full
            now = (said["recall"], size, low, rest, full, work, per["hops"], said["cpu_us"])
            if now[0] >= recall:
                share = (recall - before[0]) / (now[0] - before[0]) if before else 1
                mixed = [a + (b - a) * share for a, b in zip(before or now, now)]
                known[method] = mixed[5]
                shares = (f"{mixed[5] / known[of]:.2f}" if beside and of in known else "" for of in beside or [""] * 4)
                figures = " | ".join(f"{value:.0f}" for value in mixed[1:])
                print(f"| {method} | {figures} | {mixed[6] / beam:.1f} | {' | '.join(shares)} | {mixed[3] * high / 1000:.1f} |", flush=True)
                return
            before = now
        print(f"| {method} | recall {before[0]:.3f} with the longest list" + " |" * 13, flush=True)

    for beam in options["--single-beams"].split(","):
        wide = ["--beam", beam, *one]
        show(f"low-only, beam {beam}", short, int(beam), *wide, *from_entry, low_only=True)
        show(f"low-only, beam {beam}, seeds", short, int(beam), *wide, *from_seeds, low_only=True)
        show(f"high-only, beam {beam}", nested, int(beam), *wide, *from_entry)
        show(f"high-only, beam {beam}, seeds", nested, int(beam), *wide, *from_seeds)
        if apart:
            show(f"high-only, separate, beam {beam}", apart, int(beam), *wide, *from_entry)
            show(f"high-only, separate, beam {beam}, seeds", apart, int(beam), *wide, *from_seeds)
    for beam in options["--beams"].split(","):
        wide = ["--beam", beam]
        for codes, path in (("", nested), (", separate", apart)):
            if not path:
                continue
            beside = [f"{which}, beam {beam}{begun}" for begun in ("", ", seeds") for which in ("high-only" + codes, "low-only")]
            show(f"paper{codes}, beam {beam}", path, int(beam), *wide, *paper, *from_entry, beside=beside)
            show(f"paper{codes}, beam {beam}, seeds", path, int(beam), *wide, *paper, *from_seeds, beside=beside)
            show(f"PRESS{codes}, beam {beam}", path, int(beam), *wide, beside=beside)
            for numbers in filter(None, options["--more"].split(":")):
                low_list, ratio = numbers.split(",")
                show(f"PRESS{codes}, beam {beam}, {low_list} D_high, {ratio}", path, int(beam), *wide, "--low-list", low_list, "--refine", ratio, beside=beside)


main()
