//! Values that have names, and what these mean to the engine. clap knows them one by one, so that a slip of the pen gets
//! the closest match and `--help` says what each is.

use clap::ValueEnum;

/// Metrics by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MetricName {
    /// Squared Euclidean distance
    #[value(aliases = ["l2sq", "euclidean", "squared_l2", "squared-l2"])]
    L2,
    /// Inner product, negated so that smaller is nearer
    #[value(aliases = ["mips", "dot", "inner_product", "inner-product"])]
    Ip,
    /// 1 - cosine of the angle
    #[value(aliases = ["cos"])]
    Cosine,
}

impl From<MetricName> for stratann::Metric {
    fn from(name: MetricName) -> Self {
        match name {
            MetricName::L2 => Self::L2,
            MetricName::Ip => Self::InnerProduct,
            MetricName::Cosine => Self::Cosine,
        }
    }
}

/// Orders of nodes on storage by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// As in the input
    Input,
    /// Near vectors near each other
    Locality,
}

impl From<OrderName> for stratann::Order {
    fn from(name: OrderName) -> Self {
        match name {
            OrderName::Input => Self::Input,
            OrderName::Locality => Self::Locality,
        }
    }
}

/// Compressions by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompressionName {
    /// Vectors as they are; lists too if coupled, else Elias-Fano
    Raw,
    /// Elias-Fano lists, Huffman-coded vectors, XORed with a base where that helps (DecoupleVS)
    Paper,
    /// For each list and each segment of vectors the codec that makes it the shortest
    Best,
}

impl From<CompressionName> for stratann::Compression {
    fn from(name: CompressionName) -> Self {
        match name {
            CompressionName::Raw => Self::Raw,
            CompressionName::Paper => Self::Paper,
            CompressionName::Best => Self::Best,
        }
    }
}

/// What ends re-ranking, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RerankName {
    /// A batch that brought too few answers (DecoupleVS)
    Batches,
    /// The error of the codes: once the first candidates are ranked, only those that may be nearer still are
    Estimate,
}

/// Search strategies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StrategyName {
    /// Waits for the whole beam (DiskANN)
    BestFirst,
    /// Reacts to each read; the beam widens as the search converges (PipeANN)
    Pipelined,
}

impl From<StrategyName> for stratann::Strategy {
    fn from(name: StrategyName) -> Self {
        match name {
            StrategyName::BestFirst => Self::BestFirst,
            StrategyName::Pipelined => Self::Pipelined,
        }
    }
}

/// Ways to read by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoName {
    /// io_uring if the kernel allows it, else pread
    Auto,
    /// io_uring or nothing
    #[value(alias = "io_uring")]
    Uring,
    /// pread on a pool of threads
    Pread,
}

impl From<IoName> for stratann::IoMode {
    fn from(name: IoName) -> Self {
        match name {
            IoName::Auto => Self::Auto,
            IoName::Uring => Self::Uring,
            IoName::Pread => Self::Pread,
        }
    }
}
