//! The head of a `.npy` file: one array, as NumPy writes it. No I/O but the reading of the head.
//!
//! ```text
//!   "\x93NUMPY" │ u8 major │ u8 minor │ u16 (major 1) or u32 length │ a dict of Python, padded with spaces, and "\n" │ elements
//! ```
//!
//! Source: NEP 1 and `numpy.lib.format`.

use std::io::Read;

use slipring::DType;

use crate::failure::Failure;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest head that is read: a dict of one array takes some 100 bytes.
const LONGEST: usize = 64 << 10;

/// NumPy aligns the elements to 64 bytes.
const ALIGNMENT: usize = 64;

/// Returns NumPy's name of a data type. `None`: NumPy has none.
fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::Uint8 => "|u1",
        DType::Uint16 => "<u2",
        DType::Uint32 => "<u4",
        DType::Uint64 => "<u8",
        DType::Int8 => "|i1",
        DType::Int16 => "<i2",
        DType::Int32 => "<i4",
        DType::Int64 => "<i8",
        DType::Fp16 => "<f2",
        DType::Fp32 => "<f4",
        DType::Fp64 => "<f8",
        _ => return None,
    })
}

/// Returns the bytes before the elements of an array. `None`: NumPy does not know the data type.
pub(crate) fn head(dtype: DType, shape: &[usize]) -> Option<Vec<u8>> {
    let descr = descr(dtype)?;
    let dims = match shape {
        [dim] => format!("{dim},"), // Python's tuple of one element
        dims => dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let before = MAGIC.len() + 4;
    let len = (before + dict.len() + 1).next_multiple_of(ALIGNMENT);
    dict.extend(std::iter::repeat_n(' ', len - before - dict.len() - 1));
    dict.push('\n');
    let mut head = MAGIC.to_vec();
    head.extend([1, 0]);
    head.extend((dict.len() as u16).to_le_bytes());
    head.extend(dict.into_bytes());
    Some(head)
}

/// Reads the bytes before the elements. Returns the data type and the shape.
pub(crate) fn read_head(file: &mut impl Read) -> Result<(DType, Vec<usize>), Failure> {
    let mut start = [0; 8];
    file.read_exact(&mut start)?;
    if start[..6] != *MAGIC {
        return Err(Failure::new("no .npy file: it does not start with \\x93NUMPY"));
    }
    let mut len = [0; 4];
    let width = if start[6] == 1 { 2 } else { 4 };
    file.read_exact(&mut len[..width])?;
    let len = u32::from_le_bytes(len) as usize;
    if len > LONGEST {
        return Err(Failure::new(format!("a head of {len} bytes, at most {LONGEST} are read")));
    }
    let mut dict = vec![0; len];
    file.read_exact(&mut dict)?;
    let dict = String::from_utf8_lossy(&dict);
    parse(&dict)
}

fn parse(dict: &str) -> Result<(DType, Vec<usize>), Failure> {
    let wrong = || Failure::new("the head of the .npy file names no array of plain elements");
    let value = |key: &str| -> Option<&str> {
        let (_, after) = dict.split_once(&format!("'{key}':"))?;
        Some(after.trim_start())
    };
    let name = value("descr").and_then(|text| text.strip_prefix('\'')).ok_or_else(wrong)?;
    let (name, _) = name.split_once('\'').ok_or_else(wrong)?;
    let dtype = DType::ALL.into_iter().find(|dtype| descr(*dtype) == Some(name));
    let dtype = dtype.ok_or_else(|| {
        let name: String = name.escape_debug().collect();
        Failure::new(format!("elements of type {name} are not sent: convert them with astype"))
    })?;
    let shape = value("shape").and_then(|text| text.strip_prefix('(')).ok_or_else(wrong)?;
    let (dims, _) = shape.split_once(')').ok_or_else(wrong)?;
    let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let shape: Vec<usize> = dims.map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let is_fortran = value("fortran_order").is_some_and(|text| text.starts_with("True"));
    if is_fortran && shape.len() > 1 {
        return Err(Failure::new(
            "the array is in Fortran's order: save numpy.ascontiguousarray of it",
        ));
    }
    Ok((dtype, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for shape in [&[][..], &[3], &[3, 4], &[0, 1, 2, 3, 4, 5, 6, 7]] {
            for dtype in DType::ALL {
                let Some(head) = head(dtype, shape) else { continue };
                assert_eq!(head.len() % ALIGNMENT, 0);
                assert_eq!(read_head(&mut &head[..]).unwrap(), (dtype, shape.to_vec()));
            }
        }
    }

    #[test]
    fn heads_that_lie_are_refused() {
        let with = |dict: &str| {
            let mut head = b"\x93NUMPY\x01\0".to_vec();
            head.extend((dict.len() as u16).to_le_bytes());
            head.extend(dict.as_bytes());
            read_head(&mut &head[..]).map_err(|failure| failure.to_string())
        };
        let good = "{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }\n";
        assert_eq!(with(good), Ok((DType::Fp32, vec![3])));
        for wrong in [
            "",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3",
        ] {
            assert!(with(wrong).is_err(), "{wrong}");
        }
        assert!(read_head(&mut &b"\x93NUMPY\x02\0\xff\xff\xff\xff"[..]).is_err());
        assert!(read_head(&mut &b"PK"[..]).is_err());
    }
}
