//! Arguments of `stratann advise`.

use std::path::PathBuf;

use clap::Args;
use stratann::{DeviceKind, Metric};
use stratann_terminal::size;

use super::{at_least_one, files_and_sizes, threads};
use crate::names;

/// `stratann advise`
#[derive(Debug, Args)]
#[command(after_help = files_and_sizes())]
pub struct AdviseArguments {
    /// A file of vectors that represent the collection
    pub base: PathBuf,

    /// A file of queries that resemble future ones [default: vectors of BASE. The neighbours of
    /// such vectors may be harder to find than the neighbours of real queries]
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,

    /// The device from which searches will read the index: dram, ssd, rdma, cxl or nvm. The speeds
    /// of all but dram are from the paper on second-tier memory (docs/papers.md)
    #[arg(long, value_name = "DEVICE", value_parser = device, default_value = "ssd")]
    pub device: Device,

    /// The number of vectors in the collection, such as 100000000 or 100M [default: the number in
    /// the file]
    #[arg(long, value_name = "N", value_parser = count)]
    pub rows: Option<u64>,

    /// The recall that searches must reach
    #[arg(long, value_name = "R", default_value_t = 0.95)]
    pub recall: f64,

    /// The number of neighbours to find for each query
    #[arg(short = 'k', long = "k", default_value_t = 10, value_name = "K", value_parser = at_least_one)]
    pub k: usize,

    /// The metric that measures distances
    #[arg(short, long, value_parser = names::metric(), default_value = "l2", visible_aliases = ["distance", "dist-fn"])]
    pub metric: Metric,

    /// The memory that searches will have [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// The maximum size of the index on storage [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub space: Option<u64>,

    /// The number of queries in flight on each thread
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub in_flight: usize,

    /// The maximum number of vectors of the file in each trial index
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = at_least_one)]
    pub sample: usize,

    /// The folder for trial indexes, which the command removes at its end [default: the folder of
    /// temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub scratch: Option<PathBuf>,

    /// The number of threads [default: one for each core]
    #[arg(short = 'T', long, value_name = "N", value_parser = threads, visible_alias = "num-threads")]
    pub threads: Option<usize>,

    /// Prints one JSON line per candidate preset, the best first
    #[arg(long)]
    pub json: bool,
}

/// A device. `None` is the memory of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Device(pub Option<DeviceKind>);

fn device(text: &str) -> Result<Device, String> {
    match text {
        "dram" => Ok(Device(None)),
        _ => match text.parse() {
            Ok(kind) => Ok(Device(Some(kind))),
            Err(_) => Err("use one of: ssd, rdma, cxl, nvm, dram".into()),
        },
    }
}

fn count(text: &str) -> Result<u64, String> {
    let (digits, times) = match text.trim_end_matches(['k', 'M', 'G']) {
        digits if digits.len() + 1 < text.len() => (text, 1),
        digits => {
            let times = match &text[digits.len()..] {
                "k" => 1_000,
                "M" => 1_000_000,
                "G" => 1_000_000_000,
                _ => 1,
            };
            (digits, times)
        }
    };
    let found = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(times));
    found
        .filter(|&rows| rows > 0)
        .ok_or_else(|| "give a number above 0, such as 250000, 250k, 100M or 1G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_devices() {
        for (text, rows) in [
            ("7", 7),
            ("250k", 250_000),
            ("100M", 100_000_000),
            ("1G", 1_000_000_000),
        ] {
            assert_eq!(count(text), Ok(rows));
        }
        for text in [
            "",
            "0",
            "M",
            "1kM",
            "-3",
            "1.5M",
            "10 M",
            "18446744073709551615k",
        ] {
            assert!(count(text).is_err(), "{text}");
        }
        assert!(device("dram").unwrap().0.is_none());
        assert_eq!(device("cxl").unwrap().0, Some(DeviceKind::Cxl));
        assert!(device("tape").unwrap_err().contains("rdma"));
    }
}
