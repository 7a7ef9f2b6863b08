//! Passes vectors between numpy arrays and the engine without a copy.
//! `python/stratann/conversion.py` first converts all else.
//!
//! numpy itself views an `(n, d)` array of float32 as an `(n, 4d)` array of uint8, so this module
//! needs neither `unsafe` nor a type parameter.

use numpy::{Element as NumpyElement, PyArrayDyn};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use stratann::{Element, MatrixRef};

use crate::errors::to_python;

/// A borrowed numpy array of vectors. Its memory stays readable as long as this value lives.
pub struct Rows<'py> {
    name: &'static str,
    bytes: PyReadonlyArrayDyn<'py, u8>,
    rows: usize,
    dim: usize,
    element: Element,
    single: bool,
}

impl<'py> Rows<'py> {
    /// The rows of an `(n, d)` array. `name` is the Python argument. Without a wanted type, the
    /// array keeps its type, or becomes float32 if no index can have this type.
    pub fn matrix(
        value: &Bound<'py, PyAny>,
        name: &'static str,
        wanted: Option<Element>,
    ) -> PyResult<Self> {
        Self::take(value, name, wanted, false)?.with_elements()
    }

    /// The rows of an `(n, d)` array, or the single row of a `(d,)` array, of dimension `dim`.
    pub fn matrix_or_row(
        value: &Bound<'py, PyAny>,
        name: &'static str,
        wanted: Element,
        dim: usize,
    ) -> PyResult<Self> {
        let rows = Self::take(value, name, Some(wanted), true)?;
        rows.fit(dim)?;
        Ok(rows)
    }

    /// Like [`matrix_or_row`](Self::matrix_or_row), for indexes whose dimensions the engine
    /// compares.
    pub fn matrix_or_row_of_any(
        value: &Bound<'py, PyAny>,
        name: &'static str,
        wanted: Element,
    ) -> PyResult<Self> {
        Self::take(value, name, Some(wanted), true)?.with_elements()
    }

