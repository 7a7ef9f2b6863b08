//! Attributes, payloads and filters in Python. `python/stratann/attributes.py` converts tables to
//! columns of Python values, and this module converts these for the engine.

use std::collections::{BTreeMap, BTreeSet};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString, PyTuple};
use stratann::{Cleared, ColumnType, DataError, Row, RowSource, Schema, Value};

use crate::arguments::meant_of;
use crate::errors::to_python;
use crate::index::Index;
use crate::progress::warn_first;

/// The estimated overhead of each allocation, in bytes.
const ALLOCATION: usize = 16;

struct Given {
    name: String,
    values: Vec<Option<Value>>,
    /// For each row, whether the row names the column. `None` means that all rows do.
    named: Option<Vec<bool>>,
}

pub struct Table {
    columns: Vec<Given>,
    payload: Option<Vec<Option<String>>>,
    rows: usize,
}

impl Table {
    /// The table of `rows` vectors, or of a `single` vector. `columns` has the types in the index,
    /// if there is an index.
    pub fn of(
        py: Python<'_>,
        attributes: Option<&Bound<'_, PyAny>>,
        payload: Option<&Bound<'_, PyAny>>,
        rows: usize,
        single: bool,
        columns: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Option<Self>> {
        if attributes.is_none() && payload.is_none() {
            return Ok(None);
        }
        let module = py.import("stratann.attributes")?;
        let found = module.call_method1("table", (attributes, payload, rows, single, columns))?;
        let (named, payload): (Bound<'_, PyDict>, Option<Vec<Option<String>>>) = found.extract()?;
        let mut columns = Vec::with_capacity(named.len());
        for (name, column) in named {
            let (kind, values, named): (String, Bound<'_, PyAny>, _) = column.extract()?;
            columns.push(Given {
                name: name.extract()?,
                values: values_of(&kind, &values)?,
                named,
            });
        }
        Ok(Some(Self {
            columns,
            payload,
            rows,
        }))
    }
}

impl Table {
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let has_value = |column: &&Given| column.values.iter().any(Option::is_some);
        let columns = self.columns.iter().filter(has_value);
        columns.map(|column| column.name.as_str())
    }

    pub fn memory_bytes(&self) -> u64 {
        let values = self.columns.iter().flat_map(|column| &column.values);
        let values: usize = values
            .map(|value| size_of::<Option<Value>>() + value.as_ref().map_or(0, beside))
            .sum();
        let named = self
            .columns
            .iter()
            .filter_map(|column| column.named.as_ref());
        let named: usize = named.map(Vec::len).sum();
        let payload = self.payload.iter().flatten();
        let payload: usize = payload
            .map(|text| size_of::<Option<String>>() + text.as_ref().map_or(0, text_bytes))
            .sum();
        (values + named + payload) as u64
    }
}

/// The bytes of a text on the heap, with [`ALLOCATION`].
fn text_bytes(text: &String) -> usize {
    text.capacity() + ALLOCATION
}

/// The bytes of a value on the heap, with [`ALLOCATION`].
fn beside(value: &Value) -> usize {
    match value {
        Value::String(text) => text_bytes(text),
        Value::Strings(texts) => {
            let each = texts.iter().map(text_bytes).sum::<usize>();
            each + texts.capacity() * size_of::<String>() + ALLOCATION
        }
        Value::Integers(values) => size_of_val(&**values) + ALLOCATION,
        Value::Boolean(_) | Value::Integer(_) | Value::Float(_) | Value::Timestamp(_) => 0,
    }
}

impl RowSource for Table {
    fn rows(&self) -> usize {
        self.rows
    }

    fn name(&self) -> &str {
        "attributes"
    }

    fn row(&self, at: usize) -> Result<Row, DataError> {
        let mut attributes = BTreeMap::new();
        for column in &self.columns {
            if let Some(value) = column.values.get(at).cloned().flatten() {
                attributes.insert(column.name.clone(), value);
            }
        }
        let payload = self.payload.as_ref();
        Ok(Row {
            attributes,
            payload: payload.and_then(|payload| payload.get(at).cloned().flatten()),
        })
    }

    fn cleared(&self, at: usize) -> Result<Cleared, DataError> {
        let is_cleared = |column: &&Given| {
            let is_named = (column.named.as_ref()).is_none_or(|named| named.get(at) == Some(&true));
            is_named && column.values.get(at).is_some_and(Option::is_none)
        };
        let cleared = self.columns.iter().filter(is_cleared);
        let payload = self.payload.as_ref();
        Ok(Cleared {
            attributes: cleared.map(|column| column.name.clone()).collect(),
            payload: payload.is_some_and(|payload| payload.get(at) == Some(&None)),
        })
    }
}

/// `kind` is the name of a type in `attributes.py`.
fn values_of(kind: &str, values: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Value>>> {
    fn each<T>(values: Vec<Option<T>>, make: impl Fn(T) -> Value) -> Vec<Option<Value>> {
        let values = values.into_iter();
        values.map(|value| value.map(&make)).collect()
    }
    Ok(match kind {
        "boolean" => each(values.extract()?, Value::Boolean),
        "integer" => each(values.extract()?, Value::Integer),
        "float" => each(values.extract()?, Value::Float),
        "string" => each(values.extract()?, Value::String),
        "timestamp" => each(values.extract()?, Value::Timestamp),
        "strings" => each(values.extract()?, Value::Strings),
        "integers" => each(values.extract()?, Value::Integers),
        _ => vec![None; values.len()?],
    })
}

fn value_to_python<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Boolean(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Value::Integer(value) => value.into_pyobject(py)?.into_any(),
        Value::Float(value) => value.into_pyobject(py)?.into_any(),
        Value::String(value) => value.into_pyobject(py)?.into_any(),
        Value::Timestamp(micros) => py
            .import("stratann.attributes")?
            .call_method1("time", (micros,))?,
        Value::Strings(values) => values.into_pyobject(py)?.into_any(),
        Value::Integers(values) => values.into_pyobject(py)?.into_any(),
    })
}

/// An id that is not in the index has `None`.
pub fn attributes(py: Python<'_>, rows: Vec<Option<Row>>) -> PyResult<Bound<'_, PyList>> {
    let found = PyList::empty(py);
    for row in rows {
        let Some(row) = row else {
            found.append(py.None())?;
            continue;
        };
        let attributes = PyDict::new(py);
        for (name, value) in row.attributes {
            attributes.set_item(name, value_to_python(py, value)?)?;
        }
        found.append(attributes)?;
    }
    Ok(found)
}

/// A row without a payload has `None`.
pub fn payloads<'py>(py: Python<'py>, rows: &[Option<Row>]) -> PyResult<Bound<'py, PyList>> {
    let loads = py.import("json")?.getattr("loads")?;
    let found = PyList::empty(py);
    for row in rows {
        match row.as_ref().and_then(|row| row.payload.as_ref()) {
            Some(text) => found.append(loads.call1((text,))?)?,
            None => found.append(py.None())?,
        }
    }
    Ok(found)
}

