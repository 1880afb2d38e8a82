//! Python's `json.dumps`, byte for byte: chat templates print tools and arguments through it, and the model
//! was trained on that form.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Arguments of `json.dumps`.
#[derive(Debug, Clone)]
pub(super) struct JsonStyle {
    /// Text of one indentation level; `None` writes one line.
    pub indent: Option<String>,
    /// Between items.
    pub item_separator: Cow<'static, str>,
    /// Between key and value.
    pub key_separator: Cow<'static, str>,
    /// Escape everything beyond ASCII.
    pub ensure_ascii: bool,
    /// Keys in code-point order instead of as they came.
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self {
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            ensure_ascii: false,
            sort_keys: false,
        }
    }
}

/// `json.dumps(value, ...)`.
pub(super) fn dumps(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut writer = Writer { style, out: String::new() };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    style: &'a JsonStyle,
    out: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(scalar) = scalar(value) {
            self.out.push_str(&scalar);
        } else if let Some(text) = value.as_str() {
            self.string(text);
        } else if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            let items: Vec<Value> = value.try_iter()?.collect();
            self.items('[', ']', &items, depth, |writer, item| writer.value(item, depth + 1))?;
        } else if value.kind() == ValueKind::Map {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                entries.push((key_text(&key)?, value.get_item(&key)?));
            }
            if self.style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            self.items('{', '}', &entries, depth, |writer, (key, item)| {
                writer.string(key);
                writer.out.push_str(&writer.style.key_separator);
                writer.value(item, depth + 1)
            })?;
        } else {
            let reason = format!("Object of type {} is not JSON serializable", value.kind());
            return Err(Error::new(ErrorKind::BadSerialization, reason));
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.unicode_escape(c),
                // Guard characters (see `guard.rs`) must come through; they never occur in text to be shown.
                '\u{7f}'.. if self.style.ensure_ascii && !('\u{fdd0}'..='\u{fdef}').contains(&c) && c != '\u{7f}' => {
                    self.unicode_escape(c);
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn unicode_escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    let text = key.as_str().map(str::to_owned).or_else(|| scalar(key));
    text.ok_or_else(|| {
        let reason = format!("keys must be str, int, float, bool or None, not {}", key.kind());
        Error::new(ErrorKind::BadSerialization, reason)
    })
}

/// Text of what is neither a string nor a container.
fn scalar(value: &Value) -> Option<String> {
    if value.is_none() {
        Some("null".into())
    } else if value.kind() == ValueKind::Bool {
        Some(if value.is_true() { "true" } else { "false" }.into())
    } else if value.is_integer() {
        Some(value.to_string())
    } else if value.is_number() {
        f64::try_from(value.clone()).ok().map(float_repr)
    } else {
        None
    }
}

/// Python's `repr(float)`, with JSON's names for what is not finite.
fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // Both print the shortest digits that read back. Where two such decimals are equally near, Python takes the
    // even one, which is also what Rust rounds to when told how many digits.
    let shortest = format!("{value:e}");
    let digits = shortest.split('e').next().unwrap_or_default().bytes().filter(u8::is_ascii_digit).count();
    let rounded = format!("{value:.*e}", digits - 1);
    let scientific = if rounded.parse() == Ok(value) { rounded } else { shortest };

    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let decimals = (digits as i32 - 1 - exponent).max(1) as usize;
        return format!("{value:.decimals$}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}
