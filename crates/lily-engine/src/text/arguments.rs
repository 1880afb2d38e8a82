//! Turns a call's parameter texts into JSON by the tool's schema. The model writes strings bare, so only the
//! schema tells `5` the number from `5` the text.

use serde_json::{Map, Value};

use super::tool_call::RawCall;
use crate::request::ToolCall;

/// How many `$ref`s or alternatives are followed into one another.
const MAX_SCHEMA_DEPTH: usize = 16;

/// A request's tools, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools {
    /// Name and `parameters` schema.
    functions: Vec<(String, Value)>,
}

/// What a schema allows a value to be.
#[derive(Debug, Clone, Copy, Default)]
struct Allowed {
    string: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    null: bool,
    object: bool,
    array: bool,
}

impl Tools {
    /// Reads OpenAI tool objects; what has no name is no tool.
    pub(super) fn new(tools: &[Value]) -> Self {
        let function = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or_default()))
        };
        Self { functions: tools.iter().filter_map(function).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The call with typed arguments; `None` if there is no such tool.
    pub(super) fn call(&self, raw: &RawCall) -> Option<ToolCall> {
        let (name, schema) = self.functions.iter().find(|(name, _)| *name == raw.name)?;
        let arguments: Map<String, Value> = raw
            .parameters
            .iter()
            .map(|(key, text)| {
                let property = schema.get("properties").and_then(|properties| properties.get(key));
                (key.clone(), convert(text, property, schema))
            })
            .collect();
        Some(ToolCall { name: name.clone(), arguments })
    }

    /// Whether some tool is called so.
    pub(super) fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|(tool, _)| tool == name)
    }
}

/// A value by its property's schema. What does not fit stays the text that the model wrote.
fn convert(text: &str, property: Option<&Value>, root: &Value) -> Value {
    let as_text = || Value::String(text.to_owned());
    let Some(property) = property else {
        return as_text();
    };
    let mut allowed = Allowed::default();
    allowed.add(property, root, MAX_SCHEMA_DEPTH);
    let trimmed = text.trim();
    let parsed = match trimmed {
        // Python's spellings slip in; they can mean nothing else where a string is not allowed.
        "True" | "False" | "None" if !allowed.string => match trimmed {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            _ => Value::Null,
        },
        _ => match serde_json::from_str(trimmed) {
            Ok(parsed) => parsed,
            Err(_) => return as_text(),
        },
    };
    let fits = match &parsed {
        Value::Null => allowed.null || allowed.is_typed_without_string(),
        Value::Bool(_) => allowed.boolean,
        Value::Number(n) if n.is_f64() => return allowed.float(n.as_f64().unwrap_or(0.0), parsed, as_text),
        Value::Number(_) => allowed.integer || allowed.number,
        Value::String(_) => false,
        Value::Array(_) => allowed.array,
        Value::Object(_) => allowed.object,
    };
    if fits { parsed } else { as_text() }
}

impl Allowed {
    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth == 0 {
            return;
        }
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
        if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
            self.add(target, root, depth - 1);
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add_type(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(|name| self.add_type(name)),
            _ => {}
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let alternatives = schema.get(key).and_then(Value::as_array);
            for alternative in alternatives.into_iter().flatten() {
                self.add(alternative, root, depth - 1);
            }
        }
        if schema.get("type").is_none() {
            let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            values.chain(schema.get("const")).for_each(|value| self.add_type(type_name(value)));
        }
    }

    fn add_type(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            // Not a JSON schema type: no conversion.
            _ => {}
        }
    }

    /// `null` is accepted wherever something other than a string is expected.
    fn is_typed_without_string(self) -> bool {
        !self.string && (self.integer || self.number || self.boolean || self.object || self.array)
    }

    /// A number written with a point or exponent: `2.0` is the integer 2 where only integers are allowed.
    fn float(self, value: f64, parsed: Value, as_text: impl Fn() -> Value) -> Value {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if self.number {
            parsed
        } else if self.integer && value.fract() == 0.0 && value.abs() <= EXACT {
            Value::from(value as i64)
        } else {
            as_text()
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
