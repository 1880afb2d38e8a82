//! The header of one safetensors file: 8 bytes of length, that many bytes of JSON, then the data, wherever that starts.
//! Entries have the `safetensors` crate's types, but are checked here, so that each refusal names file and tensor.

use std::collections::BTreeSet;
use std::fmt;

use lily_kernels::mapped::MappedFile;
use lily_kernels::tensor::FileSlice;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::CheckpointError;

/// The format's own bound on the header, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: usize = 8;

/// One tensor of a file, its range known to lie inside the file and to fit its shape.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: safetensors::Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) slice: FileSlice,
}

/// Lists the tensors of `file`, which gets the number `number`, in the order of their bytes.
///
/// # Errors
/// The file is no safetensors file, is truncated, or its header contradicts itself.
pub(super) fn read(file: &MappedFile, number: u32) -> Result<Vec<Entry>, CheckpointError> {
    let (header, data_start) = split(file)?;
    let data_bytes = file.bytes().len() - data_start;
    let Header(fields) = serde_json::from_slice(header)
        .map_err(|reason| CheckpointError::file(file.name(), format!("the safetensors header is bad: {reason}")))?;

    let mut infos = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let info: TensorInfo = serde_json::from_value(value).map_err(|reason| {
            CheckpointError::tensor(file.name(), &name, format!("has a bad header entry: {reason}"))
        })?;
        check_size(&info).map_err(|problem| CheckpointError::tensor(file.name(), &name, problem))?;
        infos.push((name, info));
    }
    infos.sort_by_key(|(_, info)| info.data_offsets);
    check_cover(&infos, data_bytes, file)?;

    let entry = |(name, info): (String, TensorInfo)| {
        let (begin, end) = info.data_offsets;
        let slice = FileSlice { file: number, offset: (data_start + begin) as u64, bytes: (end - begin) as u64 };
        Entry { name, dtype: info.dtype, shape: info.shape, slice }
    };
    Ok(infos.into_iter().map(entry).collect())
}

/// The header's JSON and the offset of the first data byte.
fn split(file: &MappedFile) -> Result<(&[u8], usize), CheckpointError> {
    let bytes = file.bytes();
    let refuse = |problem: String| Err(CheckpointError::file(file.name(), problem));
    if bytes.starts_with(b"version https://git-lfs") {
        return refuse("this is a Git LFS pointer, not the weights themselves; fetch them with `git lfs pull`".into());
    }
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return refuse(format!("{} bytes are too few for a safetensors file", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return refuse(format!(
            "the first 8 bytes announce a header of {length} bytes, so this is no safetensors file"
        ));
    }
    let length = length as usize; // at most MAX_HEADER_BYTES
    match rest.get(..length) {
        Some(header) => Ok((header, LENGTH_BYTES + length)),
        None => refuse(format!("the header should take {length} bytes, but only {} follow: truncated?", rest.len())),
    }
}

/// The byte range of one tensor must be as long as its shape says.
fn check_size(info: &TensorInfo) -> Result<(), String> {
    let (begin, end) = info.data_offsets;
    let taken =
        end.checked_sub(begin).ok_or_else(|| format!("has data_offsets [{begin}, {end}], which run backwards"))?;
    let (shape, dtype) = (&info.shape, info.dtype);
    let bits = shape.iter().try_fold(dtype.bitsize(), |bits, dim| bits.checked_mul(*dim));
    match bits {
        Some(bits) if bits.is_multiple_of(8) && bits / 8 == taken => Ok(()),
        Some(bits) => Err(format!("takes {taken} bytes, but shape {shape:?} of {dtype} needs {}", bits.div_ceil(8))),
        None => Err(format!("has shape {shape:?}, which is larger than any memory")),
    }
}

/// Sorted tensors must cover the data section without overlap, hole or rest.
fn check_cover(infos: &[(String, TensorInfo)], data_bytes: usize, file: &MappedFile) -> Result<(), CheckpointError> {
    // First, because it is the one that users meet: an interrupted download.
    let described = infos.iter().map(|(_, info)| info.data_offsets.1).max().unwrap_or(0);
    if described > data_bytes {
        let problem = format!("truncated: the header describes {described} bytes of data, the file holds {data_bytes}");
        return Err(CheckpointError::file(file.name(), problem));
    }
    let mut covered = 0;
    let mut previous = "";
    for (name, info) in infos {
        let begin = info.data_offsets.0;
        if begin < covered {
            return Err(CheckpointError::tensor(file.name(), name, format!("overlaps {previous}")));
        }
        if begin > covered {
            let problem = format!("starts at data byte {begin}, but nothing describes the bytes from {covered} on");
            return Err(CheckpointError::tensor(file.name(), name, problem));
        }
        covered = info.data_offsets.1;
        previous = name;
    }
    if covered < data_bytes {
        let problem = format!("{} bytes follow the last tensor", data_bytes - covered);
        return Err(CheckpointError::file(file.name(), problem));
    }
    Ok(())
}

/// Names and values of the header's fields but `__metadata__`; a name twice is an error, where a map would drop one.
struct Header(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut names = BTreeSet::new();
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("{name} appears twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        fields.push((name, map.next_value()?));
                    }
                }
                Ok(Header(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}
