//! Searches whose queries are vectors of the index, excluded from their own results.

use super::*;
use crate::index::contents::each_vector;
use crate::search::LeftOut;

#[test]
fn a_node_that_is_left_out_is_no_answer_and_leads_on_only_if_it_may() {
    let (mut near, mut far) = (0.0, 0.0);
    for stored in STORED {
        let index = stored_under(stored, Faults::none());
        let (mut rows, mut nodes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        each_vector(&index, &Silent, &mut |node, id, vector| {
            if node % 30 == 7 {
                rows.extend_from_slice(vector);
                nodes.push(node);
                ids.push(id);
            }
            Ok(())
        })
        .unwrap();
        let queries = Matrix::new(rows, nodes.len(), index.dim(), index.element()).unwrap();
        let found = |preset, leads_on: Option<bool>| {
            let left_out: Option<Vec<LeftOut>> = leads_on.map(|leads_on| {
                let nodes = nodes.iter();
                nodes.map(|&node| LeftOut { node, leads_on }).collect()
            });
            let options = options(preset);
            let found = index.search_leaving_out(&queries, &options, left_out.as_deref(), &Silent);
            found.unwrap()
        };
        for preset in [Preset::DISKANN, Preset::STRATANN] {
            let itself = |found: &SearchResults| {
                let answers = found.ids.chunks(found.k).zip(&ids);
                answers.filter(|(found, id)| found.contains(id)).count()
            };
            let all = found(preset, None);
            assert_eq!(itself(&all), ids.len(), "{stored:?}");
            let [without, leading] = [false, true].map(|leads_on| found(preset, Some(leads_on)));
            assert_eq!((itself(&without), itself(&leading)), (0, 0), "{stored:?}");
            assert!(without.ids.iter().all(|&id| id != u64::MAX), "{stored:?}");
            let sum = |found: &SearchResults| {
                let distances = found.distances.iter().map(|&distance| f64::from(distance));
                distances.sum::<f64>()
            };
            near += sum(&leading);
            far += sum(&without);
        }
    }
    // A walk through the excluded node finds nearer results, because its list links to its nearest
    // neighbours.
    assert!(near < far, "{near} {far}");
}
