//! Stop strings in text that comes in pieces. Holds back only what can still become one; what comes out does not depend
//! on how the text was cut.

/// Looks for the stop string that begins earliest in all of the text. Sends on what is before it and nothing after.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// Text that is not decided yet: the first stop string may begin anywhere in it.
    held: String,
    /// Bytes of the text before `held`.
    sent: usize,
    /// Bytes of the text read.
    read: usize,
    /// Where the earliest stop string found so far begins. One that began earlier may still be completed.
    found: Option<usize>,
    stopped: bool,
}

/// One stop string, matched byte by byte as Knuth, Morris and Pratt do: linear in the text, however often it repeats.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each prefix length: the length of its longest proper prefix that is also its end.
    fallback: Vec<usize>,
    /// Length of the longest prefix that the text ends in.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len() + 1];
        for end in 1..bytes.len() {
            let mut len: usize = fallback[end];
            while len > 0 && bytes[len] != bytes[end] {
                len = fallback[len];
            }
            fallback[end + 1] = if bytes[len] == bytes[end] { len + 1 } else { 0 };
        }
        Self { bytes, fallback, matched: 0 }
    }

    /// Takes the next byte; whether the text now ends in the pattern.
    fn advance(&mut self, byte: u8) -> bool {
        if self.matched == self.bytes.len() {
            self.matched = self.fallback[self.matched];
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }

    /// Bytes at the end of the text that may become the pattern: a whole one is found already.
    fn open(&self) -> usize {
        if self.matched == self.bytes.len() { self.fallback[self.matched] } else { self.matched }
    }
}

impl StopStrings {
    /// Looks for any of these; empty ones are left out.
    pub fn new(stops: &[String]) -> Self {
        let patterns = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Pattern::new(stop)).collect();
        Self { patterns, held: String::new(), sent: 0, read: 0, found: None, stopped: false }
    }

    /// Takes the next piece of text and returns what is certainly before the first stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(text);
        for byte in text.bytes() {
            self.read += 1;
            for pattern in &mut self.patterns {
                if pattern.advance(byte) {
                    let start = self.read - pattern.bytes.len();
                    self.found = Some(self.found.map_or(start, |found| found.min(start)));
                }
            }
            let open = self.open();
            if self.found.is_some_and(|found| found <= open) {
                break;
            }
        }
        self.send(self.open())
    }

    /// Ends a run of text, at its end or before something that is not text: no stop string reaches beyond it. Returns
    /// what was held back.
    pub fn flush(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        self.send(self.read)
    }

    /// Whether a stop string was found. Nothing comes out from then on.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The earliest place where a stop string may begin that is not complete.
    fn open(&self) -> usize {
        self.read - self.patterns.iter().map(Pattern::open).max().unwrap_or(0)
    }

    /// Sends on the text up to where a stop string may begin.
    fn send(&mut self, open: usize) -> String {
        let end = self.found.map_or(open, |found| found.min(open));
        if self.found == Some(end) {
            self.stopped = true;
        }
        let text = self.held.drain(..end - self.sent).collect();
        self.sent = end;
        if self.stopped {
            self.held.clear();
        }
        text
    }
}
