//! The configuration file as it stands: keys with their lines, shared ones and those of a command's section. Knows TOML,
//! and no flag.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use toml::de::{DeTable, DeValue};

/// A configuration file.
#[derive(Debug)]
pub struct File {
    /// Where it lies.
    pub path: PathBuf,
    /// What stands above the sections, for every command.
    pub shared: Vec<Entry>,
    /// What stands below the name of a command.
    pub sections: Vec<Section>,
}

/// `[serve]` and what follows.
#[derive(Debug)]
pub struct Section {
    /// The name in the brackets.
    pub name: String,
    /// Its line, from 1.
    pub line: usize,
    /// What stands in it.
    pub entries: Vec<Entry>,
}

/// `key = value`.
#[derive(Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its line, from 1.
    pub line: usize,
    /// The value, or each value of a list.
    pub values: Vec<Scalar>,
    /// Whether it is written as a list.
    pub is_list: bool,
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written.
    Number(String),
    /// A text.
    Text(String),
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not of this form; names the line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> anyhow::Result<Self> {
        let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let document = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            anyhow::anyhow!("{}, line {}: {}", path.display(), line(at), error.message().replace('\n', "; "))
        })?;
        let mut file = Self { path: path.to_owned(), shared: Vec::new(), sections: Vec::new() };
        for (key, value) in document.get_ref() {
            let at = line(key.span().start);
            let (name, value) = (key.get_ref().to_string(), value.get_ref());
            if let DeValue::Table(table) = value {
                let inside = table.iter();
                let entries =
                    inside.map(|(key, value)| entry(path, key.get_ref(), line(key.span().start), value.get_ref()));
                let entries = entries.collect::<Result<_, _>>()?;
                file.sections.push(Section { name, line: at, entries });
            } else {
                file.shared.push(entry(path, &name, at, value)?);
            }
        }
        // The parser's tables are in the order of their names; whoever reads a complaint begins at the top.
        file.shared.sort_by_key(|entry| entry.line);
        file.sections.sort_by_key(|section| section.line);
        file.sections.iter_mut().for_each(|section| section.entries.sort_by_key(|entry| entry.line));
        Ok(file)
    }
}

fn entry(path: &Path, key: &str, line: usize, value: &DeValue) -> anyhow::Result<Entry> {
    let list = if let DeValue::Array(list) = value { Some(list) } else { None };
    let values: Option<Vec<Scalar>> = match list {
        Some(list) => list.iter().map(|value| scalar(value.get_ref())).collect(),
        None => scalar(value).map(|value| vec![value]),
    };
    match values {
        Some(values) => Ok(Entry { key: key.to_owned(), line, values, is_list: list.is_some() }),
        None => bail!(
            "{}, line {line}: {key} is {}; a value is a text, a number, true or false, or a list of these",
            path.display(),
            match list {
                Some(_) => "a list of something else".to_owned(),
                None => format!("a {}", value.type_str()),
            }
        ),
    }
}

fn scalar(value: &DeValue) -> Option<Scalar> {
    match value {
        DeValue::String(text) => Some(Scalar::Text(text.to_string())),
        DeValue::Integer(number) => {
            let plain = i128::from_str_radix(number.as_str(), number.radix()).ok()?;
            Some(Scalar::Number(plain.to_string()))
        }
        DeValue::Float(number) => Some(Scalar::Number(number.as_str().to_owned())),
        DeValue::Boolean(value) => Some(Scalar::Bool(*value)),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<File> {
        File::parse(Path::new("c.toml"), text)
    }

    #[test]
    fn keys_have_their_lines() {
        let file = parse("# a\ncontext = 4_096\n\n[serve]\nport = 0x10\nallow-host = ['a', \"b\"]\n").unwrap();
        assert_eq!((file.shared[0].line, &file.shared[0].values[..]), (2, &[Scalar::Number("4096".into())][..]));
        let section = &file.sections[0];
        assert_eq!((section.name.as_str(), section.line), ("serve", 4));
        assert_eq!((section.entries[0].line, &section.entries[0].values[0]), (5, &Scalar::Number("16".into())));
        assert_eq!(section.entries[1].values, [Scalar::Text("a".into()), Scalar::Text("b".into())]);
        assert!(section.entries[1].is_list && !section.entries[0].is_list);
    }

    #[test]
    fn what_is_no_value_is_named_with_its_line() {
        for (text, wants) in [
            ("port = \n", "c.toml, line 1: "),
            ("a = 1\na = 2\n", "c.toml, line 2: duplicate key"),
            ("[serve]\nport = 1979-05-27\n", "c.toml, line 2: port is a datetime; a value is "),
            ("\n\nx = [[1]]\n", "c.toml, line 3: x is a list of something else; a value is "),
            ("[serve]\nport.number = 1\n", "c.toml, line 2: port is a table; a value is "),
            ("\n\"abc\n", "c.toml, line 2: "),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(wants) && !error.contains('\n'), "{error}");
        }
    }
}
