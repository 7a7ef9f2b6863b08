//! A table with a row for each kind of file. Other code reads this table, so a new kind needs no
//! change in that code.

/// The kind of a file. The numbers are part of the format; unlisted numbers are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FileKind {
    /// Coupled pages: vectors and adjacency lists side by side ([`crate::coupled`]).
    Graph = 1,
    /// The compressed vectors, a byte string ([`crate::stream`]).
    Codes = 2,
    /// The quantiser's centroids, a byte string.
    Codebook = 3,
    /// The navigation graph, which a search has in memory, a byte string.
    Navigation = 4,
    /// Slotted pages of encoded vectors and adjacency lists side by side ([`crate::slotted`]).
    Packed = 5,
    /// Slotted pages of encoded adjacency lists.
    Adjacency = 6,
    /// Slotted pages of encoded vectors; one file for each segment.
    Vectors = 7,
    /// The data of a segment of vectors that must be in memory, a byte string ([`crate::chunks`]).
    Chunks = 8,
    /// The page of each node, and the encoding of the lists, a byte string ([`crate::directory`]).
    Directory = 9,
    /// The number of reads of each page by a sample of queries, a byte string ([`crate::heat`]).
    Heat = 10,
    /// Coupled pages with the neighbours' codes beside each list ([`crate::inline`]).
    Inline = 11,
    /// The entry points of an inline index and their codes, a byte string ([`crate::entries`]).
    Entries = 12,
    /// Inserts and deletes in order ([`crate::log`]); one or more files with consecutive numbers.
    Log = 13,
    /// Pages of rewritten nodes, and inserted vectors, a byte string ([`crate::placement`]).
    Placement = 14,
    /// Changes that wait for their pages to be written, a byte string ([`crate::pending`]).
    Pending = 15,
    /// Pages that are about to be written in place, a byte string ([`crate::journal`]).
    Journal = 16,
    /// The external id of each node, a byte string ([`crate::ids`]).
    Ids = 17,
    /// Slotted pages of adjacency lists and the leading parts of vectors side by side.
    Layered = 18,
    /// Rows of a CSR graph: id, vector and adjacency list ([`crate::csr`]).
    Csr = 19,
    /// The lengths of a cluster index's posting lists, a byte string ([`crate::clusters::table`]).
    Clusters = 20,
    /// Posting lists with the vectors of all members ([`crate::clusters::extent`]).
    Replicated = 21,
    /// Posting lists with the numbers of all members.
    Postings = 22,
    /// The vectors of a cluster index, stored once, in the order of their numbers
    /// ([`crate::clusters::member`]).
    Addressed = 23,
    /// Posting lists with the vectors of their groups, and the numbers of their other members.
    Grouped = 24,
    /// The clusters rewritten since the build, a byte string ([`crate::clusters::amended`]).
    Amended = 25,
    /// The rows of a segment of columns, a byte string ([`crate::columns::rows`]).
    Rows = 26,
    /// The nodes of each value in a segment of columns, a byte string ([`crate::columns::part`]).
    Columns = 27,
    /// The recall of searches by list size, a byte string ([`crate::recall`]).
    Recall = 28,
}

/// The role of a file in an index. Each role may be on a tier of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Adjacency lists and the tables for them.
    Topology,
    /// Estimates of distances: codes and codebooks.
    Codes,
    /// Vectors that are stored apart from lists.
    Vectors,
    /// The external ids of nodes.
    Ids,
    /// Attributes and payloads of vectors.
    Columns,
    /// Changes since the checkpoint. The log is always in the volume of the manifest.
    Log,
}

/// The form of a file after its header block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Pages with a list in each record, in one of the layouts.
    Lists(ListPages),
    /// Slotted pages of a segment's vectors.
    Segment,
    /// A file of a cluster index ([`crate::clusters`]). If it has vectors, the value names the
    /// layout.
    Clusters(Option<&'static str>),
    /// A byte string ([`crate::stream`]).
    Stream,
    /// Records that are appended one by one ([`crate::log`]).
    Log,
}

