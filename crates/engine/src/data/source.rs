//! Sources of rows: a file or bytes in memory, as a matrix of `rows` x `dim` little-endian
//! elements, row after row, without gaps.

use super::DataError;
use super::npy::Array;
use super::{bin, npy, vecs};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use stratann_vector::{Element, Metric, Reduction};

/// Rows of vectors that several threads may read at once, range by range.
pub trait VectorSource: Sync {
    /// The number of rows, at least 1.
    fn rows(&self) -> usize;
    /// The number of elements in a row, at least 1.
    fn dim(&self) -> usize;
    /// The type of the elements.
    fn element(&self) -> Element;
    /// The name of the source in messages. For a file, it is the path.
    fn name(&self) -> &str;
    /// Fills `out` with whole rows, from row `first` on.
    ///
    /// # Errors
    /// The call fails if the rows do not exist, or if `out` does not have whole rows.
    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError>;

    /// The bytes of a row.
    fn row_bytes(&self) -> usize {
        self.dim() * self.element().size()
    }

    /// The bytes of all rows, if they are in memory.
    fn in_memory(&self) -> Option<&[u8]> {
        None
    }

    /// Whether rows can be read in any order. Otherwise a build that needs them in another order
    /// first copies them.
    fn has_random_access(&self) -> bool {
        self.in_memory().is_some()
    }

    /// Fills `out` with the rows in `rows`, in this order. One read covers consecutive numbers, so
    /// a caller may sort `rows` first.
    fn gather(&self, rows: &[u32], out: &mut [u8]) -> Result<(), DataError> {
        let row_bytes = self.row_bytes();
        if out.len() != rows.len() * row_bytes {
            return Err(size_error(
                self.name(),
                out.len(),
                rows.len(),
                self.dim(),
                self.element(),
            ));
        }
        let mut rest = out;
        let follows = |a: &u32, b: &u32| a.checked_add(1) == Some(*b);
        for run in rows.chunk_by(follows) {
            let (now, later) = rest.split_at_mut(run.len() * row_bytes);
            self.read(run[0] as usize, now)?;
            rest = later;
        }
        Ok(())
    }
}

/// Checks that a read is of existing whole rows, and returns their number.
///
/// # Errors
/// The call fails with [`DataError::Size`] or [`DataError::Range`].
pub fn check_range(
    source: &dyn VectorSource,
    first: usize,
    bytes: usize,
) -> Result<usize, DataError> {
    let count = bytes / source.row_bytes();
    if !bytes.is_multiple_of(source.row_bytes()) {
        return Err(size_error(
            source.name(),
            bytes,
            count,
            source.dim(),
            source.element(),
        ));
    }
    if first
        .checked_add(count)
        .is_none_or(|end| end > source.rows())
    {
        return Err(DataError::Range {
            name: source.name().to_owned(),
            first: first as u64,
            end: (first as u64).saturating_add(count as u64),
            rows: source.rows() as u64,
        });
    }
    Ok(count)
}

fn size_error(name: &str, found: usize, rows: usize, dim: usize, element: Element) -> DataError {
    DataError::Size {
        name: name.to_owned(),
        found: found as u64,
        rows: rows as u64,
        dim: dim as u64,
        element,
        expected: rows as u128 * dim as u128 * element.size() as u128,
    }
}

/// A check of rows under a metric. The number is the number of the first row, and the bytes are
/// whole rows.
pub(crate) type Check = fn(&dyn VectorSource, Metric, usize, &[u8]) -> Result<(), DataError>;

/// Returns an error with row and column if a row has no finite distance to other rows. Such a row
/// has NaN, infinity, an element beyond [`Metric::largest_magnitude`], or no direction under
/// [`Metric::Cosine`]. `bytes` are whole rows, from row `first` on.
pub fn check_rows(
    source: &dyn VectorSource,
    metric: Metric,
    first: usize,
    bytes: &[u8],
) -> Result<(), DataError> {
    let largest = metric.largest_magnitude(source.dim());
    check_within(source, metric, largest, first, bytes)
}

/// Checks rows like [`check_rows`], but accepts elements that are too large, because an earlier
/// version may have accepted them.
pub(crate) fn check_stored_rows(
    source: &dyn VectorSource,
    metric: Metric,
    first: usize,
    bytes: &[u8],
) -> Result<(), DataError> {
    check_within(source, metric, f32::MAX, first, bytes)
}

