//! Metal source → C++ that declares the same kernels to the shim. The text stays as it is, line by line, but for what no
//! macro can say: parameter attributes become a table, threadgroup arrays and function constants become macros, explicit
//! instantiations become rows, and the address spaces get names that C++ does not know.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Why a file is not ours to translate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path}:{line}: {problem}")]
pub struct Refused {
    /// The file.
    pub path: String,
    /// From 1.
    pub line: usize,
    /// One sentence.
    pub problem: String,
}

/// Words that the shim defines with `msl_` before them.
const SPACES: &[&str] = &["device", "constant", "threadgroup", "thread", "kernel", "inline"];

/// Parameter attributes and their names in the shim.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("thread_position_in_grid", "grid_position"),
    ("thread_position_in_threadgroup", "position"),
    ("threadgroup_position_in_grid", "group_position"),
    ("thread_index_in_threadgroup", "index"),
    ("thread_index_in_simdgroup", "lane"),
    ("simdgroup_index_in_threadgroup", "simdgroup"),
    ("simdgroups_per_threadgroup", "simdgroups"),
    ("threads_per_threadgroup", "threads"),
    ("threadgroups_per_grid", "groups"),
    ("threads_per_grid", "grid_threads"),
    ("threads_per_simdgroup", "width"),
];

/// A word, a number, a string or one sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

impl Token<'_> {
    const fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// A kernel's definition.
struct Kernel {
    is_template: bool,
    parameters: Vec<Parameter>,
}

/// What a kernel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Parameter {
    Buffer(usize),
    Memory(usize),
    /// The shim's name of it.
    Attribute(&'static str),
}

impl fmt::Display for Parameter {
    /// Its row in the shim's table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(index) => write!(f, "{{'b', {index}}}"),
            Self::Memory(index) => write!(f, "{{'t', {index}}}"),
            Self::Attribute(name) => write!(f, "{{'a', int(metal::Attribute::{name})}}"),
        }
    }
}

/// What a kernel must be given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Indices of buffers.
    pub buffers: Vec<usize>,
    /// Indices of threadgroup memory.
    pub memories: Vec<usize>,
}

/// A source as C++, and what it declares.
#[derive(Debug, PartialEq, Eq)]
pub struct Translation {
    /// The C++.
    pub text: String,
    /// Kernels by their names for the host, in the shim's order.
    pub kernels: Vec<(String, Parameters)>,
    /// Function constants: index and name.
    pub constants: Vec<(usize, String)>,
}

struct Translator<'a> {
    path: &'a str,
    source: &'a str,
    tokens: Vec<Token<'a>>,
    /// Ranges to replace, which do not overlap.
    edits: Vec<(usize, usize, String)>,
    kernels: BTreeMap<&'a str, Kernel>,
    /// Name for the host, and the function.
    entries: Vec<(String, String)>,
    constants: Vec<(usize, String)>,
    slots: usize,
}

/// Translates one file; `path` is for messages and line numbers.
///
/// # Errors
/// The file breaks a rule of this project's Metal sources, in the sentence.
pub fn translate(path: &str, source: &str) -> Result<Translation, Refused> {
    let blank = without_comments(source);
    let mut t = Translator {
        path,
        source: &blank,
        tokens: tokens(&blank),
        edits: Vec::new(),
        kernels: BTreeMap::new(),
        entries: Vec::new(),
        constants: Vec::new(),
        slots: 0,
    };
    let mut bodies = Vec::new();
    let mut i = 0;
    while i < t.tokens.len() {
        match t.tokens[i].text {
            "kernel" if t.text(i + 1) == "void" => bodies.push(t.kernel(i)?),
            "template" if t.text(i + 1) == "[" => i = t.instantiation(i)?,
            "struct" if t.text(i + 2) == "{" => t.methods(i + 2)?,
            "constant" if t.text(i + 3) == "[" && t.text(i + 5) == "function_constant" => i = t.function_constant(i)?,
            _ => (),
        }
        i += 1;
    }
    t.threadgroup_arrays(&bodies)?;
    t.spaces();
    t.finish()
}

