//! numpy arrays as the engine's vectors, and back, without a copy.
//!
//! numpy itself makes the view of an array as bytes, so that this needs no `unsafe` and no type parameter: a
//! `(n, d)` array of float32 is a `(n, 4d)` array of uint8 over the same memory, and that is what the engine takes.

use numpy::{Element as NumpyElement, PyArrayDyn};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
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
                let or = if row_too { ", or (d,) for one" } else { "" };
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
    value.cast::<PyUntypedArray>().map_err(|_| {
        let kind = value
            .get_type()
            .name()
            .map_or_else(|_| "?".to_owned(), |n| n.to_string());
        PyTypeError::new_err(format!(
            "{name} is a {kind}: pass a numpy array, numpy.asarray({name})"
        ))
    })
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
        _ => format!(
            "{name} is {dtype}: float32, float16, uint8 and int8 are known; pass for example {name}.astype(numpy.float32)"
        ),
    }))
}

/// Ids that a user gives: `(n,)` of any integer type that holds no negative number, copied as u64.
pub fn ids(value: &Bound<'_, PyAny>, rows: usize) -> PyResult<Vec<u64>> {
    let array = untyped(value, "ids")?;
    if array.shape() != [rows] {
        return Err(PyValueError::new_err(format!(
            "ids has the shape {}: it must be ({rows},), one for each vector",
            shape_text(array.shape())
        )));
    }
    let dtype = array.dtype();
    let kind: String = dtype.getattr("kind")?.extract()?;
    if kind != "u" && kind != "i" {
        return Err(PyTypeError::new_err(format!(
            "ids is {}: pass ids.astype(numpy.uint64)",
            dtype.str()?
        )));
    }
    if kind == "i" && rows > 0 {
        let lowest: i64 = array.call_method0("min")?.extract()?;
        if lowest < 0 {
            return Err(PyValueError::new_err(format!(
                "ids holds {lowest}: ids are from 0 to 2^64 - 1"
            )));
        }
    }
    let wide = array.call_method1("astype", ("<u8",))?;
    Ok(wide
        .cast_into::<PyArray1<u64>>()?
        .readonly()
        .as_array()
        .to_vec())
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
