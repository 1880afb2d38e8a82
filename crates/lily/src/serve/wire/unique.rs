//! JSON in which no object has a key twice. `serde_json` keeps the last one in silence, and the caller would never learn
//! which of the two was heard. Looked at while the bytes are read, so a long body is read once.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Most objects of a text. Each costs memory many times its bytes, and no context holds as many messages.
pub const MAX_OBJECTS: usize = 65_536;

/// Why a text was refused.
#[derive(Debug)]
pub enum Refusal {
    /// A key that comes twice, with the way to it, such as `messages[0].role`.
    Twice(String),
    /// More objects than `MAX_OBJECTS`.
    Many,
    /// Where and why it is no JSON, or none that can be read: a number too large, or values too deep.
    Syntax {
        /// In words, with line and column.
        error: serde_json::Error,
        /// The way to the number, or the outermost key over the depth.
        at: Option<String>,
    },
}

/// Reads a whole text.
///
/// # Errors
/// It is no JSON, or it has a key twice.
pub fn from_slice(json: &[u8]) -> Result<Value, Refusal> {
    let found = RefCell::new(Found::default());
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = Node { at: &Place::Top, found: &found }.deserialize(&mut reader);
    read.and_then(|value| reader.end().map(|()| value)).map_err(|error| {
        let Found { twice, failed, objects } = found.take();
        if objects > MAX_OBJECTS {
            return Refusal::Many;
        }
        if let Some(path) = twice {
            return Refusal::Twice(path);
        }
        let words = error.to_string();
        let outermost = |path: String| path.split(['.', '[']).next().unwrap_or_default().to_owned();
        let at = failed.and_then(|path| {
            if words.starts_with("number out of range") {
                Some(path)
            } else if words.starts_with("recursion limit") {
                Some(outermost(path))
            } else {
                None
            }
        });
        Refusal::Syntax { error, at: at.filter(|path| !path.is_empty()) }
    })
}

/// Filled when reading ends early.
#[derive(Default)]
struct Found {
    /// The way to a key that comes twice.
    twice: Option<String>,
    /// The way to the value that could not be read.
    failed: Option<String>,
    /// Objects so far.
    objects: usize,
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
    found: &'a RefCell<Found>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let (at, found) = (self.at, self.found);
        deserializer.deserialize_any(self).inspect_err(|_| {
            // The innermost value comes first.
            found.borrow_mut().failed.get_or_insert_with(|| at.to_string());
        })
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
            items.next_element_seed(Node { at: &Place::Index(self.at, array.len()), found: self.found })?
        {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.found.borrow_mut().objects += 1;
        if self.found.borrow().objects > MAX_OBJECTS {
            return Err(A::Error::custom("too many objects"));
        }
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let at = Place::Key(self.at, &key);
            if object.contains_key(&key) {
                self.found.borrow_mut().twice = Some(at.to_string());
                return Err(A::Error::custom("a key comes twice"));
            }
            let value = entries.next_value_seed(Node { at: &at, found: self.found })?;
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
                Err(Refusal::Syntax { error, .. }) => assert_eq!(error.to_string(), want),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_number_too_large_and_values_too_deep_are_named() {
        let deep = format!(r#"{{"a": 1, "deep": {}}}"#, "[".repeat(200));
        for (text, at) in [
            (r#"{"a": {"b": [1, 1e400]}}"#, Some("a.b[1]")),
            (deep.as_str(), Some("deep")),
            (r#"{"a": {"b": nul}}"#, None),
        ] {
            match from_slice(text.as_bytes()) {
                Err(Refusal::Syntax { at: got, .. }) => assert_eq!(got.as_deref(), at),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn more_objects_than_any_context_holds_are_not_kept() {
        let many = |count| format!("[{}]", vec!["{}"; count].join(","));
        assert!(from_slice(many(MAX_OBJECTS).as_bytes()).is_ok());
        assert!(matches!(from_slice(many(MAX_OBJECTS + 1).as_bytes()), Err(Refusal::Many)));
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