fn check_within(
    source: &dyn VectorSource,
    metric: Metric,
    largest: f32,
    first: usize,
    bytes: &[u8],
) -> Result<(), DataError> {
    let (element, dim) = (source.element(), source.dim());
    if let Some(at) = stratann_vector::first_beyond(element, bytes, largest) {
        let mut value = [0.0];
        let size = element.size();
        stratann_vector::to_f32(element, &bytes[at * size..(at + 1) * size], &mut value);
        let (name, value) = (source.name().to_owned(), value[0]);
        let (row, column) = ((first + at / dim) as u64, (at % dim) as u64);
        return Err(match value.is_finite() {
            true => DataError::TooLarge {
                name,
                row,
                column,
                value,
                largest,
                dim: dim as u64,
                metric,
            },
            false => DataError::NotFinite {
                name,
                row,
                column,
                value,
            },
        });
    }
    if metric.reduction() == Reduction::Normalised {
        let mut row = vec![0.0; dim];
        for (at, bytes) in bytes.chunks_exact(source.row_bytes()).enumerate() {
            stratann_vector::to_f32(element, bytes, &mut row);
            let norm = stratann_vector::norm(&row);
            if norm == 0.0 {
                return Err(DataError::NoDirection {
                    name: source.name().to_owned(),
                    row: (first + at) as u64,
                    norm,
                });
            }
        }
    }
    Ok(())
}

/// Rows in memory that another object owns, such as a numpy array.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    bytes: &'a [u8],
    rows: usize,
    dim: usize,
    element: Element,
    name: &'a str,
}

impl<'a> MatrixRef<'a> {
    /// Creates a matrix of `rows` x `dim` elements, row after row. The call fails if it has no
    /// elements, or if `bytes` has another length.
    pub fn new(
        bytes: &'a [u8],
        rows: usize,
        dim: usize,
        element: Element,
    ) -> Result<MatrixRef<'a>, DataError> {
        let name = "array";
        check_not_empty(name, rows as u64, dim as u64)?;
        if bytes.len() as u128 != rows as u128 * dim as u128 * element.size() as u128 {
            return Err(size_error(name, bytes.len(), rows, dim, element));
        }
        Ok(MatrixRef {
            bytes,
            rows,
            dim,
            element,
            name,
        })
    }

    /// The same rows with a name for messages, by default `array`.
    #[must_use]
    pub fn named(mut self, name: &'a str) -> MatrixRef<'a> {
        self.name = name;
        self
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// The call panics if there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let row_bytes = self.dim * self.element.size();
        &self.bytes[row * row_bytes..(row + 1) * row_bytes]
    }
}

impl VectorSource for MatrixRef<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        check_range(self, first, out.len())?;
        let at = first * self.row_bytes();
        out.copy_from_slice(&self.bytes[at..at + out.len()]);
        Ok(())
    }

    fn in_memory(&self) -> Option<&[u8]> {
        Some(self.bytes)
    }
}

/// Rows in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    bytes: Vec<u8>,
    rows: usize,
    dim: usize,
    element: Element,
    name: String,
}

impl Matrix {
    /// Creates a matrix of `rows` x `dim` elements. The call fails as [`MatrixRef::new`] does.
    pub fn new(
        bytes: Vec<u8>,
        rows: usize,
        dim: usize,
        element: Element,
    ) -> Result<Matrix, DataError> {
        let name = MatrixRef::new(&bytes, rows, dim, element)?.name.to_owned();
        Ok(Matrix {
            bytes,
            rows,
            dim,
            element,
            name,
        })
    }

    /// Reads all rows of a source. The matrix gets the name of the source.
    pub fn read(source: &dyn VectorSource) -> Result<Matrix, DataError> {
        let mut bytes = room_for(source, source.row_bytes())?;
        bytes.resize(source.rows() * source.row_bytes(), 0);
        source.read(0, &mut bytes)?;
        Ok(Matrix {
            bytes,
            rows: source.rows(),
            dim: source.dim(),
            element: source.element(),
            name: source.name().to_owned(),
        })
    }