/// Warns of names that are probably misspelt columns.
#[pyfunction]
pub fn warn_of_new(index: &Bound<'_, Index>, names: Vec<String>) -> PyResult<()> {
    let py = index.py();
    let schema = index.get().schema(py)?;
    let warnings = schema.misspelt(names.iter().map(String::as_str));
    warnings
        .iter()
        .try_for_each(|warning| warn_first(py, warning))
}

pub struct Beside {
    attributes: Option<Wanted>,
    payload: bool,
}

enum Wanted {
    All(BTreeSet<String>),
    Named(BTreeSet<String>),
}

impl Beside {
    /// `None` if the user wants neither. Fails for a column that the index lacks.
    pub fn of(
        attributes: Option<&Bound<'_, PyAny>>,
        payload: bool,
        columns: impl FnOnce() -> PyResult<BTreeSet<String>>,
    ) -> PyResult<Option<Self>> {
        let attributes = match attributes {
            None => None,
            Some(given) => match given.extract::<bool>() {
                Ok(true) => Some(Wanted::All(columns()?)),
                Ok(false) => None,
                Err(_) => Some(Wanted::Named(wanted(given, &columns()?)?)),
            },
        };
        Ok((attributes.is_some() || payload).then_some(Self {
            attributes,
            payload,
        }))
    }

    /// The names of the wanted parts, in the order of [`parts`](Self::parts).
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let attributes = self.attributes.as_ref().map(|_| "attributes");
        attributes
            .into_iter()
            .chain(self.payload.then_some("payload"))
    }

    /// A list of `k` entries for each query, or one list for a `single` query. `None` stands for a
    /// missing result.
    pub fn parts<'py>(
        &self,
        py: Python<'py>,
        mut rows: Vec<Option<Row>>,
        k: usize,
        single: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut parts = Vec::new();
        if let Some(wanted) = &self.attributes {
            if let Wanted::Named(names) = wanted {
                for row in rows.iter_mut().flatten() {
                    row.attributes.retain(|name, _| names.contains(name));
                }
            }
            let attributes = rows.iter_mut().map(|row| {
                row.as_mut().map(|row| Row {
                    attributes: std::mem::take(&mut row.attributes),
                    payload: None,
                })
            });
            let (Wanted::All(names) | Wanted::Named(names)) = wanted;
            let names = PyTuple::new(py, names)?;
            let values = self::attributes(py, attributes.collect())?;
            parts.push((values, "AttributesOfResults", Some(names)));
        }
        if self.payload {
            parts.push((payloads(py, &rows)?, "PayloadsOfResults", None));
        }
        let module = py.import("stratann.rows")?;
        let grouped =
            |(part, class, names): (Bound<'py, PyList>, &str, Option<Bound<'py, PyTuple>>)| {
                let class = module.getattr(class)?;
                // Each query's list is an object of its own, because a caller may use one list
                // alone.
                let made = |list: Bound<'py, PyList>| match &names {
                    Some(names) => class.call1((list, names)),
                    None => class.call1((list,)),
                };
                if single {
                    return made(part);
                }
                let groups = (0..part.len()).step_by(k.max(1));
                let groups: PyResult<Vec<_>> = groups
                    .map(|first| made(part.get_slice(first, first + k)))
                    .collect();
                made(PyList::new(py, groups?)?)
            };
        parts.into_iter().map(grouped).collect()
    }
}

