//! Tiers as others see them: one binary of tests, since each would be linked by itself. What forks,
//! and what counts the memory of its process, is alone in one of its own.

mod conformance;
mod copies;
mod crash;
mod directory;
mod modelled;
mod queues;
mod refused;
mod sockets;
mod split;
mod threads;
