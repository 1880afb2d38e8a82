//! The fields of a JSON object, and the words for what each may be: a caller knows JSON's kinds, not ours.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::unique::{self, MAX_OBJECTS, Refusal};
use crate::serve::error::ApiError;

/// What a field may be.
pub trait Kind: for<'de> Deserialize<'de> {
    /// In words, behind "must be".
    const WORDS: &'static str;

    /// The value, if it is of this kind.
    fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// The words for a value that is not.
    fn words(_value: &Value) -> &'static str {
        Self::WORDS
    }
}

impl Kind for bool {
    const WORDS: &'static str = "true or false";
}

impl Kind for String {
    const WORDS: &'static str = "a string";
}

impl Kind for f32 {
    const WORDS: &'static str = "a number";

    fn read(value: &Value) -> Option<Self> {
        value.as_f64().map(|number| number as f32).filter(|number| number.is_finite())
    }

    fn words(value: &Value) -> &'static str {
        if value.is_number() { "a number of single precision, at most 3.4e38" } else { Self::WORDS }
    }
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

/// A field of a feature that is not here: its name, what is accepted in words, and the test.
pub type Neutral = (&'static str, &'static str, fn(&Value) -> bool);

/// The fields of one JSON object, taken one by one; what is left at the end is unknown.
pub struct Fields {
    left: Map<String, Value>,
    at: String,
}

impl Fields {
    /// Of a request's body.
    ///
    /// # Errors
    /// 400: it is no JSON, no object, or has a key twice.
    pub fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        let value = unique::from_slice(body).map_err(|refusal| match refusal {
            Refusal::Twice(path) => ApiError::field(path, "given twice in one object"),
            Refusal::Many => ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body has more than {MAX_OBJECTS} objects: no context holds as many messages"),
            ),
            Refusal::Syntax { error, at } => {
                let message = format!("the body is not JSON that can be read: {error}");
                ApiError { param: at, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
            }
        })?;
        Self::new(value, "")
    }

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
        #[cfg(test)]
        taken::note(&self.path(name));
        match self.left.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match T::read(&value) {
                Some(read) => Ok(Some(read)),
                None => Err(self.wrong(name, T::words(&value), &value)),
            },
        }
    }

    /// A field as it stands, to be repeated; null if it is absent.
    pub fn peek(&self, name: &str) -> Value {
        self.left.get(name).cloned().unwrap_or_default()
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// It is not, or of another kind.
    pub fn required<T: Kind>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| self.error(name, "required, but not there"))
    }

    /// The fields of an object that must be there.
    ///
    /// # Errors
    /// As `required`.
    pub fn object(&mut self, name: &str) -> Result<Self, ApiError> {
        let object: Map<String, Value> = self.required(name)?;
        Self::new(object.into(), &self.path(name))
    }

    /// A field that must be this word.
    ///
    /// # Errors
    /// It is another, or not there.
    pub fn word(&mut self, name: &str, word: &str) -> Result<(), ApiError> {
        let found: String = self.required(name)?;
        if found == word { Ok(()) } else { Err(self.error(name, format!("only {word} is supported"))) }
    }

    /// Takes the fields of features that are not here, where they ask for what happens anyway.
    ///
    /// # Errors
    /// One asks for something else.
    pub fn only(&mut self, rows: &[Neutral]) -> Result<(), ApiError> {
        for (name, accepted, accepts) in rows {
            if self.take::<Value>(name)?.is_some_and(|value| !accepts(&value)) {
                return Err(self.error(name, format!("only {accepted} is supported")).code("unsupported_value"));
            }
        }
        Ok(())
    }

    /// Takes fields that may say anything, since nothing follows from them.
    ///
    /// # Errors
    /// None of its own.
    pub fn without_effect(&mut self, names: &[&str]) -> Result<(), ApiError> {
        names.iter().try_for_each(|name| self.take::<Value>(name).map(drop))
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

/// Nothing but what describes nothing.
pub fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
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

/// Which fields parsers took on this thread, so that a test can compare them with the documented ones.
#[cfg(test)]
pub mod taken {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local!(static NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) });

    /// The path of a field, with all items of an array alike.
    pub fn note(path: &str) {
        let mut parts = path.split('[');
        let mut name = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            name += "[]";
            name += part.split_once(']').map_or("", |(_, rest)| rest);
        }
        NAMES.with_borrow_mut(|names| names.insert(name));
    }

    /// What was taken since the last call.
    pub fn all() -> BTreeSet<String> {
        NAMES.take()
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