fn wanted(given: &Bound<'_, PyAny>, columns: &BTreeSet<String>) -> PyResult<BTreeSet<String>> {
    let names = match given.cast::<PyString>() {
        Ok(name) => PyList::new(given.py(), [name])?.into_any(),
        Err(_) => {
            let module = given.py().import("stratann.attributes")?;
            module.call_method1("several", (given, "attributes"))?
        }
    };
    let mut wanted = BTreeSet::new();
    for name in names.try_iter()? {
        let name = text_of(&name?, "a name in attributes")?;
        if !columns.contains(&name) {
            let meant = meant_of(&name, columns.iter().map(String::as_str));
            let meant = meant.map_or(String::new(), |meant| format!(" (did you mean {meant:?}?)"));
            return Err(PyValueError::new_err(format!(
                "attributes has {name:?}; the index has no such column{meant}. Pass names of `Index.columns`, or True for all columns"
            )));
        }
        wanted.insert(name);
    }
    Ok(wanted)
}

pub fn names(schema: &Schema) -> impl Iterator<Item = String> {
    schema.iter().map(|(name, _)| name.to_owned())
}

pub fn columns<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, kind) in schema.iter() {
        let kind: ColumnType = kind;
        found.set_item(name, kind.to_string())?;
    }
    Ok(found)
}

/// `what` is the name of the text in errors.
fn text_of(given: &Bound<'_, PyAny>, what: &str) -> PyResult<String> {
    let module = given.py().import("stratann.attributes")?;
    module.call_method1("text", (given, what))?.extract()
}

/// A filter is a text, a dict of conditions, or a `Filter`.
pub fn filter(value: &Bound<'_, PyAny>) -> PyResult<stratann::Filter> {
    if let Ok(filter) = value.cast::<Filter>() {
        return Ok(filter.get().0.clone());
    }
    if value.cast::<PyMapping>().is_ok() {
        let module = value.py().import("stratann.conditions")?;
        let made = module.call_method1("filter_of", (value,))?;
        return Ok(made.cast::<Filter>()?.get().0.clone());
    }
    if !value.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!(
            "filter={}; it is of another type. Pass a text such as \"price < 10 and tag == 'x'\", a dict such as {{\"price\": {{\"$lt\": 10}}}}, \
             or a stratann.Filter",
            value.repr()?
        )));
    }
    stratann::Filter::parse(&text_of(value, "filter")?).map_err(to_python)
}

/// A condition on the attributes of vectors, made from a text, from a dict or from columns.
///
///     cheap = stratann.column("price") < 10
///     wanted = cheap & stratann.column("tags").contains("new") & ~stratann.column("sold").exists()
///     assert wanted == stratann.Filter("price < 10 and tags contains 'new' and not exists sold")
///
/// `&` means "and", `|` means "or", `~` means "not". `Filter(str(filter))` is the same filter.
#[pyclass(frozen, module = "stratann")]
pub struct Filter(stratann::Filter);

#[pymethods]
impl Filter {
    #[new]
    fn new(text: &Bound<'_, PyAny>) -> PyResult<Self> {
        if text.cast::<PyMapping>().is_ok() {
            return filter(text).map(Self);
        }
        let text = text_of(text, "the text of a filter")?;
        stratann::Filter::parse(&text).map(Self).map_err(to_python)
    }

    fn __and__(&self, other: &Self) -> Self {
        Self(self.0.clone().and(other.0.clone()))
    }

    fn __or__(&self, other: &Self) -> Self {
        Self(self.0.clone().or(other.0.clone()))
    }

    fn __invert__(&self) -> Self {
        Self(!self.0.clone())
    }

