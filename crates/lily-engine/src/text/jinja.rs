//! Jinja2 as Hugging Face sets it up, on minijinja: what chat templates may call, and errors as one sentence.

use std::error::Error as _;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::pyjson::{self, JsonStyle};

/// An environment with the filters and functions that chat templates use.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_formatter(format_value);
    env.set_unknown_method_callback(string_method);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        strftime(format, now.as_secs())
    });
    env.add_filter("tojson", to_json);
    env.add_filter("items", items);
    env.add_filter("trim", |text: &str, chars: Option<&str>| strip(text, chars, true, true).to_owned());
    env.add_filter("string", string);
    env
}

/// An error as one sentence: the template's own words if it raised, else what went wrong on which line.
pub(super) fn sentence(error: &Error) -> String {
    if let Some(raised) = error.source().and_then(|source| source.downcast_ref::<Raised>()) {
        return raised.0.clone();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return "The chat template did not come to an end within its work limit.".into();
    }
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{detail} ({} line {line})", error.name().unwrap_or("chat template")),
        None => detail,
    }
}

/// Marks errors whose text is meant for the caller as it stands.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raised(message: impl Into<String>) -> Error {
    let message = message.into();
    Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message))
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(raised(message))
}

/// Prints `None`, `True` and `False` as Python does.
fn format_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if matches!(value.kind(), ValueKind::None | ValueKind::Bool) {
        return out.write_str(&string(value)).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

fn string(value: &Value) -> String {
    if value.is_none() {
        return "None".into();
    }
    if value.kind() == ValueKind::Bool {
        return if value.is_true() { "True" } else { "False" }.into();
    }
    value.to_string()
}

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`, as Hugging Face defines it.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let mut style = JsonStyle {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..JsonStyle::default()
    };
    let indent = kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    if let Some(indent) = indent {
        style.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(i64::try_from(indent)?.clamp(0, 64) as usize),
        });
        style.item_separator = ",".into();
    }
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    if let Some([item, key]) = separators.as_deref() {
        style.item_separator = item.clone().into();
        style.key_separator = key.clone().into();
    }
    kwargs.assert_all_used()?;
    pyjson::dumps(value, &style)
}

/// Jinja2's `items`: pairs of a mapping, nothing for an undefined value.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if value.kind() != ValueKind::Map {
        return Err(raised("Can only get item pairs from a mapping."));
    }
    let pair = |key: Value| Ok(Value::from(vec![key.clone(), value.get_item(&key)?]));
    value.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>().map(Value::from)
}

/// Python's string methods. `strip` and its kin differ from Rust's `trim` in what is white space.
fn string_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (start, end) = match method {
        "strip" => (true, true),
        "lstrip" => (true, false),
        "rstrip" => (false, true),
        _ => return minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    };
    let Some(text) = value.as_str() else {
        return Err(Error::from(ErrorKind::UnknownMethod));
    };
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(strip(text, chars, start, end).into())
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    // Python counts the separators U+001C..U+001F as white space, Unicode does not.
    let strips = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if start { text.trim_start_matches(strips) } else { text };
    if end { text.trim_end_matches(strips) } else { text }
}

/// `strftime` of a time in seconds since 1970, UTC (this crate knows no time zone). Codes beyond those below are
/// left as they stand.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = seconds / 86_400;
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];

    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let code = chars.as_str().chars().next();
        let field = match code {
            Some('Y') => year.to_string(),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('H') => format!("{hour:02}"),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('B') => month_name.into(),
            Some('b') => month_name[..3].into(),
            Some('A') => day_name.into(),
            Some('a') => day_name[..3].into(),
            Some('y') => format!("{:02}", year % 100),
            Some('%') => "%".into(),
            _ => {
                text.push('%');
                continue;
            }
        };
        chars.next();
        text.push_str(&field);
    }
    text
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let format = "%A %d %B %Y, %H:%M:%S %a %b %y %% %q %";
        assert_eq!(strftime(format, 0), "Thursday 01 January 1970, 00:00:00 Thu Jan 70 % %q %");
        assert_eq!(strftime("%Y-%m-%d", 951_782_400), "2000-02-29");
        assert_eq!(strftime(format, 1_796_053_084), "Monday 30 November 2026, 15:38:04 Mon Nov 26 % %q %");
    }
}
