//! `stratann create`.

use std::path::PathBuf;

use clap::Args;
use stratann::{ColumnType, Element};

use super::{PlaceArguments, SIZES, ShapeArguments, at_least_one};
use crate::names;

/// `stratann create`
#[derive(Debug, Args)]
#[command(after_help = SIZES)]
pub struct CreateArguments {
    /// The index: a directory that the command creates
    pub index: PathBuf,

    /// The number of elements of each vector
    #[arg(short, long, value_name = "N", value_parser = at_least_one, visible_alias = "dim")]
    pub dimension: usize,

    /// The element type of the vectors, by a name below or by numpy's name
    #[arg(long, value_name = "TYPE", value_parser = names::element(), default_value = "f32",
          visible_aliases = ["element", "data-type"])]
    pub dtype: Element,

    /// Columns of attributes, for later inserts: "year=integer,tags=list of strings". Other types:
    /// float, string, boolean, timestamp, list of integers
    #[arg(long, value_name = "NAME=TYPE,..", value_delimiter = ',', value_parser = names::column)]
    pub columns: Vec<(String, ColumnType)>,

    #[command(flatten)]
    pub shape: ShapeArguments,

    #[command(flatten)]
    pub places: PlaceArguments,

    /// Replaces the index if it exists already
    #[arg(long)]
    pub overwrite: bool,

    /// If the index exists, with this dimension, element type and metric and these columns, the
    /// command leaves the index unchanged and succeeds
    #[arg(long, conflicts_with = "overwrite")]
    pub exist_ok: bool,

    /// Prints the report as one JSON object. Its key there_already is true if the index existed
    /// before
    #[arg(long)]
    pub json: bool,
}
