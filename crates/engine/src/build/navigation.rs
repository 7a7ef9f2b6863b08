//! The navigation graph of a build, over a sample of the nodes.

use stratann_layout::{FileKind, NavigationFacts, NavigationFile};

use super::Build;
use crate::Error;
use crate::data::{MatrixRef, VectorSource};
use crate::graph::{self, Constructed};
use crate::navigation::rounded;
use crate::stores::writing::files::write_stream;
use crate::stores::writing::sweep::Written;

/// R and L of the navigation graph.
pub(super) const NAVIGATION_DEGREE: usize = 32;
const NAVIGATION_LIST: usize = 64;

impl Build<'_> {
    pub(super) fn write_navigation(
        &self,
        graph: &Constructed,
        written: &mut Written,
    ) -> Result<Option<NavigationFacts>, Error> {
        let sampled = self.facts.navigation_nodes;
        if sampled == 0 {
            return Ok(None);
        }
        let rows = graph.rows.in_order(&graph.order, self.writing.source);
        let nodes = self.writing.sample(sampled);
        let mut vectors = vec![0; sampled * rows.row_bytes()];
        rows.gather(&nodes, &mut vectors)?;
        let parameters = self.parameters(NAVIGATION_DEGREE, NAVIGATION_LIST);
        let task = graph::Task {
            metric: self.writing.options.metric,
            order: graph::Order::Input,
            parameters: &parameters,
            memory: None,
            scratch: self.writing.scratch,
            known: None,
            check: self.writing.check,
            savepoints: None,
            afterwards: None,
        };
        let sample = MatrixRef::new(&vectors, sampled, rows.dim(), rows.element())?;
        let mut built = graph::construct(&sample, &task, self.writing.progress)?;
        let (mut offsets, mut links, mut list) = (vec![0], Vec::new(), Vec::new());
        for position in 0..sampled as u32 {
            built.lists.read(position, &mut list)?;
            links.extend_from_slice(&list);
            offsets.push(links.len() as u32);
        }
        let file = NavigationFile {
            entry: built.entry,
            nodes,
            offsets,
            links,
            vectors,
            step: None,
        };
        // If codes are in the records, searches rank the nodes of this graph by exact distances. So
        // vectors are not rounded.
        let file = match self.facts.layout.has_codes_in_records() {
            true => file,
            false => rounded(
                file,
                self.writing.options.metric,
                rows.element(),
                rows.dim(),
            ),
        };
        written.files.push(write_stream(
            &self.writing.checkpoint,
            FileKind::Navigation,
            None,
            &file.encode(),
        )?);
        Ok(Some(NavigationFacts {
            nodes: sampled as u64,
            degree: NAVIGATION_DEGREE as u32,
        }))
    }
}
