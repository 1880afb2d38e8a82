//! JSON in which no object has a key twice. `serde_json` keeps the last one in silence, and the caller would never learn
//! which of the two was heard. Looked at while the bytes are read, so a long body is read once.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Why a text was refused.
#[derive(Debug)]
pub enum Refusal {
    /// A key that comes twice, with the way to it, such as `messages[0].role`.
    Twice(String),
    /// Where and why it is no JSON.
    Syntax(serde_json::Error),
}

/// Reads a whole text.
///
/// # Errors
/// It is no JSON, or it has a key twice.
pub fn from_slice(json: &[u8]) -> Result<Value, Refusal> {
    let twice = RefCell::new(None);
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = Node { at: &Place::Top, twice: &twice }.deserialize(&mut reader);
    read.and_then(|value| reader.end().map(|()| value)).map_err(|error| match twice.take() {
        Some(path) => Refusal::Twice(path),
        None => Refusal::Syntax(error),
    })
}

/// Where in the text a value stands.
enum Place<'a> {
    Top,
    Key(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Key(Self::Top, key) => f.write_str(key),
            Self::Key(object, key) => write!(f, "{object}.{key}"),
            Self::Index(array, index) => write!(f, "{array}[{index}]"),
        }
    }
}

/// A value that is about to be read.
struct Node<'a> {
    at: &'a Place<'a>,
    /// Filled when reading ends early because of it.
    twice: &'a RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) =
            items.next_element_seed(Node { at: &Place::Index(self.at, array.len()), twice: self.twice })?
        {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let at = Place::Key(self.at, &key);
            if object.contains_key(&key) {
                *self.twice.borrow_mut() = Some(at.to_string());
                return Err(A::Error::custom("a key comes twice"));
            }
            let value = entries.next_value_seed(Node { at: &at, twice: self.twice })?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_serde_json_reads_it() {
        for text in [
            "null",
            " [1, -2, 3.5, 1e3, 18446744073709551615, -9223372036854775808, true, false, null, \"a\\u00e9\\n\"] ",
            r#"{"b": {"a": 1, "b": {}}, "a": [{"b": 2}, {"b": 3}], "": [[]]}"#,
        ] {
            let want: Value = serde_json::from_str(text).unwrap();
            let got = from_slice(text.as_bytes()).unwrap();
            assert_eq!(got, want);
            assert_eq!(got.to_string(), want.to_string(), "the order of keys is kept");
        }
        let deep = "[".repeat(100_000);
        for text in ["", "{", "{\"a\": 1,}", "1 2", "1e999", "\"\\ud800\"", "nul", deep.as_str()] {
            let want = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            match from_slice(text.as_bytes()) {
                Err(Refusal::Syntax(error)) => assert_eq!(error.to_string(), want),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_key_that_comes_twice_is_named_with_its_place() {
        for (text, at) in [
            (r#"{"a": 1, "b": 2, "a": 1}"#, "a"),
            (r#"{"a": 1, "\u0061": null}"#, "a"),
            (r#"{"m": [{}, {"r": {"x": 1, "x": 2}}]}"#, "m[1].r.x"),
            (r#"[[{"x": 1, "x": 2}]]"#, "[0][0].x"),
            // Before what else may be wrong behind it.
            (r#"{"a": 1, "a": "#, "a"),
        ] {
            assert!(matches!(from_slice(text.as_bytes()), Err(Refusal::Twice(path)) if path == at), "{text}");
        }
    }
}