    /// A view that borrows the matrix.
    pub fn view(&self) -> MatrixRef<'_> {
        MatrixRef {
            bytes: &self.bytes,
            rows: self.rows,
            dim: self.dim,
            element: self.element,
            name: &self.name,
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// The call panics if there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        self.view().row(row)
    }
}

impl VectorSource for Matrix {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        self.view().read(first, out)
    }

    fn in_memory(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }
}

pub(crate) fn room_for(source: &dyn VectorSource, row_bytes: usize) -> Result<Vec<u8>, DataError> {
    let mut room = Vec::new();
    let bytes = source.rows().checked_mul(row_bytes);
    match bytes.is_some_and(|bytes| room.try_reserve_exact(bytes).is_ok()) {
        true => Ok(room),
        false => Err(DataError::Room {
            name: source.name().to_owned(),
            rows: source.rows() as u64,
            row_bytes: row_bytes as u64,
        }),
    }
}

/// A file of vectors, whose header and length are checked when it is opened.
#[derive(Debug)]
pub struct VectorFile {
    file: File,
    name: String,
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) dim: usize,
    pub(super) element: Element,
    pub(super) start: u64,
    pub(super) stored: Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    AsTheyAre,
    /// The dimension, a u32, precedes each row (`.fvecs`, `.bvecs`).
    Prefixed,
    /// The rows are in an array, which is converted while it is read (`.npy`).
    Array(Array),
}

const EXTENSIONS: &str = ".fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy";

impl VectorFile {
    /// Opens a file. The extension, in lower or upper case, names the format: `.fbin .u8bin .i8bin
    /// .hbin .fvecs .bvecs .npy`. If `.crop_nb_N` follows, a big-ann matrix has N rows, whatever
    /// its header says.
    ///
    /// A numpy array may have elements of `float64`, big-endian elements, or the order of Fortran.
    /// Reads convert the elements. If a finite element is too large for `float32`, the read fails
    /// with [`DataError::TooWide`].
    ///
    /// The call fails if the length of the file does not follow from its header, or if the file has
    /// no rows or no elements.
    pub fn open(path: impl AsRef<Path>) -> Result<VectorFile, DataError> {
        Self::opened(path.as_ref(), false)
    }

    /// Opens a file that may have no rows. `.fvecs` and `.bvecs` files must have rows, because only
    /// their rows have the dimension.
    pub fn open_even_empty(path: impl AsRef<Path>) -> Result<VectorFile, DataError> {
        Self::opened(path.as_ref(), true)
    }

    fn opened(path: &Path, even_empty: bool) -> Result<VectorFile, DataError> {
        let name = path.display().to_string();
        let extension = extension(path);
        // A wrong extension is a wrong call, even if no such file exists.
        let element = match extension.as_str() {
            "fbin" | "fvecs" => Some(Element::F32),
            "hbin" => Some(Element::F16),
            "u8bin" | "bvecs" => Some(Element::U8),
            "i8bin" => Some(Element::I8),
            "npy" => None,
            _ => return Err(extension_error(path, EXTENSIONS)),
        };
        let (file, length) = open(path, &name)?;
        let shape = match element {
            Some(element) if extension.ends_with("vecs") => {
                vecs::read_shape(&file, length, element, &name)?
            }
            Some(element) => {
                bin::read_shape(&file, length, element, cropped(path), &name, even_empty)?
            }
            None => npy::read_shape(&file, length, &name, even_empty)?,
        };
        Ok(VectorFile { file, name, shape })
    }
}

impl VectorSource for VectorFile {
    fn rows(&self) -> usize {
        self.shape.rows
    }

    fn dim(&self) -> usize {
        self.shape.dim
    }

