//! numpy arrays as the engine's vectors, and back, without a copy.
//!
//! numpy itself makes the view of an array as bytes, so that this needs no `unsafe` and no type parameter: a
//! `(n, d)` array of float32 is a `(n, 4d)` array of uint8 over the same memory, and that is what the engine takes.

use numpy::{Element as NumpyElement, PyArrayDyn};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList, PyTuple};
use stratann::{Element, MatrixRef};

use crate::errors::to_python;

/// A numpy array of vectors, borrowed: its memory stays readable while this lives.
pub struct Rows<'py> {
    name: &'static str,
    bytes: PyReadonlyArrayDyn<'py, u8>,
    rows: usize,
    dim: usize,
    element: Element,
    single: bool,
}

impl<'py> Rows<'py> {
    /// The rows of a `(n, d)` array. `name` is what the caller's signature calls it.
    pub fn matrix(value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        Self::take(value, name, false)
    }

    /// The rows of a `(n, d)` array, or the only one of a `(d,)` array.
    pub fn matrix_or_row(value: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        Self::take(value, name, true)
    }

    fn take(value: &Bound<'py, PyAny>, name: &'static str, row_too: bool) -> PyResult<Self> {
        let array = untyped(value, name)?;
        let element = element(array, name)?;
        let shape = array.shape();
        let (rows, dim, single) = match *shape {
            [rows, dim] => (rows, dim, false),
            [dim] if row_too => (1, dim, true),
            _ => {
                let or = match shape {
                    _ if row_too => ", or (d,) for one".to_owned(),
                    [_] => format!("; for one vector pass {name}[None, :]"),
                    _ => String::new(),
                };
                return Err(PyValueError::new_err(format!(
                    "{name} has the shape {}: it must be (n, d){or}",
                    shape_text(shape)
                )));
            }
        };
        if dim == 0 {
            return Err(PyValueError::new_err(format!(
                "{name} has the shape {}: vectors without dimensions",
                shape_text(shape)
            )));
        }
        if !array.is_c_contiguous() {
            return Err(PyValueError::new_err(format!(
                "{name} is not C-contiguous: pass numpy.ascontiguousarray({name})"
            )));
        }
        let bytes = array.call_method1("view", ("u1",))?;
        let bytes = bytes
            .cast_into::<PyArrayDyn<u8>>()?
            .try_readonly()
            .map_err(|_| {
                PyValueError::new_err(format!(
                    "{name} is being written by another native function"
                ))
            })?;
        Ok(Self {
            name,
            bytes,
            rows,
            dim,
            element,
            single,
        })
    }

    /// What the engine reads: the array's own memory.
    pub fn source(&self) -> PyResult<MatrixRef<'_>> {
        let bytes = self.bytes.as_slice()?;
        let rows = MatrixRef::new(bytes, self.rows, self.dim, self.element);
        Ok(rows.map_err(to_python)?.named(self.name))
    }

    /// Vectors in the array.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Type of an element.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Whether the array was one vector, `(d,)`, so that the answer has one dimension as well.
    pub fn is_single(&self) -> bool {
        self.single
    }
}

/// The array that `value` must be.
fn untyped<'a, 'py>(
    value: &'a Bound<'py, PyAny>,
    name: &str,
) -> PyResult<&'a Bound<'py, PyUntypedArray>> {
    let kind = value.get_type();
    let kind_name = kind
        .name()
        .map_or_else(|_| "?".to_owned(), |n| n.to_string());
    // What is masked has a value in memory all the same, and nobody meant it.
    if kind_name != "ndarray" && value.hasattr("filled")? && value.hasattr("mask")? {
        return Err(PyTypeError::new_err(format!(
            "{name} is a masked array, and an index holds no missing values: leave out the rows that are masked, or pass \
             {name}.filled(0) or another value"
        )));
    }
    value
        .cast::<PyUntypedArray>()
        .map_err(|_| PyTypeError::new_err(no_array(value, &kind_name, name)))
}

/// What to say of a value that is no array, and how to make one of it.
fn no_array(value: &Bound<'_, PyAny>, kind: &str, name: &str) -> String {
    let module = value.get_type().module();
    let module = module.map_or_else(|_| String::new(), |module| module.to_string());
    let dtype = if name == "ids" { "uint64" } else { "float32" };
    // Types that begin with u are uint8 and the like.
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'A', 'E', 'I', 'O']) {
        "an"
    } else {
        "a"
    };
    let is = format!("{name} is {article} {kind}");
    if module == "pandas" || module.starts_with("pandas.") {
        return match (kind, name) {
            (_, "ids") => format!("{is}: pass {name}.to_numpy(dtype=numpy.{dtype})"),
            ("Series", _) => format!(
                "{is}: pass numpy.stack({name}).astype(numpy.{dtype}), for a column whose cells are vectors"
            ),
            _ => format!(
                "{is}: pass {name}.to_numpy(dtype=numpy.{dtype}) for columns of numbers, or numpy.stack({name}[column]) for one \
                 whose cells are vectors"
            ),
        };
    }
    if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
        let shown = value
            .repr()
            .map_or_else(|_| "..".to_owned(), |shown| shown.to_string());
        return format!("{is}: pass a numpy array, numpy.array([{shown}], dtype=numpy.{dtype})");
    }
    if let Some((row, found, expected)) = unequal(value) {
        return format!(
            "{is} of rows of different lengths: row {row} has {found} elements and row 0 has {expected}; make them equally long, and \
             pass numpy.array({name}, dtype=numpy.{dtype})"
        );
    }
    // Of a single number of numpy's, or a set, numpy.array would make an array without a shape.
    if name == "ids" {
        return match kind {
            "set" | "frozenset" | "dict_keys" | "range" | "generator" => {
                format!("{is}: pass numpy.fromiter(ids, dtype=numpy.uint64)")
            }
            "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64" => {
                format!("{is}: pass numpy.array([ids], dtype=numpy.uint64)")
            }
            _ => format!("{is}: pass a numpy array, numpy.array(ids, dtype=numpy.uint64)"),
        };
    }
    match value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        true => format!("{is}: pass a numpy array, numpy.array({name}, dtype=numpy.{dtype})"),
        false => format!("{is}: pass a numpy array, numpy.asarray({name})"),
    }
}

