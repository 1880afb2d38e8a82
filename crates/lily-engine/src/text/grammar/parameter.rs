//! A parameter's schema → how its value is written in a call: strings as bare text, everything else as JSON. Follows what
//! `arguments.rs` makes of such text.

use serde_json::{Map, Value, json};

use super::source::{MAX_DEPTH, literal};

/// Keywords that constrain nothing.
const ANNOTATIONS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "nullable",
    "contentMediaType",
];
/// Of these, a string is checked by its own; the others say nothing of it.
const OF_OTHERS: [&str; 16] = [
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
const OF_STRINGS: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Any text.
const ANY: &str = r"/(?s:.*)/";

/// One parameter.
pub(super) struct Property<'a> {
    pub key: &'a str,
    pub schema: &'a Value,
    pub is_required: bool,
}

/// The parameters of a tool, in the order of its schema; those that are only named as required come last.
pub(super) fn properties(schema: &Value) -> Result<Vec<Property<'_>>, String> {
    const EVERYTHING: &Value = &Value::Bool(true);
    let (Value::Object(map), true) = (schema, schema.is_object()) else {
        return if schema.is_null() { Ok(Vec::new()) } else { Err("parameters: no schema of an object".into()) };
    };
    let known = ["type", "properties", "required", "additionalProperties", "strict"];
    only(map, &[&known, &DEFINITIONS]).map_err(|keyword| format!("parameters: {keyword} cannot be enforced"))?;
    if map.get("type").is_some_and(|kind| kind != "object") {
        return Err("parameters: the type is not object".into());
    }
    let required: Vec<&str> =
        map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let listed = map.get("properties").and_then(Value::as_object);
    let mut properties: Vec<Property> = listed
        .into_iter()
        .flatten()
        .map(|(key, schema)| Property { key, schema, is_required: required.contains(&key.as_str()) })
        .collect();
    for key in required {
        if properties.iter().all(|property| property.key != key) {
            properties.push(Property { key, schema: EVERYTHING, is_required: true });
        }
    }
    Ok(properties)
}

/// How the values of a parameter may be written.
#[derive(Debug, Default)]
pub(super) struct Form {
    /// Terminals of bare text.
    texts: Vec<String>,
    /// Schemas of values that are no strings.
    values: Vec<Value>,
}

impl Form {
    /// `root` is what `$ref`s look in.
    ///
    /// # Errors
    /// What of the schema cannot be enforced.
    pub(super) fn of(schema: &Value, root: &Value) -> Result<Self, String> {
        let mut form = Self::default();
        form.add(schema, root, MAX_DEPTH)?;
        Ok(form)
    }

    /// The terminal of what may be written bare.
    pub(super) fn text(&self) -> Option<String> {
        let texts = self.texts.join(" | ");
        if texts.is_empty() {
            return None;
        }
        // What starts like these is one of them, so that text cannot pass by their schema.
        let mut starts = String::new();
        for value in &self.values {
            starts.push_str(starts_of(value));
        }
        Some(if starts.is_empty() { texts } else { format!("({texts}) & ~/\\s*[{starts}](?s:.*)/") })
    }

    /// The schema of what is written as JSON, with the root's definitions.
    pub(super) fn json(self, root: &Value) -> Option<Value> {
        let mut schema = match self.values.len() {
            0 => return None,
            1 => self.values.into_iter().next()?,
            _ => json!({ "anyOf": self.values }),
        };
        for key in DEFINITIONS {
            if let (Some(definitions), Some(schema)) = (root.get(key), schema.as_object_mut()) {
                schema.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        Some(schema)
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) -> Result<(), String> {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => {
                self.texts.push(ANY.into());
                return Ok(());
            }
            Value::Bool(false) => return Ok(()),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(format!("{schema} is no schema"));
            }
        };
        if depth == 0 {
            return Err("its $refs do not come to an end".into());
        }
        if let Some(target) = map.get("$ref") {
            alone(map, "$ref")?;
            let pointer = target.as_str().and_then(|target| target.strip_prefix('#'));
            let target = pointer.and_then(|pointer| root.pointer(pointer));
            return self.add(target.ok_or_else(|| format!("$ref {} leads nowhere", map["$ref"]))?, root, depth - 1);
        }
        if map.contains_key("enum") || map.contains_key("const") {
            return self.add_listed(map);
        }
        for keyword in ["anyOf", "oneOf", "allOf"] {
            if let Some(branches) = map.get(keyword) {
                alone(map, keyword)?;
                let branches = branches.as_array().ok_or_else(|| format!("{keyword} is no list"))?;
                return self.add_branches(keyword, branches, root, depth);
            }
        }
        self.add_typed(map)
    }