/// The layout properties of a file with lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListPages {
    /// The layout's name.
    pub layout: &'static str,
    /// Whether the pages are slotted ([`crate::slotted`]); otherwise all records have one length.
    pub slotted: bool,
    /// The part of the vector in a record.
    pub vectors: Beside,
}

/// The part of a vector that is stored beside its node's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Beside {
    /// The whole vector, with the external id.
    Vector,
    /// The leading part, with the external id; a segment has the trailing part, and the id again.
    LeadingPart,
    /// Nothing: vector and external id are in a segment.
    Nothing,
}

impl Form {
    const fn fixed(layout: &'static str) -> Form {
        Form::Lists(ListPages {
            layout,
            slotted: false,
            vectors: Beside::Vector,
        })
    }

    const fn slotted(layout: &'static str, vectors: Beside) -> Form {
        Form::Lists(ListPages {
            layout,
            slotted: true,
            vectors,
        })
    }
}

struct Row(&'static str, Role, Form, u32);

impl FileKind {
    /// All kinds that this build knows.
    pub const ALL: [FileKind; 28] = [
        FileKind::Graph,
        FileKind::Codes,
        FileKind::Codebook,
        FileKind::Navigation,
        FileKind::Packed,
        FileKind::Adjacency,
        FileKind::Vectors,
        FileKind::Chunks,
        FileKind::Directory,
        FileKind::Heat,
        FileKind::Inline,
        FileKind::Entries,
        FileKind::Log,
        FileKind::Placement,
        FileKind::Pending,
        FileKind::Journal,
        FileKind::Ids,
        FileKind::Layered,
        FileKind::Csr,
        FileKind::Clusters,
        FileKind::Replicated,
        FileKind::Postings,
        FileKind::Addressed,
        FileKind::Grouped,
        FileKind::Amended,
        FileKind::Rows,
        FileKind::Columns,
        FileKind::Recall,
    ];

    #[rustfmt::skip]
    const fn row(self) -> Row {
        use crate::{chunks, clusters, columns, coupled, csr, directory, entries, heat, ids, inline, journal, log, navigation, pending, placement, recall, slotted, stream};
        use Role::*;
        match self {
            Self::Graph => Row("graph", Topology, Form::fixed("coupled"), coupled::FORMAT_VERSION),
            Self::Packed => Row("packed", Topology, Form::slotted("packed", Beside::Vector), slotted::FORMAT_VERSION),
            Self::Adjacency => Row("adjacency", Topology, Form::slotted("decoupled", Beside::Nothing), slotted::FORMAT_VERSION),
            Self::Layered => Row("layered", Topology, Form::slotted("layered", Beside::LeadingPart), slotted::FORMAT_VERSION),
            Self::Inline => Row("inline", Topology, Form::fixed("inline"), inline::FORMAT_VERSION),
            Self::Csr => Row("csr", Topology, Form::fixed("csr"), csr::FORMAT_VERSION),
            Self::Directory => Row("directory", Topology, Form::Stream, directory::FORMAT_VERSION),
            Self::Navigation => Row("navigation", Topology, Form::Stream, navigation::FORMAT_VERSION),
            Self::Heat => Row("heat", Topology, Form::Stream, heat::FORMAT_VERSION),
            Self::Placement => Row("placement", Topology, Form::Stream, placement::FORMAT_VERSION),
            Self::Pending => Row("pending", Topology, Form::Stream, pending::FORMAT_VERSION),
            Self::Journal => Row("journal", Topology, Form::Stream, journal::FORMAT_VERSION),
            Self::Codes => Row("codes", Codes, Form::Stream, stream::CODES_FORMAT_VERSION),
            Self::Codebook => Row("codebook", Codes, Form::Stream, stream::CODEBOOK_FORMAT_VERSION),
            Self::Entries => Row("entries", Codes, Form::Stream, entries::FORMAT_VERSION),
            Self::Vectors => Row("vectors", Vectors, Form::Segment, slotted::VECTORS_FORMAT_VERSION),
            Self::Chunks => Row("chunks", Vectors, Form::Stream, chunks::FORMAT_VERSION),
            Self::Ids => Row("ids", Ids, Form::Stream, ids::FORMAT_VERSION),
            Self::Clusters => Row("clusters", Topology, Form::Stream, clusters::table::FORMAT_VERSION),
            Self::Replicated => Row("replicated", Vectors, Form::Clusters(Some("replicated")), clusters::FORMAT_VERSION),
            Self::Postings => Row("postings", Topology, Form::Clusters(None), clusters::FORMAT_VERSION),
            Self::Addressed => Row("addressed", Vectors, Form::Clusters(Some("addressed")), clusters::FORMAT_VERSION),
            Self::Grouped => Row("grouped", Vectors, Form::Clusters(Some("grouped")), clusters::FORMAT_VERSION),
            Self::Amended => Row("amended", Topology, Form::Stream, clusters::amended::FORMAT_VERSION),
            Self::Rows => Row("rows", Columns, Form::Stream, columns::rows::FORMAT_VERSION),
            Self::Columns => Row("columns", Columns, Form::Stream, columns::part::FORMAT_VERSION),
            Self::Recall => Row("recall", Topology, Form::Stream, recall::FORMAT_VERSION),
            Self::Log => Row("log", Log, Form::Log, log::FORMAT_VERSION),
        }
    }

    /// The number of the kind in files.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The kind with this number; `None` for an unknown number.
    pub fn from_code(code: u16) -> Option<FileKind> {
        FileKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The kind's name in messages, and as a role in the manifest.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The kind in the name of a file, `kind-…`, if the name has this form.
    pub fn of_name(name: &str) -> Option<FileKind> {
        let (first, _) = name.split_once('-')?;
        FileKind::ALL.into_iter().find(|kind| kind.name() == first)
    }

    /// The role of a file of this kind.
    pub fn role(self) -> Role {
        self.row().1
    }

    /// The form of a file of this kind.
    pub fn form(self) -> Form {
        self.row().2
    }

    /// The layout properties of a file with lists; `None` if this kind has no lists.
    pub fn lists(self) -> Option<ListPages> {
        match self.form() {
            Form::Lists(pages) => Some(pages),
            Form::Segment | Form::Clusters(_) | Form::Stream | Form::Log => None,
        }
    }

    /// The layout whose lists (or, in a cluster index, vectors) are in a file of this kind.
    pub fn layout(self) -> Option<&'static str> {
        match self.form() {
            Form::Lists(pages) => Some(pages.layout),
            Form::Clusters(layout) => layout,
            Form::Segment | Form::Stream | Form::Log => None,
        }
    }

    /// Whether a file of this kind has lists, and files of segments have vectors or trailing parts.
    pub fn has_segments(self) -> bool {
        self.lists()
            .is_some_and(|pages| pages.vectors != Beside::Vector)
    }

    /// Whether a file of this kind consists of pages.
    pub fn has_pages(self) -> bool {
        match self.form() {
            Form::Lists(_) | Form::Segment => true,
            Form::Clusters(_) | Form::Stream | Form::Log => false,
        }
    }

    /// The format version that this build writes, and the newest version that it reads.
    pub fn version(self) -> u32 {
        self.row().3
    }

    /// Whether records are appended to the file. If so, the length in its header is a lower bound.
    pub fn is_appended_to(self) -> bool {
        self.form() == Form::Log
    }

    /// The reader feature bits that this build supports.
    pub fn reader_features(self) -> u64 {
        0
    }

    /// The writer feature bits that this build supports.
    pub fn writer_features(self) -> u64 {
        0
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
