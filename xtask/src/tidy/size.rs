//! How long functions and files may be.

use std::ops::Range;

use super::source::{Language, Source, closing, words};
use super::{Finding, Tree};

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 600;
/// The model is the one file that must be read in one sitting.
const MODEL: (&str, usize) = ("crates/lily-engine/src/model/qwen3_5.rs", 500);
/// Scripts that once made data; they are kept to show how, not to be worked on.
const EXEMPT: &str = "tools/demo-model/";

pub fn files(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in code(tree) {
        let limit = if source.path == MODEL.0 { MODEL.1 } else { FILE_LINES };
        let lines = source.text.lines().count();
        if lines > limit {
            findings.push(Finding::new("file-length", &source.path, 0, format!("{lines} lines, more than {limit}")));
        }
    }
}

pub fn functions(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in code(tree) {
        let spans = match source.language {
            Language::Rust => rust_functions(&source.code),
            Language::C => c_functions(&source.code),
            Language::Python => python_functions(&source.code),
            Language::Text => Vec::new(),
        };
        for span in spans {
            let (first, last) = (source.line(span.start), source.line(span.end.saturating_sub(1)));
            let lines = last - first + 1;
            if lines > FUNCTION_LINES {
                let message = format!("a function of {lines} lines, more than {FUNCTION_LINES}");
                findings.push(Finding::new("function-length", &source.path, first, message));
            }
        }
    }
}

fn code(tree: &Tree) -> impl Iterator<Item = &Source> {
    tree.sources.iter().filter(|source| source.language != Language::Text && !source.path.starts_with(EXEMPT))
}

/// From `fn` to the closing brace. Declarations without body and `fn(…)` types have none.
fn rust_functions(code: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    for start in words(code, "fn") {
        let named =
            code[start + 2..].trim_start().starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        if let Some(open) = named.then(|| body(code, start)).flatten() {
            spans.push(start..closing(code, open));
        }
    }
    spans
}

/// The `{` of a function's body: the first outside parentheses and brackets, unless a `;` comes before it.
fn body(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Blocks outside any function whose head has a parameter list.
fn c_functions(code: &str) -> Vec<Range<usize>> {
    const TYPES: [&str; 5] = ["struct", "class", "union", "enum", "namespace"];
    let mut spans = Vec::new();
    let (mut at, mut head) = (0, 0);
    while at < code.len() {
        match code.as_bytes()[at] {
            b'#' if code[..at].trim_end_matches([' ', '\t']).ends_with('\n') || code[..at].trim().is_empty() => {
                at += code[at..].find('\n').unwrap_or(code.len() - at);
                head = at;
            }
            b';' | b'}' => head = at + 1,
            b'{' => {
                let text = code[head..at].trim_start();
                let first = text.split(|byte: char| !byte.is_ascii_alphanumeric()).next().unwrap_or_default();
                if text.contains('(') && !TYPES.contains(&first) {
                    let end = closing(code, at);
                    spans.push(at - text.len()..end);
                    at = end - 1;
                }
                head = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    spans
}

/// From `def` to the last line that is indented deeper.
fn python_functions(code: &str) -> Vec<Range<usize>> {
    let mut offset = 0;
    let lines: Vec<(usize, &str)> = code
        .split_inclusive('\n')
        .map(|line| {
            offset += line.len();
            (offset - line.len(), line.trim_end())
        })
        .collect();
    let mut spans = Vec::new();
    for (index, &(start, line)) in lines.iter().enumerate() {
        let head = line.trim_start();
        if head.starts_with("def ") || head.starts_with("async def ") {
            let indent = line.len() - head.len();
            let inside = |line: &str| {
                let text = line.trim_start();
                text.is_empty() || text.starts_with(')') || line.len() - text.len() > indent
            };
            let body = lines[index + 1..].iter().take_while(|(_, line)| inside(line));
            let (at, last) = body.filter(|(_, line)| !line.is_empty()).last().unwrap_or(&lines[index]);
            spans.push(start..at + last.len());
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<(usize, usize)> {
        let source = Source::new(path, text);
        let spans = match source.language {
            Language::Rust => rust_functions(&source.code),
            Language::C => c_functions(&source.code),
            Language::Python | Language::Text => python_functions(&source.code),
        };
        spans.iter().map(|span| (source.line(span.start), source.line(span.end - 1))).collect()
    }

    #[test]
    fn rust() {
        let text = "type F = fn(u8) -> u8;\nfn a(x: [u8; 2])\nwhere\n{\n  fn b() { '}' }\n}\ntrait T { fn c(); }\n";
        assert_eq!(lines("a.rs", text), [(2, 6), (5, 5)]);
    }

    #[test]
    fn metal() {
        let text = "#define F(x) { x }\nnamespace n {\nstruct alignas(16) S { int a; };\n\ntemplate <int N>\n\
                    kernel void k(device int *a [[buffer(0)]]) {\n  for (;;) { }\n}\n}\nvoid g(int x)\n{\n}\n";
        assert_eq!(lines("a.metal", text), [(5, 8), (10, 12)]);
    }

    #[test]
    fn python() {
        let text = "def a(\n  x,\n):\n  '''doc\nat the margin'''\n  return 1\n\nclass B:\n  def c(self): pass\nx = 1\n";
        assert_eq!(lines("a.py", text), [(1, 6), (9, 9)]);
    }
}
