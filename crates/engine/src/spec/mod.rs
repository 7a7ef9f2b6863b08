//! Values: the choices and the numbers that calls accept. No module here knows how an index works.

pub mod bounds;
mod changes;
mod layout;
mod preset;
mod searches;

pub use self::changes::{DirectOptions, Durability, MergeWhen, Pruning, WriteOptions};
pub use self::layout::Layout;
pub use self::preset::{Compression, Order, Preset, Press, Rerank, Update};
pub use self::searches::{SearchOptions, Strategy, Way};

/// The approximate memory of a search thread: its stack, its ring and its first buffers.
pub const THREAD_BYTES: u64 = 512 << 10;
