//! A source file split into code and comments, so that checks never trip over text in strings.
//! Not a parser: it knows only where comments, strings and characters begin and end.

use std::ops::Range;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Rust,
    /// C, C++, Metal and CUDA.
    C,
    /// Python; shell scripts are read the same way, which is enough for their comments.
    Python,
    /// No code: documents and data.
    Text,
}

impl Language {
    /// From the file's name.
    pub fn of(path: &str) -> Self {
        match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "rs" => Self::Rust,
            "metal" | "cu" | "h" | "cpp" | "cc" => Self::C,
            "py" | "sh" => Self::Python,
            _ => Self::Text,
        }
    }
}

/// One file. `code` and `comments` have the same length and lines as `text`; what does not belong to them is blank.
#[derive(Debug)]
pub struct Source {
    /// Relative to the root, with `/`.
    pub path: String,
    pub language: Language,
    pub text: String,
    /// Code; of a string or character only the quotes are left.
    pub code: String,
    /// Comments, `//!` and `///` included.
    pub comments: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let language = Language::of(path);
        let mut mask = Mask::new(text, language);
        while mask.at < text.len() {
            mask.token();
        }
        let (code, comments) = (ascii(mask.code), ascii(mask.comments));
        Self { path: path.to_owned(), language, text: text.to_owned(), code, comments }
    }

    /// 1-based line of a byte offset.
    pub fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
    }
}

/// Offsets of a whole word (letters, digits and `_` around it do not count as ends).
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_end = |byte: Option<&u8>| byte.is_none_or(|&byte| !byte.is_ascii_alphanumeric() && byte != b'_');
    let bytes = code.as_bytes();
    let before = |at: usize| at.checked_sub(1).and_then(|at| bytes.get(at));
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| is_end(before(at)) && is_end(bytes.get(at + word.len())))
}

/// Offset just behind the bracket that closes the one at `open`, or the end of the code.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// The masks hold ASCII only, so they are always valid text.
fn ascii(bytes: Vec<u8>) -> String {
    bytes.into_iter().map(char::from).collect()
}

struct Mask<'a> {
    text: &'a [u8],
    language: Language,
    at: usize,
    code: Vec<u8>,
    comments: Vec<u8>,
}

impl<'a> Mask<'a> {
    fn new(text: &'a str, language: Language) -> Self {
        let blank: Vec<u8> = text.bytes().map(|byte| if byte == b'\n' { byte } else { b' ' }).collect();
        Self { text: text.as_bytes(), language, at: 0, comments: blank.clone(), code: blank }
    }

    /// Consumes one comment, string, character or byte of code.
    fn token(&mut self) {
        let rest = &self.text[self.at..];
        let rust = self.language == Language::Rust;
        if let Some((open, length, close)) = self.raw_string().filter(|_| rust) {
            return self.string(open, length, close);
        }
        match self.language {
            Language::Text => self.code(1),
            Language::Python if rest[0] == b'#' => self.comment(find(rest, b"\n")),
            Language::Python if rest.starts_with(b"\"\"\"") || rest.starts_with(b"'''") => {
                let quote = [rest[0]; 3];
                self.string(3, 6 + find(&rest[3..], &quote), 3);
            }
            Language::Python if matches!(rest[0], b'"' | b'\'') => self.string(1, quoted(rest), 1),
            Language::Rust | Language::C if rest.starts_with(b"//") => self.comment(find(rest, b"\n")),
            Language::Rust | Language::C if rest.starts_with(b"/*") => self.comment(block_comment(rest, rust)),
            Language::Rust | Language::C if rest[0] == b'"' => self.string(1, quoted(rest), 1),
            Language::Rust if rest[0] == b'\'' => match character(rest) {
                Some(length) => self.string(1, length, 1),
                None => self.code(1), // a lifetime
            },
            Language::C if rest[0] == b'\'' && !self.behind_word() => self.string(1, quoted(rest), 1),
            Language::Rust | Language::C | Language::Python => self.code(1),
        }
    }