/// Comments become blanks, so that places stay.
fn without_comments(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        out.push_str(&rest[..start]);
        let comment = &rest[start..];
        let length = if comment.starts_with("//") {
            comment.find('\n').unwrap_or(comment.len())
        } else {
            comment.find("*/").map_or(comment.len(), |end| end + 2)
        };
        out.extend(comment[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &comment[length..];
    }
    out.push_str(rest);
    out
}

fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = if word(c) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else if c == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else {
            c.len_utf8()
        };
        if !c.is_whitespace() {
            tokens.push(Token { text: &rest[..length], at });
        }
        at += length;
    }
    tokens
}

impl<'a> Translator<'a> {
    fn text(&self, i: usize) -> &'a str {
        self.tokens.get(i).map_or("", |t| t.text)
    }

    fn refuse<T>(&self, i: usize, problem: impl Into<String>) -> Result<T, Refused> {
        let at = self.tokens.get(i).map_or(self.source.len(), |t| t.at);
        let line = self.source[..at].matches('\n').count() + 1;
        Err(Refused { path: self.path.to_owned(), line, problem: problem.into() })
    }

    /// The token that closes what token `open` opens.
    fn close(&self, open: usize) -> Result<usize, Refused> {
        let opening = self.text(open);
        let closing = match opening {
            "(" => ")",
            "[" => "]",
            _ => "}",
        };
        let mut depth = 0usize;
        for i in open..self.tokens.len() {
            if self.text(i) == opening {
                depth += 1;
            } else if self.text(i) == closing {
                depth -= 1;
                if depth == 0 {
                    return Ok(i);
                }
            }
        }
        self.refuse(open, format!("nothing closes this {opening}"))
    }

    /// `kernel void name(…) {…}` at token `i`; returns the tokens of its body.
    fn kernel(&mut self, i: usize) -> Result<(usize, usize), Refused> {
        let name = self.text(i + 2);
        let end = self.close(i + 3)?;
        if self.text(end + 1) != "{" {
            return self.refuse(i, format!("kernel {name} is declared and not defined"));
        }
        let mut parameters = Vec::new();
        let mut first = i + 4;
        let mut depth = 0i32;
        for at in i + 4..=end {
            match self.text(at) {
                "(" | "[" | "<" | "{" => depth += 1,
                "]" | ">" | "}" => depth -= 1,
                ")" if at != end => depth -= 1,
                _ => (),
            }
            if (depth == 0 && self.text(at) == ",") || at == end {
                parameters.push(self.parameter(name, first, at)?);
                first = at + 1;
            }
        }
        for (n, parameter) in parameters.iter().enumerate() {
            let bound = !matches!(parameter, Parameter::Attribute(_));
            if bound && parameters[..n].contains(parameter) {
                return self.refuse(i, format!("kernel {name} binds {parameter} twice"));
            }
        }
        let is_template = i > 0 && self.text(i - 1) == ">";
        if !is_template {
            self.entries.push((name.to_owned(), name.to_owned()));
        }
        self.kernels.insert(name, Kernel { is_template, parameters });
        Ok((end + 1, self.close(end + 1)?))
    }

    /// The table row of a parameter, tokens `first..end`; its attribute goes.
    fn parameter(&mut self, kernel: &str, first: usize, end: usize) -> Result<Parameter, Refused> {
        let Some(open) = (first..end).find(|&i| self.text(i) == "[" && self.text(i + 1) == "[") else {
            return self.refuse(first, format!("a parameter of kernel {kernel} has no attribute"));
        };
        let close = self.close(open)?;
        self.edits.push((self.tokens[open].at, self.tokens[close].end(), String::new()));
        let name = self.text(open + 2);
        match name {
            "buffer" => Ok(Parameter::Buffer(self.index(open + 4)?)),
            "threadgroup" => Ok(Parameter::Memory(self.index(open + 4)?)),
            _ => match ATTRIBUTES.iter().find(|(known, _)| *known == name) {
                Some((_, shim)) => Ok(Parameter::Attribute(shim)),
                None => self.refuse(open, format!("kernel {kernel}: unknown attribute [[{name}]]")),
            },
        }
    }

    /// The index that token `i` is.
    fn index(&self, i: usize) -> Result<usize, Refused> {
        match self.text(i).parse() {
            Ok(index) if index < 31 => Ok(index),
            _ => self.refuse(i, format!("an index is a number below 31, not {}", self.text(i))),
        }
    }

    /// `template [[host_name("n")]] kernel decltype(f<…>) f<…>;` at token `i`; returns its last token.
    fn instantiation(&mut self, i: usize) -> Result<usize, Refused> {
        let Some(end) = (i..self.tokens.len()).find(|&at| self.text(at) == ";") else {
            return self.refuse(i, "nothing ends this instantiation");
        };
        let attribute_end = self.close(i + 1)?;
        let open = attribute_end + 3;
        if self.text(i + 3) != "host_name" || self.text(attribute_end + 2) != "decltype" {
            return self.refuse(i, "an instantiation is `template [[host_name(\"n\")]] kernel decltype(f<…>) f<…>;`");
        }
        let close = self.close(open)?;
        let words = |range: std::ops::Range<usize>| range.map(|at| self.text(at)).collect::<Vec<_>>().join(" ");
        let (declared, function) = (words(open + 1..close), words(close + 1..end));
        if declared != function {
            return self.refuse(i, format!("decltype({declared}) instantiates {function}"));
        }
        self.entries.push((self.text(i + 5).trim_matches('"').to_owned(), function));
        self.replace(i, end, "");
        Ok(end)
    }

    /// `constant T NAME [[function_constant(n)]];` at token `i`; returns its last token.
    fn function_constant(&mut self, i: usize) -> Result<usize, Refused> {
        let end = self.close(i + 3)? + 1;
        let (name, index) = (self.text(i + 2), self.index(i + 7)?);
        let text = format!("MSL_FUNCTION_CONSTANT({}, {name}, {index})", self.text(i + 1));
        self.constants.push((index, name.to_owned()));
        self.replace(i, end, &text);
        Ok(end)
    }

    /// Functions of a struct, whose body opens at token `open`, become inline ones, as those outside are.
    fn methods(&mut self, open: usize) -> Result<(), Refused> {
        let close = self.close(open)?;
        let (mut first, mut i) = (open + 1, open + 1);
        while i < close {
            match self.text(i) {
                ";" => first = i + 1,
                "{" => {
                    let is_function = [")", "const", "thread"].contains(&self.text(i - 1));
                    if is_function && self.text(first) != "inline" {
                        self.edits.push((self.tokens[first].at, self.tokens[first].at, "msl_inline ".to_owned()));
                    }
                    i = self.close(i)?;
                    first = i + 1;
                }
                _ => (),
            }
            i += 1;
        }
        Ok(())
    }

    /// `threadgroup T name[…]…;`, allowed in the body of a kernel only.
    fn threadgroup_arrays(&mut self, bodies: &[(usize, usize)]) -> Result<(), Refused> {
        let mut i = 0;
        while i < self.tokens.len() {
            // A pointer or a parameter has one of the other signs before it has dimensions.
            let signs = [";", "[", "{", "}", "(", ")", "=", "*", "&", ","];
            let sign = (i..self.tokens.len()).find(|&at| signs.contains(&self.text(at)));
            let is_variable = |at: &usize| self.text(i) == "threadgroup" && [";", "["].contains(&self.text(*at));
            let Some(dims) = sign.filter(is_variable) else {
                i += 1;
                continue;
            };
            if self.text(dims) == ";" {
                return self.refuse(i, "a threadgroup variable is an array or a parameter");
            }
            let mut end = dims;
            while self.text(end) == "[" {
                end = self.close(end)? + 1;
            }
            if self.text(end) != ";" {
                return self.refuse(i, "a threadgroup array is declared alone and without a value");
            }
            if !bodies.iter().any(|(first, last)| (*first..*last).contains(&i)) {
                return self.refuse(i, "a threadgroup variable stands outside of a kernel's body");
            }
            let between = |from: usize, to: usize| self.source[self.tokens[from].at..self.tokens[to].at].trim();
            let (ty, name, dims) = (between(i + 1, dims - 1), self.text(dims - 1), between(dims, end));
            let text = format!("MSL_THREADGROUP_ARRAY({ty}, {name}, {dims}, {});", self.slots);
            self.slots += 1;
            self.replace(i, end, &text);
            i = end;
        }
        Ok(())
    }

    /// Renames the words of the language. A constant of the whole program is no parameter's address space.
    fn spaces(&mut self) {
        let mut depth = 0usize;
        for (i, token) in self.tokens.iter().enumerate() {
            match token.text {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                _ => (),
            }
            let edited = self.edits.iter().any(|(start, end, _)| (*start..*end).contains(&token.at));
            if SPACES.contains(&token.text) && !edited {
                let begins = i == 0 || [";", "}", ">"].contains(&self.text(i - 1));
                let of_program = if token.text == "constant" && depth == 0 && begins { "program_" } else { "" };
                self.edits.push((token.at, token.end(), format!("msl_{of_program}{}", token.text)));
            }
        }
    }

    /// Replaces tokens `first..=last`.
    fn replace(&mut self, first: usize, last: usize, text: &str) {
        self.edits.push((self.tokens[first].at, self.tokens[last].end(), text.to_owned()));
    }

    fn finish(mut self) -> Result<Translation, Refused> {
        const USING: &str = "using namespace metal;";
        let (Some(at), 1) = (self.source.find(USING), self.source.matches(USING).count()) else {
            return self.refuse(0, format!("a file says `{USING}` once"));
        };
        if self.source[at..].contains("#include") {
            return self.refuse(0, format!("includes come before `{USING}`"));
        }
        // What the file names is then found before what C++ has of the same name.
        self.edits.push((at, at + USING.len(), "namespace metal {".to_owned()));
        self.edits.sort();
        let mut text = format!("#line 1 \"{}\"\n", self.path);
        let mut done = 0;
        for (start, end, replacement) in &self.edits {
            text.push_str(&self.source[done..*start]);
            text.push_str(replacement);
            text.extend(self.source[*start..*end].matches('\n'));
            done = *end;
        }
        text.push_str(&self.source[done..]);
        let mut kernels = Vec::new();
        for (id, (host, function)) in self.entries.iter().enumerate() {
            let name = function.split([' ', '<']).next().unwrap_or_default();
            let Some(kernel) = self.kernels.get(name) else {
                return self.refuse(0, format!("{host} instantiates {name}, which this file does not define"));
            };
            if kernel.is_template != function.contains('<') {
                return self.refuse(0, format!("{host}: {function} and the template {name} do not fit"));
            }
            let rows = kernel.parameters.iter().map(Parameter::to_string).collect::<Vec<_>>().join(", ");
            // Writing to a string cannot fail.
            let _ = write!(text, "\nMSL_KERNEL(\"{host}\", {id}, ({function}), {rows})");
            let mut parameters = Parameters::default();
            for parameter in &kernel.parameters {
                match parameter {
                    Parameter::Buffer(index) => parameters.buffers.push(*index),
                    Parameter::Memory(index) => parameters.memories.push(*index),
                    Parameter::Attribute(_) => (),
                }
            }
            kernels.push((host.clone(), parameters));
        }
        text.push_str("\n}  // namespace metal\n");
        Ok(Translation { text, kernels, constants: self.constants })
    }
}
