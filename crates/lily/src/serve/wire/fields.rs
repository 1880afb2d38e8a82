//! The fields of a JSON object, and the words for what each may be: a caller knows JSON's kinds, not ours.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::serve::error::ApiError;

/// What a field may be.
pub trait Kind: for<'de> Deserialize<'de> {
    /// In words, behind "must be".
    const WORDS: &'static str;
}

impl Kind for bool {
    const WORDS: &'static str = "true or false";
}

impl Kind for String {
    const WORDS: &'static str = "a string";
}

impl Kind for f32 {
    const WORDS: &'static str = "a number";
}

impl Kind for usize {
    const WORDS: &'static str = "a whole number of at least 0";
}

impl Kind for u32 {
    const WORDS: &'static str = "a whole number from 0 to 4294967295";
}

impl Kind for i64 {
    const WORDS: &'static str = "a whole number from -9223372036854775808 to 9223372036854775807";
}

impl Kind for Vec<Value> {
    const WORDS: &'static str = "an array";
}

impl Kind for Map<String, Value> {
    const WORDS: &'static str = "an object";
}

/// Of any kind.
impl Kind for Value {
    const WORDS: &'static str = "JSON";
}

/// The fields of one JSON object, taken one by one; what is left at the end is unknown.
pub struct Fields {
    left: Map<String, Value>,
    at: String,
}

impl Fields {
    /// Of an object that stands `at` a place in the body, which is empty for the body itself.
    ///
    /// # Errors
    /// It is no object.
    pub fn new(value: Value, at: &str) -> Result<Self, ApiError> {
        if let Value::Object(left) = value {
            return Ok(Self { left, at: at.to_owned() });
        }
        Err(if at.is_empty() {
            ApiError::new(StatusCode::BAD_REQUEST, "the body is not a JSON object")
        } else {
            ApiError::must_be(at, Map::WORDS, &in_words(&value))
        })
    }

    /// A field; `null` is the same as absent.
    ///
    /// # Errors
    /// It is of another kind.
    pub fn take<T: Kind>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.left.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let found = in_words(&value);
                T::deserialize(value).map(Some).map_err(|_| ApiError::must_be(self.path(name), T::WORDS, &found))
            }
        }
    }

    /// # Errors
    /// There are fields that nobody took.
    pub fn finish(&self) -> Result<(), ApiError> {
        let unknown = self.left.iter().find(|(_, value)| !value.is_null());
        unknown.map_or(Ok(()), |(name, _)| Err(self.error(name, "not supported").code("unsupported_parameter")))
    }

    /// The place of a field in the body.
    pub fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// A field is wrong in a way of its own.
    pub fn error(&self, name: &str, reason: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.path(name), reason)
    }

    /// A field is of the wrong kind.
    pub fn wrong(&self, name: &str, words: &str, found: &Value) -> ApiError {
        ApiError::must_be(self.path(name), words, &in_words(found))
    }
}

/// A short value itself, of a long one its kind.
fn in_words(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => String::WORDS.to_owned(),
        Value::Array(_) => Vec::WORDS.to_owned(),
        Value::Object(_) => Map::WORDS.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal<T: Kind + std::fmt::Debug>(value: Value) -> String {
        Fields::new(json!({"x": value}), "at").unwrap().take::<T>("x").unwrap_err().message
    }

    #[test]
    fn the_words_are_jsons() {
        for (got, want) in [
            (refusal::<bool>(json!("yes")), "at.x must be true or false, not a string"),
            (refusal::<String>(json!(1)), "at.x must be a string, not 1"),
            (refusal::<f32>(json!("hot")), "at.x must be a number, not a string"),
            (refusal::<usize>(json!(-1)), "at.x must be a whole number of at least 0, not -1"),
            (refusal::<usize>(json!(1.5)), "at.x must be a whole number of at least 0, not 1.5"),
            (refusal::<u32>(json!(1_u64 << 32)), "at.x must be a whole number from 0 to 4294967295, not 4294967296"),
            (refusal::<Vec<Value>>(json!({})), "at.x must be an array, not an object"),
            (refusal::<Map<String, Value>>(json!([])), "at.x must be an object, not an array"),
        ] {
            assert_eq!(got, want);
        }
        let limits = [i64::MIN.to_string(), i64::MAX.to_string()];
        assert!(refusal::<i64>(json!(true)).contains(&limits.join(" to ")));
        assert!(u32::WORDS.ends_with(&u32::MAX.to_string()));
    }
}
