//! `stratann cluster`: all servers of an index (`up.rs`), and clients of compute servers.

mod change;
mod search;
mod up;

use std::path::Path;
use std::time::Duration;

use stratann::{Element, VectorSource};
use stratann_node::role::Failure as QueryFailure;
use stratann_node::serve::{Client, ClientOptions, Place};
use stratann_node::wire::{Collection, Reason};
use stratann_terminal::failure::Failure;
use stratann_terminal::progress;

use super::servers::{place, refused};
use crate::args::{ClusterCommand, ReachArguments};

pub fn run(command: &ClusterCommand, quiet: bool) -> Result<(), Failure> {
    match command {
        ClusterCommand::Up(arguments) => up::up(arguments, quiet),
        ClusterCommand::Search(arguments) => search::run(arguments),
        ClusterCommand::Upsert(arguments) => change::upsert(arguments, quiet),
        ClusterCommand::Delete(arguments) => change::delete(arguments, quiet),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Search,
    Change,
}

/// Connects to the first compute server that answers.
fn connected(
    servers: &[String],
    secret_file: Option<&Path>,
    reach: &ReachArguments,
    deadline: Duration,
    purpose: Purpose,
) -> Result<(Client, Collection), Failure> {
    let places = servers.iter();
    let places = places.map(|name| place(name, reach, secret_file));
    let places: Vec<Place> = places.collect::<Result<_, _>>()?;
    let options = ClientOptions {
        patience: deadline,
        ..ClientOptions::default()
    };
    progress::catch_interrupts();
    let interrupted = || match purpose {
        // The text of `Interrupted` is about changes, and a search makes none.
        Purpose::Search => stratann::Error::Stopped,
        Purpose::Change => stratann::Error::Interrupted,
    };
    let connected = Client::connect_while(places, options, || !progress::interrupted());
    let client = connected.map_err(refused)?;
    let client = client.ok_or_else(interrupted)?;
    let goes_on = || !progress::interrupted();
    let told = match purpose {
        Purpose::Search => client.collection_while(goes_on),
        Purpose::Change => client.changeable_while(goes_on),
    };
    let told = told.ok_or_else(interrupted)?;
    let collection = told.map_err(unanswered)?;
    Ok((client, collection))
}

fn fits(collection: &Collection, rows: &dyn VectorSource) -> Result<(), Failure> {
    let element = Element::from_code(collection.element);
    if collection.dim as usize == rows.dim() && element == Some(rows.element()) {
        return Ok(());
    }
    let element = element.map_or_else(|| "an unknown type".to_owned(), |e| format!("type {e}"));
    Err(Failure::Wrong(format!(
        "{} has vectors of dimension {} and type {}; the index has dimension {} and {element}. Give vectors with the dimension and type of the index",
        rows.name(),
        rows.dim(),
        rows.element(),
        collection.dim
    )))
}

fn unanswered(failure: QueryFailure) -> Failure {
    match failure {
        QueryFailure::Refused {
            reason: Reason::Invalid,
            ..
        } => Failure::Wrong(failure.to_string()),
        failure => Failure::Failed(failure.to_string()),
    }
}