    /// Values named one by one.
    fn add_listed(&mut self, map: &Map<String, Value>) -> Result<(), String> {
        only(map, &[&["enum", "const", "type"]]).map_err(|keyword| format!("{keyword} beside enum or const"))?;
        let listed = map.get("enum").and_then(Value::as_array);
        let fixed = map.get("const");
        let values = listed.into_iter().flatten().chain(fixed);
        for value in values.filter(|value| fixed.is_none_or(|fixed| *value == fixed)) {
            match value {
                Value::String(text) if text.contains(|c: char| c.is_control() && !"\n\r\t".contains(c)) => {
                    return Err(format!("{value} has control characters"));
                }
                Value::String(text) if text.is_empty() => self.texts.push("\"\"".into()),
                Value::String(text) => self.texts.push(literal(text)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    self.values.push(json!({ "const": value }));
                }
            }
        }
        Ok(())
    }

    fn add_branches(&mut self, keyword: &str, branches: &[Value], root: &Value, depth: usize) -> Result<(), String> {
        let (texts, values) = (self.texts.len(), self.values.len());
        for branch in branches {
            self.add(branch, root, depth - 1)?;
        }
        let (texts, added) = (self.texts.len() - texts, self.values.split_off(values));
        match keyword {
            "oneOf" if texts > 1 => return Err("oneOf of several strings cannot be enforced".into()),
            "allOf" if texts > 0 && branches.len() > 1 => return Err("allOf of strings cannot be enforced".into()),
            "oneOf" | "allOf" if added.len() > 1 => self.values.push(json!({ keyword: added })),
            _ => self.values.extend(added),
        }
        Ok(())
    }

    fn add_typed(&mut self, map: &Map<String, Value>) -> Result<(), String> {
        let types: Vec<&str> = match map.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(other) => return Err(format!("{other} is no type")),
            None => {
                // Without a type, a value is read as text.
                only(map, &[&[]]).map_err(|keyword| format!("{keyword} without a type"))?;
                vec!["string"]
            }
        };
        if types.contains(&"string") {
            only(map, &[&["type"], &OF_OTHERS, &OF_STRINGS])
                .map_err(|keyword| format!("{keyword} cannot be enforced"))?;
            self.texts.push(string(map)?);
        }
        let others: Vec<&str> = types.into_iter().filter(|name| *name != "string").collect();
        if !others.is_empty() {
            let mut schema = map.clone();
            OF_STRINGS.iter().chain(&ANNOTATIONS).for_each(|keyword| _ = schema.shift_remove(*keyword));
            schema.insert("type".into(), if others.len() == 1 { others[0].into() } else { others.into() });
            self.values.push(Value::Object(schema));
        }
        Ok(())
    }
}

/// The first keyword that is neither an annotation nor among these.
fn only<'a>(map: &'a Map<String, Value>, known: &[&[&str]]) -> Result<(), &'a str> {
    let is_known = |keyword: &str| ANNOTATIONS.contains(&keyword) || known.iter().any(|list| list.contains(&keyword));
    map.keys().find(|keyword| !is_known(keyword)).map_or(Ok(()), |keyword| Err(keyword))
}

fn alone(map: &Map<String, Value>, keyword: &str) -> Result<(), String> {
    only(map, &[&[keyword, "type"], &DEFINITIONS])
        .map_err(|other| format!("{other} beside {keyword} cannot be enforced"))
}

