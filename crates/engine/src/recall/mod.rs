//! Searches with a recall target instead of a list size.
//!
//! ```text
//!   measured (build, calibrate)        target of .95              a query
//!   recall of each bucket (band)  ──>  depth by distance  ──>     distance of its k-th result
//!   for each list size                                            ──> number of candidates to look
//!                                                                     at: the nearer, the fewer
//! ```
//!
//! With a given list size, the share of the nearest vectors that a search finds depends on the
//! query. A query in a dense region finds nearly all of them, and a query far from all vectors
//! finds fewer. The distance of the k-th nearest vector distinguishes these queries.
//!
//! The queries of package-text come from another source than its vectors. With the list size 13,
//! vectors held out of the build find .950 of their nearest vectors, and these queries find .909.
//! The distance of the tenth nearest vector divides the held-out vectors and the queries into five
//! buckets (bands). In these buckets, held-out vectors find .990, .977, .946, .952 and .885, and
//! queries find .985, .976, .951, .954 and .887.
//!
//! So recall is measured for each range of this distance, and a search uses the distance of its
//! k-th result so far. A search starts with the largest list size. As nearer results are found, the
//! list size shrinks. So easy queries read less, and the recall of a batch depends little on the
//! kind of its queries (`docs/results/recall.md` has the differences).
//!
//! If vectors are apart from lists (decoupled layout), a walk knows the distances of its results
//! too late. So the estimate by code of the k-th nearest candidate replaces the distance. If such
//! an index is unpacked, a walk knows exact distances, and ranks each expanded node. So searches of
//! the unpacked index have a measurement of their own. PRESS always uses the largest list size. A
//! search of clusters requests all clusters at once, so the distance of the nearest head decides
//! the number of probes.
//!
//! A walk that reads pages has several nodes in flight, and expands some nodes beyond its list
//! size. If pages are in memory, the walk expands one node at a time, and finds less with the same
//! list size. So in other layouts, searches with most pages in memory have their own measurement.
//!
//! - [`depth`](crate::search::depth) and [`target`](crate::search::target) of `search`: the number
//!   of candidates to expand, from the distance of the k-th result
//! - [`calibrate`]: the measurements of a build and of `stratann calibrate`
//! - [`queries`]: the queries with which a build measures
//! - [`exact`]: the true nearest vectors of some queries in the whole index

mod calibrate;
pub(crate) mod exact;
mod queries;

pub(crate) use self::calibrate::measure;
pub use self::calibrate::{Calibration, calibrate, check_calibration};
pub(crate) use self::queries::Queries;