    /// Always an error: Python's `and` and `or` call this, and would then drop one of their two
    /// filters.
    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err(
            "a filter is neither true nor false. Write & for and, | for or, ~ for not, with parentheses around comparisons",
        ))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let other = other.cast::<Self>();
        other.is_ok_and(|other| self.0 == other.get().0)
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.0.to_string().hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let arguments = PyTuple::new(py, [slf.get().0.to_string()])?;
        PyTuple::new(py, [slf.get_type().into_any(), arguments.into_any()])
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    /// The names of the columns that the filter tests, each once.
    #[getter]
    fn columns(&self) -> Vec<String> {
        let names = self.0.columns();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Whether the filter has a negation: `not`, `!=`, `not in` or `== null`. Vectors without a
    /// value in the column may then match.
    #[getter]
    fn negates(&self) -> bool {
        self.0.negates()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let text = PyString::new(py, &self.0.to_string()).repr()?;
        Ok(format!("stratann.Filter({text})"))
    }
}

/// A column of attributes, for filters: `stratann.column(name)`. A comparison (`==`, `!=`, `<`,
/// `<=`, `>`, `>=`) of a column with a value is a `Filter`.
#[pyclass(frozen, module = "stratann")]
pub struct Column(String);

impl Column {
    fn asked(&self) -> stratann::FilterColumn {
        stratann::Filter::column(self.0.as_str())
    }
}

fn compared(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let module = value.py().import("stratann.attributes")?;
    let found = module.call_method1("value", (value,))?;
    let (kind, made): (String, Bound<'_, PyAny>) = found.extract()?;
    let list = PyList::new(value.py(), [made])?;
    let value = values_of(&kind, list.as_any())?.into_iter().next();
    value.flatten().ok_or_else(|| {
        PyTypeError::new_err(
            "a filter compares a column with None, which is no value. Pass a value",
        )
    })
}

/// `asked` is the name of the method. A single text is an error, because Python would iterate over
/// its characters.
fn all_compared(values: &Bound<'_, PyAny>, asked: &str) -> PyResult<Vec<Value>> {
    let module = values.py().import("stratann.attributes")?;
    module
        .call_method1("several", (values, asked))?
        .try_iter()?
        .map(|value| compared(&value?))
        .collect::<PyResult<_>>()
}

#[pymethods]
impl Column {
    #[new]
    fn new(name: &Bound<'_, PyAny>) -> PyResult<Self> {
        text_of(name, "the name of a column").map(Self)
    }

    fn __eq__(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let column = self.asked();
        Ok(Filter(match value.is_none() {
            true => column.missing(),
            false => column.equals(compared(value)?),
        }))
    }

    fn __ne__(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let column = self.asked();
        Ok(Filter(match value.is_none() {
            true => column.exists(),
            false => column.differs(compared(value)?),
        }))
    }

    fn __lt__(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        Ok(Filter(self.asked().less(compared(value)?)))
    }

    fn __le__(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        Ok(Filter(self.asked().at_most(compared(value)?)))
    }

    fn __gt__(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        Ok(Filter(self.asked().more(compared(value)?)))
    }

    fn __ge__(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        Ok(Filter(self.asked().at_least(compared(value)?)))
    }

    /// Matches vectors whose value is from `low` to `high`, both included.
    fn between(&self, low: &Bound<'_, PyAny>, high: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let (low, high) = (compared(low)?, compared(high)?);
        Ok(Filter(self.asked().between(low, high)))
    }

    /// Matches vectors whose value is one of `values`.
    fn is_in(&self, values: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let values = all_compared(values, "is_in")?;
        Ok(Filter(self.asked().is_in(values)))
    }

    /// Matches vectors whose value is not one of `values`, and vectors without a value.
    fn not_in(&self, values: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let values = all_compared(values, "not_in")?;
        Ok(Filter(self.asked().not_in(values)))
    }

    /// Matches vectors whose list in this column has `value`.
    fn contains(&self, value: &Bound<'_, PyAny>) -> PyResult<Filter> {
        Ok(Filter(self.asked().contains(compared(value)?)))
    }

    /// Matches vectors whose list in this column has at least one of `values`.
    fn contains_any(&self, values: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let values = all_compared(values, "contains_any")?;
        Ok(Filter(self.asked().contains_any(values)))
    }

    /// Matches vectors whose list in this column has all of `values`.
    fn contains_all(&self, values: &Bound<'_, PyAny>) -> PyResult<Filter> {
        let values = all_compared(values, "contains_all")?;
        Ok(Filter(self.asked().contains_all(values)))
    }

    /// Matches vectors that have a value in this column.
    fn exists(&self) -> Filter {
        Filter(self.asked().exists())
    }

    /// Matches vectors that have no value in this column.
    fn missing(&self) -> Filter {
        Filter(self.asked().missing())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "stratann.column({})",
            PyString::new(py, &self.0).repr()?
        ))
    }
}

/// Returns a column of attributes. A comparison makes a `Filter` of it: `stratann.column("price") <
/// 10`.
#[pyfunction]
pub fn column(name: &Bound<'_, PyAny>) -> PyResult<Column> {
    Column::new(name)
}
