//! The roles of DistVS: in a simulated network, and as servers on threads.
#![forbid(unsafe_code)]

mod changing;
mod engine;
mod halves;
mod network;
mod processes;
mod readiness;
mod roles;
mod schedules;
mod servers;