    fn take(
        value: &Bound<'py, PyAny>,
        name: &'static str,
        wanted: Option<Element>,
        row_too: bool,
    ) -> PyResult<Self> {
        let array = &as_it_is_or_converted(value, name, wanted)?;
        let element = element(array, name)?;
        let shape = array.shape();
        let (rows, dim, single) = match *shape {
            [rows, dim] => (rows, dim, false),
            [dim] if row_too => (1, dim, true),
            _ => {
                let or = match shape {
                    _ if row_too => ", or (d,) for one".to_owned(),
                    [_] => format!(", for one vector {name}[None, :]"),
                    _ => String::new(),
                };
                return Err(PyValueError::new_err(format!(
                    "{name} has the shape {}; vectors have (n, d). Pass such an array{or}",
                    shape_text(shape)
                )));
            }
        };
        let bytes = array.call_method1("view", ("u1",))?;
        let bytes = bytes
            .cast_into::<PyArrayDyn<u8>>()?
            .try_readonly()
            .map_err(|_| {
                PyValueError::new_err(format!(
                    "{name} is being written by another native function. Pass it when that function has returned"
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

    /// The vectors for the engine, in the memory of the array.
    pub fn source(&self) -> PyResult<MatrixRef<'_>> {
        let bytes = self.bytes.as_slice()?;
        let rows = MatrixRef::new(bytes, self.rows, self.dim, self.element);
        Ok(rows.map_err(to_python)?.named(self.name))
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    pub fn element(&self) -> Element {
        self.element
    }

    fn fit(&self, dim: usize) -> PyResult<()> {
        if dim == self.dim {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{}; the index has {dim} dimensions. Pass vectors of {dim} dimensions",
            self.shape()
        )))
    }

    fn with_elements(self) -> PyResult<Self> {
        if self.dim > 0 {
            return Ok(self);
        }
        Err(PyValueError::new_err(format!(
            "{}; a vector has at least one element. Pass vectors of one element or more",
            self.shape()
        )))
    }

    fn shape(&self) -> String {
        let shape = match self.single {
            true => vec![self.dim],
            false => vec![self.rows, self.dim],
        };
        format!("{} has the shape {}", self.name, shape_text(&shape))
    }

    /// Whether the array was a single vector, `(d,)`. The result then has one dimension too.
    pub fn is_single(&self) -> bool {
        self.single
    }
}

/// Returns `value` itself if the engine can read it, and otherwise a copy by `stratann.conversion`.
fn as_it_is_or_converted<'py>(
    value: &Bound<'py, PyAny>,
    name: &str,
    wanted: Option<Element>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Some(array) = plain(value)?
        && array.is_c_contiguous()
        && element_of(array)?.is_some_and(|found| wanted.is_none_or(|wanted| wanted == found))
    {
        return Ok(array.clone());
    }
    let conversion = value.py().import("stratann.conversion")?;
    let converted = conversion.call_method1("vectors", (value, name, wanted.map(dtype_name)))?;
    Ok(converted.cast_into::<PyUntypedArray>()?)
}

fn plain<'a, 'py>(
    value: &'a Bound<'py, PyAny>,
) -> PyResult<Option<&'a Bound<'py, PyUntypedArray>>> {
    match value.cast::<PyUntypedArray>() {
        Ok(array) if !array.hasattr("mask")? => Ok(Some(array)),
        _ => Ok(None),
    }
}

/// The name of an element type in numpy, such as `float32`.
pub fn dtype_name(element: Element) -> &'static str {
    match element {
        Element::F32 => "float32",
        Element::F16 => "float16",
        Element::U8 => "uint8",
        Element::I8 => "int8",
    }
}

fn element_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<Element>> {
    let code: String = array.dtype().getattr("str")?.extract()?;
    Ok(match code.as_str() {
        "<f4" => Some(Element::F32),
        "<f2" => Some(Element::F16),
        "|u1" => Some(Element::U8),
        "|i1" => Some(Element::I8),
        _ => None,
    })
}

fn element(array: &Bound<'_, PyUntypedArray>, name: &str) -> PyResult<Element> {
    element_of(array)?.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{name} is {}; an index holds float32, float16, uint8 and int8. Convert the array to one of these",
            array.dtype()
        ))
    })
}

/// The ids in any array-like object, copied as u64. With `rows`, there must be exactly `rows` ids
/// in the order of the rows. Fails for negative ids and for 2^64 - 1.
pub fn ids(value: &Bound<'_, PyAny>, rows: Option<usize>) -> PyResult<Vec<u64>> {
    let ids = integers(value, rows.map(|_| "the vectors"))?;
    if let Some(rows) = rows.filter(|&rows| rows != ids.len()) {
        return Err(PyValueError::new_err(format!(
            "ids has the shape ({},); there are {rows} vectors. Pass one id for each vector",
            ids.len()
        )));
    }
    // In results, this number stands for a missing answer.
    match ids.iter().position(|&id| id == u64::MAX) {
        Some(row) => Err(PyValueError::new_err(format!(
            "ids: row {row} is {}; this number stands for a missing answer. Pass ids from 0 to 2^64 - 2",
            u64::MAX
        ))),
        None => Ok(ids),
    }
}

/// The name of the results in errors about ids without an order, such as a set.
pub const ANSWERS: &str = "the answers";

/// `beside` names the result that has the order of the ids. 2^64 - 1 is accepted, although no
/// vector has it.
pub fn ids_asked(value: &Bound<'_, PyAny>, beside: &str) -> PyResult<Vec<u64>> {
    integers(value, Some(beside))
}

fn integers(value: &Bound<'_, PyAny>, beside: Option<&str>) -> PyResult<Vec<u64>> {
    let conversion = value.py().import("stratann.conversion")?;
    let array = conversion.call_method1("ids", (value, beside))?;
    let array = array.cast_into::<PyArray1<u64>>()?;
    Ok(array.readonly().as_array().to_vec())
}

/// The array has the shape `(rows, k)`, or `(k,)` for a single query, and uses the memory of
/// `values`.
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
