use stratann::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (data, preset, dir) = (&a[1], a[2].parse::<Preset>().unwrap(), &a[3]);
    let order = a.get(4).map(|s| s.parse::<Order>().unwrap());
    let root = "/work/shared/data/";
    let ext = if data.contains("text") {
        "fbin"
    } else {
        "u8bin"
    };
    let base = VectorFile::open(format!("{root}{data}.base.{ext}")).unwrap();
    let q = VectorFile::open(format!("{root}{data}.query.{ext}")).unwrap();
    let metric = if ext == "fbin" {
        Metric::Cosine
    } else {
        Metric::L2
    };
    if !std::path::Path::new(dir).exists() {
        let r = build(
            &base,
            dir,
            &BuildOptions {
                preset,
                order,
                metric,
                ..Default::default()
            },
            &Silent,
        )
        .unwrap();
        println!("{}", serde_json::to_string(&r).unwrap());
    }
    let t = GroundTruth::read(format!("{root}{data}.truth100.bin")).unwrap();
    let ix = Index::open(dir, &OpenOptions::default()).unwrap();
    let threads: usize = std::env::var("T").ok().map_or(1, |v| v.parse().unwrap());
    let inf: usize = std::env::var("F").ok().map_or(1, |v| v.parse().unwrap());
    let lists: Vec<usize> = std::env::var("L")
        .unwrap_or("20,30,40,60,100".into())
        .split(',')
        .map(|v| v.parse().unwrap())
        .collect();
    let get = |n: &str| std::env::var(n).ok().map(|v| v == "1");
    for l in lists {
        let o = SearchOptions {
            list: l,
            threads,
            in_flight: inf,
            navigation: get("NAV"),
            whole_page: get("WP"),
            beam: std::env::var("W").ok().map(|v| v.parse().unwrap()),
            strategy: std::env::var("S").ok().map(|v| v.parse().unwrap()),
            ..Default::default()
        };
        let r = ix.search(&q, &o).unwrap();
        let n = q.rows() as f64;
        let mut lat = r.latencies_us.clone();
        lat.sort_by(|a, b| a.total_cmp(b));
        println!(
            "L={l} recall={:.4} reads={:.2} hops={:.1} dist={:.0} qps={:.0} mean={:.0}us p99={:.0} cpu/q={:.1}us",
            t.recall(&r.ids, &r.distances, 10).unwrap(),
            r.counters.graph_reads as f64 / n,
            r.counters.hops as f64 / n,
            r.counters.distance_computations as f64 / n,
            n / r.seconds,
            lat.iter().sum::<f32>() / n as f32,
            lat[lat.len() * 99 / 100],
            r.cpu_seconds * 1e6 / n
        );
    }
}
