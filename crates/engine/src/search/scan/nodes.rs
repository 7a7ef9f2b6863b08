//! Reads nodes that are given by number, also while another process moves them.

use super::*;

/// The most nodes whose leading parts are in memory while their trailing parts are read.
const PARTED: usize = 128;

impl Scan<'_> {
    /// Calls `each` with the number, id and vector of nodes that exist. Unless `exact` is set,
    /// leading parts may replace vectors. `nodes` must ascend.
    pub(in crate::search) async fn each_node<N: NodePages>(
        &self,
        pages: &N,
        nodes: &[u32],
        exact: bool,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let graph = self.index.search_stores();
        let mut sought = Sought::of(self.index);
        let beside = InGraph { graph, pages };
        match &graph.segments {
            Some(segments) if !N::PARTS => {
                self.in_segments(segments, nodes, None, &mut sought, each)
                    .await
            }
            Some(segments) if exact => {
                for nodes in nodes.chunks(PARTED) {
                    let mut parts = HashMap::with_capacity(nodes.len());
                    let mut part = |node, _, _: &[u8], part: &[u8]| {
                        parts.insert(node, part.into());
                    };
                    let nodes = nodes.iter().copied();
                    self.each_of(&beside, nodes, &mut sought, &mut part).await?;
                    // Only nodes that exist have a leading part.
                    let mut there: Vec<u32> = parts.keys().copied().collect();
                    there.sort_unstable();
                    self.in_segments(segments, &there, Some(&parts), &mut sought, each)
                        .await?;
                }
                Ok(())
            }
            _ => {
                let nodes = nodes.iter().copied();
                self.each_of(&beside, nodes, &mut sought, each).await
            }
        }
    }

    async fn in_segments(
        &self,
        segments: &Segments,
        nodes: &[u32],
        leading: Option<&HashMap<u32, Box<[u8]>>>,
        sought: &mut Sought,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let all = self.index.nodes() as u32;
        let mut rest = nodes;
        for number in 0..segments.len() {
            let end = segments.nodes_of(number, all).end;
            let (here, later) = rest.split_at(rest.partition_point(|&node| node < end));
            rest = later;
            if here.is_empty() {
                continue;
            }
            let source = InSegment {
                segments,
                number,
                segment: segments.get(number),
                leading,
            };
            self.each_of(&source, here.iter().copied(), sought, each)
                .await?;
        }
        Ok(())
    }
}