    /// Lengths of the opening quote, the whole and the closing quote of a `r"…"`, `r#"…"#`, `br"…"`, `cr"…"` at this place.
    fn raw_string(&self) -> Option<(usize, usize, usize)> {
        let rest = &self.text[self.at..];
        let prefix = match rest {
            [b'r', ..] => 1,
            [b'b' | b'c', b'r', ..] => 2,
            _ => return None,
        };
        let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
        let open = prefix + hashes + 1;
        if self.behind_word() || rest.get(open - 1) != Some(&b'"') {
            return None;
        }
        let mut close = vec![b'"'];
        close.resize(1 + hashes, b'#');
        Some((open, open + find(&rest[open..], &close) + close.len(), close.len()))
    }

    fn behind_word(&self) -> bool {
        self.at > 0 && (self.text[self.at - 1].is_ascii_alphanumeric() || self.text[self.at - 1] == b'_')
    }

    fn code(&mut self, length: usize) {
        let range = self.advance(length);
        copy(&mut self.code, self.text, range);
    }

    fn comment(&mut self, length: usize) {
        let range = self.advance(length);
        copy(&mut self.comments, self.text, range);
    }

    /// A string of `length` bytes, of which `open` at the front and `close` at the end are quotes.
    fn string(&mut self, open: usize, length: usize, close: usize) {
        let range = self.advance(length);
        copy(&mut self.code, self.text, range.start..(range.start + open).min(range.end));
        copy(&mut self.code, self.text, range.end.saturating_sub(close).max(range.start)..range.end);
    }

    fn advance(&mut self, length: usize) -> Range<usize> {
        let start = self.at;
        self.at = (start + length.max(1)).min(self.text.len());
        start..self.at
    }
}

/// Copies bytes; those outside ASCII become `?`.
fn copy(into: &mut [u8], from: &[u8], range: Range<usize>) {
    for at in range {
        into[at] = if from[at].is_ascii() { from[at] } else { b'?' };
    }
}

/// Offset of `needle`, or the end.
fn find(text: &[u8], needle: &[u8]) -> usize {
    text.windows(needle.len()).position(|window| window == needle).unwrap_or(text.len())
}

/// Length of a string or character that starts here, with its quotes; a backslash guards the next byte.
fn quoted(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != text[0] {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of a Rust character literal that starts here; `None` for a lifetime.
fn character(text: &[u8]) -> Option<usize> {
    if text.get(1) == Some(&b'\\') {
        return Some(quoted(text));
    }
    let width = match *text.get(1)? {
        0..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    let end = 1 + width;
    (text.get(end) == Some(&b'\'')).then_some(end + 1)
}

fn block_comment(text: &[u8], nests: bool) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < text.len() && depth > 0 {
        match &text[at..] {
            [b'/', b'*', ..] if nests => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(path: &str, text: &str) -> String {
        let source = Source::new(path, text);
        assert_eq!((source.code.len(), source.comments.len()), (text.len(), text.len()), "{text}");
        source.code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rust_strings_characters_and_comments_are_blank() {
        assert_eq!(code("a.rs", "let a = \"unsafe { \\\" }\"; // unsafe"), "let a = \" \";");
        assert_eq!(code("a.rs", "let a = r#\"one \" two\"#; b"), "let a = r#\" \"#; b");
        assert_eq!(code("a.rs", "f('{', '\\'', 'é', b'x')"), "f(' ', ' ', ' ', b' ')");
        assert_eq!(code("a.rs", "fn f<'a>(x: &'a str) /* { /* { */ */ {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("a.rs", "let r#type = br\"{\";"), "let r#type = br\" \";");
    }

    #[test]
    fn other_languages() {
        assert_eq!(code("a.metal", "int a = 1'000; char c = '{'; // }"), "int a = 1'000; char c = ' ';");
        assert_eq!(code("a.py", "def f():\n  '''a # b'''\n  return \"#\" # c"), "def f(): ''' ''' return \" \"");
        assert_eq!(code("a.md", "don't"), "don't");
    }

    #[test]
    fn unfinished_text_ends_at_the_end() {
        for text in ["\"abc", "'", "r#\"abc", "/* abc", "b", "'\\", "\"\\", "// é", "r", "'é"] {
            code("a.rs", text);
            code("a.metal", text);
            code("a.py", text);
        }
    }

    #[test]
    fn words_and_brackets() {
        assert_eq!(words("unsafe unsafe_code x_unsafe unsafe", "unsafe").collect::<Vec<_>>(), [0, 28]);
        assert_eq!(closing("f { ( ) } }", 2), 9);
        assert_eq!(closing("f { ", 2), 4);
    }
}