/// The first row of a list of lists that is not as long as its first, with both lengths.
fn unequal(value: &Bound<'_, PyAny>) -> Option<(usize, usize, usize)> {
    let rows = value.cast::<PyList>().ok()?;
    let expected = rows.get_item(0).ok()?.len().ok()?;
    let lengths = rows.iter().map(|row| row.len());
    let mut different = lengths
        .enumerate()
        .filter_map(|(row, length)| Some((row, length.ok()?)));
    let (row, found) = different.find(|(_, length)| *length != expected)?;
    Some((row, found, expected))
}

/// numpy's name of an element type, as in `numpy.float32`.
pub fn dtype_name(element: Element) -> &'static str {
    match element {
        Element::F32 => "float32",
        Element::F16 => "float16",
        Element::U8 => "uint8",
        Element::I8 => "int8",
    }
}

fn element(array: &Bound<'_, PyUntypedArray>, name: &str) -> PyResult<Element> {
    let dtype = array.dtype();
    let code: String = dtype.getattr("str")?.extract()?;
    match code.as_str() {
        "<f4" => return Ok(Element::F32),
        "<f2" => return Ok(Element::F16),
        "|u1" => return Ok(Element::U8),
        "|i1" => return Ok(Element::I8),
        _ => {}
    }
    let dtype = dtype.str()?;
    Err(PyTypeError::new_err(match code.as_str() {
        "<f8" => format!("{name} is float64: pass {name}.astype(numpy.float32)"),
        ">f4" | ">f2" => format!(
            "{name} is {dtype}, big-endian: pass {name}.astype(\"<{}\")",
            &code[1..]
        ),
        // What pandas makes of a column of lists.
        "|O" if array.shape().len() == 1 => {
            format!("{name} is an array of objects: pass numpy.stack({name}).astype(numpy.float32)")
        }
        "|O" => format!("{name} is an array of objects: pass {name}.astype(numpy.float32)"),
        _ => format!(
            "{name} is {dtype}: float32, float16, uint8 and int8 are known; pass for example {name}.astype(numpy.float32)"
        ),
    }))
}

/// Ids that a user gives: `(n,)` of any integer type, none of them negative nor the last of 64 bits, copied as u64. Of `rows` there
/// must be as many.
pub fn ids(value: &Bound<'_, PyAny>, rows: Option<usize>) -> PyResult<Vec<u64>> {
    let array = untyped(value, "ids")?;
    let shape = array.shape();
    let count: usize = shape.iter().product();
    if shape.len() != 1 || rows.is_some_and(|rows| rows != count) {
        let expected = match rows {
            Some(rows) => format!("({rows},), one for each vector"),
            None => "(n,)".to_owned(),
        };
        let fits = shape.len() != 1 && rows.is_none_or(|rows| rows == count);
        let remedy = if fits { "; pass ids.ravel()" } else { "" };
        return Err(PyValueError::new_err(format!(
            "ids has the shape {}: it must be {expected}{remedy}",
            shape_text(shape)
        )));
    }
    let dtype = array.dtype();
    let kind: String = dtype.getattr("kind")?.extract()?;
    match kind.as_str() {
        "u" | "i" => {}
        // A mask of rows is no list of them.
        "b" => {
            return Err(PyTypeError::new_err(
                "ids is bool: pass numpy.flatnonzero(ids), if it says which row numbers are meant",
            ));
        }
        "f" => {
            return Err(PyTypeError::new_err(format!(
                "ids is {}, which holds integers exactly only up to a bound (2^53 in float64): keep ids as integers from their \
                 source on, or pass ids.astype(numpy.uint64) if none of them is larger",
                dtype.str()?
            )));
        }
        _ => {
            return Err(PyTypeError::new_err(format!(
                "ids is {}: pass ids.astype(numpy.uint64)",
                dtype.str()?
            )));
        }
    }
    let wrong = |id: &dyn std::fmt::Display| {
        PyValueError::new_err(format!("ids holds {id}: ids are from 0 to 2^64 - 2"))
    };
    if kind == "i" && count > 0 {
        let lowest: i64 = array.call_method0("min")?.extract()?;
        if lowest < 0 {
            return Err(wrong(&lowest));
        }
    }
    let wide = array.call_method1("astype", ("<u8",))?;
    let ids = wide
        .cast_into::<PyArray1<u64>>()?
        .readonly()
        .as_array()
        .to_vec();
    // It stands for "no answer" in results.
    match ids.contains(&u64::MAX) {
        true => Err(wrong(&u64::MAX)),
        false => Ok(ids),
    }
}

/// A `(rows, k)` array over the memory of `values`, or `(k,)` if a single row was asked for.
pub fn table<'py, T: NumpyElement>(
    py: Python<'py>,
    values: Vec<T>,
    k: usize,
    single: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let rows = values.len().checked_div(k).unwrap_or(0);
    let flat = PyArray1::from_vec(py, values);
    if single {
        Ok(flat.into_any())
    } else {
        Ok(flat.reshape([rows, k])?.into_any())
    }
}

/// A shape as Python writes it.
pub fn shape_text(shape: &[usize]) -> String {
    match shape {
        [] => "()".to_owned(),
        [n] => format!("({n},)"),
        _ => format!(
            "({})",
            shape
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}
