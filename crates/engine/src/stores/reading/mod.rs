//! Reads the headers and the tables of stores. Files that contradict the manifest are refused.

mod clusters;
mod pages;
mod tables;

pub(crate) use self::clusters::{
    amended, cluster_facts, cluster_file, clusters, extent_segment, heads, member_segment, members,
};
pub(crate) use self::pages::{
    PagesFile, coupled, coupled_shape, csr, csr_shape, inline, inline_shape, pages, pages_of,
    slotted, span,
};
pub(crate) use self::tables::{
    chunks, directory, entry_points, heat, journal, pending, pending_of, placement, placement_of,
    recall,
};