/// First characters of JSON that text must leave to its schema. A plain `null` or `true` is read as such where text is
/// allowed too, and so is a number that its schema does not narrow.
fn starts_of(schema: &Value) -> &'static str {
    let types = schema.get("type").map(Value::to_string).unwrap_or_default();
    let narrows = OF_OTHERS[11..].iter().any(|keyword| schema.get(*keyword).is_some());
    let is_open = ["array", "object"].iter().any(|name| types.contains(name)) || types.is_empty();
    match (is_open, narrows || types.is_empty()) {
        (true, true) => "\\[{\\-0-9",
        (true, false) => "\\[{",
        (false, true) => "\\-0-9",
        (false, false) => "",
    }
}

/// The terminal of a string.
fn string(map: &Map<String, Value>) -> Result<String, String> {
    let mut parts = Vec::new();
    let length = |keyword: &str| match map.get(keyword) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| format!("{keyword} {value} is no length")),
    };
    match (length("minLength")?, length("maxLength")?) {
        (None, None) => {}
        (Some(min), Some(max)) if min > max => return Err("minLength is above maxLength".into()),
        (min, max) => {
            let max = max.map(|max| max.to_string()).unwrap_or_default();
            parts.push(format!("/(?s:.{{{},{max}}})/", min.unwrap_or(0)));
        }
    }
    if let Some(pattern) = map.get("pattern") {
        let pattern = pattern.as_str().ok_or_else(|| format!("pattern {pattern} is no text"))?;
        parts.push(format!("/{}/", search(pattern)));
    }
    if let Some(name) = map.get("format") {
        let regex = name.as_str().and_then(format).ok_or_else(|| format!("format {name} cannot be enforced"))?;
        parts.push(format!("/{regex}/"));
    }
    Ok(if parts.is_empty() { ANY.into() } else { format!("({})", parts.join(" & ")) })
}

/// Formats of strings that are written bare; no more than every reader of them takes.
fn format(name: &str) -> Option<String> {
    const DATE: &str = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
    const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    const HEX: &str = "[0-9a-fA-F]";
    const LABEL: &str = "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,20}){0,2}";
    Some(match name {
        "date" => DATE.into(),
        "time" => TIME.into(),
        "date-time" => format!("{DATE}T{TIME}"),
        "uuid" => format!("{HEX}{{8}}(-{HEX}{{4}}){{3}}-{HEX}{{12}}"),
        "ipv4" => format!(r"({BYTE}\.){{3}}{BYTE}"),
        "hostname" => format!(r"{LABEL}(\.{LABEL}){{0,3}}"),
        "email" => format!(r"[a-zA-Z0-9]{{1,30}}([.+_\-][a-zA-Z0-9]{{1,20}}){{0,3}}@{LABEL}(\.{LABEL}){{1,3}}"),
        "uri" => {
            let path = r"(\/([a-zA-Z0-9._~!$&'()*+,;=:@\-]|%[0-9a-fA-F]{2})*)*";
            let query = r"(\?([a-zA-Z0-9._~!$&'()*+,;=:@\/?\-]|%[0-9a-fA-F]{2})*)?";
            format!(
                r"[a-zA-Z][a-zA-Z0-9+.\-]*:\/\/{LABEL}(\.{LABEL}){{0,4}}(:[0-9]{{1,4}})?{path}{query}(#[a-zA-Z0-9._~\-]*)?"
            )
        }
        _ => return None,
    })
}

/// A pattern, which is found anywhere, as one that is the whole of a text.
fn search(pattern: &str) -> String {
    let whole = |branch: &str| {
        let (start, branch) = branch.strip_prefix('^').map_or(("(?s:.*)", branch), |branch| ("", branch));
        let is_end = branch.ends_with('$') && branch.chars().rev().skip(1).take_while(|c| *c == '\\').count() % 2 == 0;
        let (end, branch) = if is_end { ("", &branch[..branch.len() - 1]) } else { ("(?s:.*)", branch) };
        format!("{start}(?:{}){end}", llguidance::regex_to_lark(branch, "dw"))
    };
    branches(pattern).into_iter().map(whole).collect::<Vec<_>>().join("|")
}

/// The alternatives of a pattern outside of groups and classes.
fn branches(pattern: &str) -> Vec<&str> {
    let (mut branches, mut start, mut depth, mut in_class, mut escaped) = (Vec::new(), 0, 0, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth -= 1,
            '|' if !in_class && depth == 0 => {
                branches.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&pattern[start..]);
    branches
}
