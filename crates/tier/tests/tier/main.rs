//! Tests of tiers in one binary, because each binary is linked separately. Tests that fork, or that
//! measure the memory of their process, have separate binaries.

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
