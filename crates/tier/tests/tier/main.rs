//! Tests of tiers through their public interface, in one binary, since each binary would be linked
//! separately. Tests that fork, or that count the memory of their process, have a binary of their
//! own.

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