    fn element(&self) -> Element {
        self.shape.element
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn has_random_access(&self) -> bool {
        // In the order of Fortran, each element of a row needs a read.
        !matches!(self.shape.stored, Stored::Array(array) if array.fortran)
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        check_range(self, first, out.len())?;
        match self.shape.stored {
            Stored::AsTheyAre => {}
            Stored::Prefixed => {
                return vecs::read_rows(&self.file, &self.shape, first, out, &self.name);
            }
            Stored::Array(array) => {
                return array.read_rows(&self.file, &self.shape, first, out, &self.name);
            }
        }
        let offset = self.shape.start + first as u64 * self.row_bytes() as u64;
        read_at(&self.file, offset, out, &self.name)
    }
}

pub(super) fn open(path: &Path, name: &str) -> Result<(File, u64), DataError> {
    // To open a pipe, the call would wait for the program at the other end.
    let about = path
        .metadata()
        .map_err(|source| DataError::io(name, "open", source))?;
    if !about.is_file() {
        // Pipes and directories do not support reads by position.
        let what = match about.is_dir() {
            true => "not a regular file but a directory. Give a file of vectors",
            false => {
                "not a regular file, and rows are read in any order. Copy it to a regular file"
            }
        };
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
        return Err(DataError::io(name, "open", source));
    }
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (length, file) = opened.map_err(|source| DataError::io(name, "open", source))?;
    Ok((file, length))
}

pub(super) fn read_at(
    file: &File,
    offset: u64,
    out: &mut [u8],
    name: &str,
) -> Result<(), DataError> {
    file.read_exact_at(out, offset).map_err(|source| {
        DataError::io(
            name,
            format!("read {} bytes at offset {offset}", out.len()),
            source,
        )
    })
}

/// The extension in lower case, without the dot. In a cropped file's name, it is before
/// `.crop_nb_N`.
pub(crate) fn extension(path: &Path) -> String {
    let last = |path: &Path| {
        path.extension()
            .map(|extension| extension.to_string_lossy().to_lowercase())
            .unwrap_or_default()
    };
    match cropped(path) {
        Some(_) => last(&path.with_extension("")),
        None => last(path),
    }
}

/// The number N of rows in the name of a cropped file, such as `base.1B.u8bin.crop_nb_N`.
pub(super) fn cropped(path: &Path) -> Option<u32> {
    let last = path.extension()?.to_str()?.to_ascii_lowercase();
    let digits = last.strip_prefix("crop_nb_")?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

pub(crate) fn extension_error(path: &Path, expected: &str) -> DataError {
    let found = match extension(path).as_str() {
        "" if path.is_dir() => "a directory".to_owned(),
        "" => "a name without an extension".to_owned(),
        extension => format!("the extension \".{extension}\""),
    };
    DataError::Extension {
        file: path.display().to_string(),
        found,
        expected: expected.to_owned(),
    }
}

pub(super) fn check_not_empty(name: &str, rows: u64, dim: u64) -> Result<(), DataError> {
    let what = match (rows, dim) {
        (0, _) => "the number of rows",
        (_, 0) => "the dimension",
        _ => return Ok(()),
    };
    Err(DataError::Empty {
        file: name.to_owned(),
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn wrong_sizes_are_refused() {
        MatrixRef::new(&[0; 6], 2, 3, Element::U8).unwrap();
        for (bytes, rows, dim) in [
            (5, 2, 3),
            (7, 2, 3),
            (0, 0, 3),
            (0, 2, 0),
            (0, usize::MAX, 16),
        ] {
            MatrixRef::new(&vec![0; bytes], rows, dim, Element::F32).unwrap_err();
            Matrix::new(vec![0; bytes], rows, dim, Element::F32).unwrap_err();
        }
        let text = MatrixRef::new(&[0; 5], 2, 3, Element::U8)
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "array: 5 bytes do not make 2 rows of 3 x u8; these take 6 bytes. Pass whole rows"
        );
    }

    #[test]
    fn rows_outside_are_refused() {
        let matrix = Matrix::new(vec![7; 12], 4, 3, Element::U8).unwrap();
        matrix.read(4, &mut []).unwrap();
        let text = matrix.read(3, &mut [0; 6]).unwrap_err().to_string();
        assert_eq!(
            text,
            "array: rows 3 to 5 (exclusive) were requested, but there are only 4 rows. Request rows that exist"
        );
        matrix.read(usize::MAX, &mut [0; 3]).unwrap_err();
        matrix.read(0, &mut [0; 4]).unwrap_err();
        matrix.gather(&[0, 4], &mut [0; 6]).unwrap_err();
        matrix.gather(&[0, 1], &mut [0; 5]).unwrap_err();
        matrix.gather(&[u32::MAX, 0], &mut [0; 6]).unwrap_err();
    }

    #[test]
    fn bad_values_are_named() {
        let bytes = floats(&[1.0, 2.0, 3.0, f32::NAN, 5.0, 6.0]);
        let matrix = MatrixRef::new(&bytes, 3, 2, Element::F32)
            .unwrap()
            .named("base.fbin");
        let text = check_rows(&matrix, Metric::L2, 0, &bytes)
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("base.fbin: row 1, column 1 is NaN"),
            "{text}"
        );
        let text = check_rows(&matrix, Metric::L2, 100, &floats(&[f32::NEG_INFINITY, 0.0]));
        let text = text.unwrap_err().to_string();
        assert!(
            text.starts_with("base.fbin: row 100, column 0 is -inf"),
            "{text}"
        );

        let bytes = floats(&[1.0, 2.0, 0.0, -0.0, 5.0, 6.0]);
        let matrix = MatrixRef::new(&bytes, 3, 2, Element::F32).unwrap();
        check_rows(&matrix, Metric::L2, 0, &bytes).unwrap();
        check_rows(&matrix, Metric::InnerProduct, 0, &bytes).unwrap();
        let text = check_rows(&matrix, Metric::Cosine, 10, &bytes)
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("array: row 11 has length 0"), "{text}");
        for value in [f32::MAX, f32::MIN_POSITIVE, 1e-45] {
            let bytes = floats(&[value, -value]);
            check_rows(&matrix, Metric::Cosine, 0, &bytes).unwrap();
        }
        for (metric, value) in [(Metric::L2, 1e30), (Metric::InnerProduct, -3e38)] {
            let bytes = floats(&[1.0, 2.0, 3.0, value]);
            let text = check_rows(&matrix, metric, 5, &bytes)
                .unwrap_err()
                .to_string();
            let start =
                format!("array: row 6, column 1 is {value:?}, too large for {metric} distances");
            assert!(text.starts_with(&start), "{text}");
            assert!(text.contains("magnitude is at most 1.6"), "{text}");
            // A merge accepts each row that an index has accepted.
            check_stored_rows(&matrix, metric, 5, &bytes).unwrap();
        }
        let largest = Metric::L2.largest_magnitude(2);
        check_rows(&matrix, Metric::L2, 0, &floats(&[largest, -largest])).unwrap();

        let matrix = MatrixRef::new(&[1, 2, 0, 0], 2, 2, Element::U8).unwrap();
        check_rows(&matrix, Metric::L2, 0, matrix.bytes()).unwrap();
        check_rows(&matrix, Metric::Cosine, 0, matrix.bytes()).unwrap_err();
    }

    #[test]
    fn unknown_extensions_are_refused() {
        for name in ["a.txt", "a", "a.ibin", "a.bin", ".fbin"] {
            let error = VectorFile::open(name).unwrap_err();
            assert!(
                matches!(error, DataError::Extension { .. }),
                "{name}: {error}"
            );
            assert!(error.is_call_wrong());
        }
        let text = VectorFile::open("a.txt").unwrap_err().to_string();
        assert_eq!(
            text,
            "a.txt: the extension \".txt\" names no format that is possible here. Use one of: .fbin .u8bin .i8bin .hbin .fvecs .bvecs .npy"
        );
        let text = VectorFile::open("/nonexistent/a.fbin")
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("/nonexistent/a.fbin: cannot open: No such file"),
            "{text}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("folder.fbin");
        std::fs::create_dir(&path).unwrap();
        assert!(
            VectorFile::open(&path)
                .unwrap_err()
                .to_string()
                .contains("not a regular file")
        );
    }

    proptest! {
        #[test]
        fn gather_is_row_by_row(rows in prop::collection::vec(0u32..20, 0..40), sort: bool) {
            let bytes: Vec<u8> = (0..60).collect();
            let matrix = Matrix::new(bytes, 20, 3, Element::U8).unwrap();
            let mut rows = rows;
            if sort {
                rows.sort_unstable();
            }
            let mut out = vec![0; rows.len() * 3];
            matrix.gather(&rows, &mut out).unwrap();
            let expected: Vec<u8> = rows.iter().flat_map(|&row| matrix.row(row as usize).to_vec()).collect();
            prop_assert_eq!(out, expected);
        }
    }
}
