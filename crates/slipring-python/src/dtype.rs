//! Data types by the names that NumPy and PyTorch give them.

use std::ffi::CStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use slipring::DType;

/// A data type, its name in Python, and its format in the buffer protocol. BF16, fp8 and BYTES have none there.
struct Row(DType, &'static str, Option<&'static CStr>);

/// `long` has 64 bits on every platform of this library.
const ROWS: [Row; 16] = [
    Row(DType::Bool, "bool", Some(c"?")),
    Row(DType::Uint8, "uint8", Some(c"B")),
    Row(DType::Uint16, "uint16", Some(c"H")),
    Row(DType::Uint32, "uint32", Some(c"I")),
    Row(DType::Uint64, "uint64", Some(c"L")),
    Row(DType::Int8, "int8", Some(c"b")),
    Row(DType::Int16, "int16", Some(c"h")),
    Row(DType::Int32, "int32", Some(c"i")),
    Row(DType::Int64, "int64", Some(c"l")),
    Row(DType::Fp16, "float16", Some(c"e")),
    Row(DType::Fp32, "float32", Some(c"f")),
    Row(DType::Fp64, "float64", Some(c"d")),
    Row(DType::Bytes, "bytes", None),
    Row(DType::Bf16, "bfloat16", None),
    Row(DType::Fp8E4m3fn, "float8_e4m3fn", None),
    Row(DType::Fp8E5m2, "float8_e5m2", None),
];

fn row(dtype: DType) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.0 == dtype)
}

/// Returns the name of a data type in Python.
pub fn name(dtype: DType) -> &'static str {
    row(dtype).map_or("unknown", |row| row.1)
}

/// Returns the format of a data type in the buffer protocol, if it has one.
pub fn format(dtype: DType) -> Option<&'static CStr> {
    row(dtype).and_then(|row| row.2)
}

/// Returns the data type that a name, a NumPy dtype, a scalar type or a PyTorch dtype names.
///
/// # Errors
///
/// `TypeError`: the object names none.
pub fn parse(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let named = |name: &str| ROWS.iter().find(|row| row.1 == name).map(|row| row.0);
    if let Ok(text) = object.cast::<PyString>() {
        let text = text.to_cow()?;
        return named(&text).ok_or_else(|| {
            PyValueError::new_err(format!("unknown dtype {text:?}: the names are {}", names()))
        });
    }
    let order = object.getattr_opt("byteorder")?;
    if order.is_some_and(|order| order.extract::<String>().is_ok_and(|order| order == ">")) {
        let text =
            format!("{} is big-endian: a dtype has this machine's order of bytes", object.str()?);
        return Err(PyTypeError::new_err(text));
    }
    for attribute in ["name", "__name__"] {
        if let Some(text) = object.getattr_opt(attribute)?
            && let Some(dtype) = text.extract::<String>().ok().as_deref().and_then(named)
        {
            return Ok(dtype);
        }
    }
    let text = object.str()?;
    let text = text.to_cow()?;
    text.strip_prefix("torch.").and_then(named).ok_or_else(|| {
        PyTypeError::new_err(format!("{text} is no dtype: the names are {}", names()))
    })
}

fn names() -> String {
    ROWS.map(|row| row.1).join(", ")
}

/// Returns the data type of elements with this format of the buffer protocol.
///
/// # Errors
///
/// `TypeError`: there is none.
pub fn of_format(format: &CStr, size: usize) -> PyResult<DType> {
    let text = format.to_string_lossy();
    let refused = || {
        let text = match text.contains('O') {
            true => {
                "an array of Python objects has no dtype here: convert it to numbers".to_owned()
            }
            false => format!("no dtype for elements of format {text:?} with {size} bytes"),
        };
        PyTypeError::new_err(text)
    };
    // Only the order of bytes of this machine, which is little-endian.
    let code = text.strip_prefix(['@', '=', '<']).unwrap_or(&text);
    let dtype = match (code, size) {
        ("?", 1) => DType::Bool,
        ("c" | "B", 1) => DType::Uint8,
        ("b", 1) => DType::Int8,
        ("H", 2) => DType::Uint16,
        ("h", 2) => DType::Int16,
        ("I" | "L", 4) => DType::Uint32,
        ("i" | "l", 4) => DType::Int32,
        ("L" | "Q" | "N", 8) => DType::Uint64,
        ("l" | "q" | "n", 8) => DType::Int64,
        ("e", 2) => DType::Fp16,
        ("f", 4) => DType::Fp32,
        ("d", 8) => DType::Fp64,
        _ => return Err(refused()),
    };
    Ok(dtype)
}
