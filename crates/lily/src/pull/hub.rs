//! The Hub over HTTP: a revision's files, and a file's bytes from an offset on. Redirects are followed by hand, because
//! the token must stay with the host that it is for. What a failure means is decided here, what to do about it is not.

use std::io;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ring::digest;
use serde::Deserialize;
use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};

use super::patience::{Failure, Limits, Patience};
use crate::flags::HubSettings;
use crate::terminal::progress::Report;

/// Redirects in a row.
const MOST_REDIRECTS: usize = 8;
/// A list of files is text; this is far more than any.
const LONGEST_LISTING: u64 = 32 << 20;

/// A petabyte: sizes are added up.
const LARGEST_FILE: u64 = 1 << 50;

/// How a file's bytes are known to be right; the Hub's cache also names files so.
#[derive(Debug, Clone, PartialEq)]
pub enum Checksum {
    /// Of the bytes: files in large file storage.
    Sha256(String),
    /// SHA-1 of git's header and the bytes: all others.
    GitBlob(String),
}

impl Checksum {
    /// Lowercase hexadecimal digits.
    pub fn name(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    /// Before the first of `size` bytes.
    pub fn start(&self, size: u64) -> digest::Context {
        match self {
            Self::Sha256(_) => digest::Context::new(&digest::SHA256),
            Self::GitBlob(_) => {
                let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                context
            }
        }
    }

    /// Whether the bytes that went in are the right ones.
    pub fn is(&self, context: digest::Context) -> bool {
        let found: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        found == self.name()
    }
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteFile {
    /// Path in the repository, as the Hub says it.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Of its bytes.
    pub checksum: Checksum,
}

/// What a revision is.
#[derive(Debug)]
pub struct Listing {
    /// Forty hexadecimal digits.
    pub commit: String,
    /// All files.
    pub files: Vec<RemoteFile>,
}

/// Bytes of a file, as the server chose to send them.
pub enum Bytes {
    /// From the offset on.
    Rest(ureq::BodyReader<'static>),
    /// From the beginning, whatever was asked.
    Whole(ureq::BodyReader<'static>),
    /// Nothing, because the file ends before the offset.
    OutOfRange,
}

/// One revision of one repository of the Hub.
pub struct Hub<'a> {
    agent: Agent,
    settings: &'a HubSettings,
    repo: &'a str,
    revision: &'a str,
    limits: &'a Limits,
}

impl<'a> Hub<'a> {
    /// Connects to nothing yet.
    pub fn new(settings: &'a HubSettings, repo: &'a str, revision: &'a str, limits: &'a Limits) -> Self {
        let roots = settings.authorities.clone().unwrap_or(RootCerts::WebPki);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // Where TLS began it stays.
            .https_only(settings.endpoint.starts_with("https://"))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .proxy(settings.proxy.clone())
            .user_agent(concat!("lily/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_recv_response(Some(limits.stall))
            .timeout_per_read(Some(limits.stall))
            .build();
        Self { agent: config.into(), settings, repo, revision, limits }
    }

    /// How much failure is borne.
    pub fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// The commit and the files of the revision.
    ///
    /// # Errors
    /// One sentence.
    pub fn listing(&self, report: &dyn Report) -> anyhow::Result<Listing> {
        let (endpoint, repo) = (&self.settings.endpoint, self.repo);
        let url = format!("{endpoint}/api/models/{repo}/revision/{}?blobs=true", percent_encoded(self.revision));
        let mut patience = Patience::new(self.limits, report);
        let text = loop {
            let failure = match self.text(&url) {
                Ok(text) => break text,
                // The first word to this host: more likely a wrong address or no network than a hiccup.
                Err(Failure::Unreachable(reason)) => return Err(anyhow!("{endpoint} cannot be reached: {reason}")),
                Err(failure) => failure,
            };
            patience.bear(failure, endpoint)?;
        };
        parse_listing(&text).with_context(|| format!("{endpoint} did not answer with the files of a model"))
    }

    /// A file's bytes from `offset` on; of the whole file there are `size`.
    ///
    /// # Errors
    /// No bytes came, or the server announces another number of them: a page of a login or an error, most likely.
    pub fn open(&self, commit: &str, name: &str, (offset, size): (u64, u64)) -> Result<Bytes, Failure> {
        let url = format!("{}/{}/resolve/{commit}/{}", self.settings.endpoint, self.repo, percent_encoded(name));
        let response = self.get(&url, offset)?;
        let listed = if response.status() == StatusCode::PARTIAL_CONTENT { size - offset } else { size };
        let length = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if response.status().is_success() && length.is_some_and(|length: u64| length != listed) {
            let sent = length.unwrap_or_default();
            return Err(Failure::passing(format!("the server sent {sent} bytes where {listed} are listed")));
        }
        Ok(match response.status() {
            StatusCode::RANGE_NOT_SATISFIABLE => Bytes::OutOfRange,
            StatusCode::PARTIAL_CONTENT if starts_at(response.headers(), offset) => {
                Bytes::Rest(response.into_body().into_reader())
            }
            StatusCode::PARTIAL_CONTENT => return Err(Failure::passing("the server sent another part than asked")),
            _ if offset == 0 => Bytes::Rest(response.into_body().into_reader()),
            _ => Bytes::Whole(response.into_body().into_reader()),
        })
    }

    fn text(&self, url: &str) -> Result<String, Failure> {
        let mut response = self.get(url, 0)?;
        let body = response.body_mut().with_config().limit(LONGEST_LISTING);
        body.read_to_string().map_err(|error| self.failure(error))
    }

    /// The answer at the end of all redirects, if it is one to go on with.
    fn get(&self, url: &str, offset: u64) -> Result<Response<ureq::Body>, Failure> {
        let mut url = url.to_owned();
        for _ in 0..MOST_REDIRECTS {
            let ours = origin(&url) == origin(&self.settings.endpoint);
            let mut request = self.agent.get(&url).header(header::ACCEPT_ENCODING, "identity");
            if offset > 0 {
                request = request.header(header::RANGE, format!("bytes={offset}-"));
            }
            if let (true, Some(token)) = (ours, &self.settings.token) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| self.failure(error))?;
            match response.status() {
                status if status.is_redirection() => url = redirected(&url, response.headers())?,
                StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Ok(response);
                }
                status => {
                    return Err(self.refusal(status, response.headers(), (!ours).then(|| origin(&url))));
                }
            }
        }
        Err(Failure::Final(anyhow!("{}: the Hub redirects without end", self.repo)))
    }

    /// What a status means. Of access the Hub alone knows, not the `storage` that it redirects to.
    fn refusal(&self, status: StatusCode, headers: &HeaderMap, storage: Option<&str>) -> Failure {
        let transient = matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504);
        if let (Some(host), false) = (storage, transient) {
            // It is reached by signed, short-lived addresses: a new one may do.
            return Failure::passing(format!("{host} answered {status}"));
        }
        if transient {
            return Failure::Passing { reason: format!("the server answered {status}"), wait: asked_wait(headers) };
        }
        let (repo, endpoint) = (self.repo, &self.settings.endpoint);
        let code = headers.get("x-error-code").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let known = self.settings.token.is_some();
        Failure::Final(match (code, status.as_u16()) {
            ("GatedRepo", _) | (_, 403) if known => {
                anyhow!("{repo}: this account has no access ({status}): ask for it at {endpoint}/{repo}")
            }
            ("GatedRepo", _) | (_, 403) => {
                anyhow!("{repo} is gated ({status}): ask for access at {endpoint}/{repo}, then set HF_TOKEN")
            }
            ("RevisionNotFound", _) => anyhow!("{repo} has no revision {} ({status})", self.revision),
            (_, 401) if known => anyhow!(
                "{repo}: the Hub does not take the token, or there is no such repository ({status}): check HF_TOKEN, \
                 the token file and the name"
            ),
            (_, 401) => anyhow!(
                "{repo}: there is no such repository, or only a login sees it ({status}): check the name, or set HF_TOKEN"
            ),
            (_, 404) => anyhow!("{repo}: {endpoint} has no such repository or file ({status}): check the name"),
            _ => anyhow!("{repo}: the Hub answered {status}"),
        })
    }

    fn failure(&self, error: ureq::Error) -> Failure {
        use ureq::{Error, Timeout};
        if let Error::Io(cause) = error {
            return self.broken(&cause);
        }
        if matches!(error, Error::HostNotFound) {
            Failure::Unreachable("there is no host of that name".into())
        } else if matches!(error, Error::Timeout(Timeout::Resolve | Timeout::Connect)) {
            Failure::Unreachable(format!("no connection within {} s", self.limits.connect.as_secs()))
        } else if matches!(error, Error::Timeout(_)) {
            Failure::passing("the server does not answer")
        } else if matches!(error, Error::Protocol(_) | Error::ConnectionFailed) {
            Failure::passing(format!("the connection broke ({error})"))
        } else {
            Failure::Final(anyhow!("{}: {error}", self.settings.endpoint))
        }
    }

    /// What the system, or TLS, says about a connection.
    fn broken(&self, error: &io::Error) -> Failure {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, TimedOut, UnexpectedEof};
        if error.kind() == InvalidData {
            // A certificate, or no TLS at all.
            return Failure::Final(anyhow!("{}: {error}", self.settings.endpoint));
        }
        if matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof) {
            return Failure::passing(format!("the connection broke ({error})"));
        }
        // A name that cannot be looked up is among these and has no kind of its own.
        Failure::Unreachable(error.to_string())
    }
}

/// Scheme and authority.
fn origin(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    &url[..end]
}

/// Where a redirect leads.
fn redirected(from: &str, headers: &HeaderMap) -> Result<String, Failure> {
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if location.starts_with("https://") || location.starts_with("http://") {
        return Ok(location.to_owned());
    }
    if location.starts_with('/') && !location.starts_with("//") {
        return Ok(format!("{}{location}", origin(from)));
    }
    Err(Failure::Final(anyhow!("{} redirects to {location:?}, which is no address", origin(from))))
}

/// `Retry-After`, or what the Hub says in `RateLimit` (`"api";r=0;t=55`).
fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let after = text("retry-after").and_then(|value| value.trim().parse().ok());
    let window = || text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse().ok());
    after.or_else(window).map(Duration::from_secs)
}

/// Whether `Content-Range: bytes {offset}-…` is what came.
fn starts_at(headers: &HeaderMap, offset: u64) -> bool {
    let range = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let start = range.and_then(|range| range.trim().strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok());
    start == Some(offset)
}

/// One part of an address; a slash in it is not a separator.
fn percent_encoded(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    part.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[derive(Deserialize)]
struct ModelReply {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Everything in it may become a path, so everything is looked at.
fn parse_listing(text: &str) -> anyhow::Result<Listing> {
    let reply: ModelReply = serde_json::from_str(text)?;
    if !is_hex(&reply.sha, 40) {
        return Err(anyhow!("{:?} is no commit", reply.sha));
    }
    let mut files = Vec::with_capacity(reply.siblings.len());
    for sibling in reply.siblings {
        let name = sibling.rfilename;
        let file = match (sibling.lfs, sibling.size, sibling.blob_id) {
            (Some(lfs), _, _) if is_hex(&lfs.sha256, 64) => {
                RemoteFile { name, size: lfs.size, checksum: Checksum::Sha256(lfs.sha256) }
            }
            (None, Some(size), Some(id)) if is_hex(&id, 40) => {
                RemoteFile { name, size, checksum: Checksum::GitBlob(id) }
            }
            _ => return Err(anyhow!("the file {name:?} comes without size or checksum")),
        };
        if file.size > LARGEST_FILE {
            return Err(anyhow!("the file {:?} is said to have {} bytes", file.name, file.size));
        }
        files.push(file);
    }
    if files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size)).is_none() {
        return Err(anyhow!("the files are said to have more bytes together than can be counted"));
    }
    Ok(Listing { commit: reply.sha, files })
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn an_origin_is_scheme_and_authority() {
        for (url, want) in [
            ("https://hub.example/a/b", "https://hub.example"),
            ("https://hub.example?x", "https://hub.example"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80"),
            ("https://hub.example@evil.example/", "https://hub.example@evil.example"),
        ] {
            assert_eq!(origin(url), want);
        }
    }

    #[test]
    fn redirects_are_absolute_or_on_the_same_host() {
        let to = |location: &str| redirected("https://a.example/x", &headers(&[("location", location)])).ok();
        assert_eq!(to("https://b.example/y").as_deref(), Some("https://b.example/y"));
        assert_eq!(to("/y?z").as_deref(), Some("https://a.example/y?z"));
        assert_eq!((to("//b.example/y"), to("file:///etc/passwd"), to("y")), (None, None, None));
    }

    #[test]
    fn servers_say_how_long_to_wait() {
        let wait = |pairs| asked_wait(&headers(pairs)).map(|wait| wait.as_secs());
        assert_eq!(wait(&[("retry-after", "7"), ("ratelimit", "\"api\";r=0;t=55")]), Some(7));
        assert_eq!(wait(&[("ratelimit", "\"api\";r=0;t=55")]), Some(55));
        assert_eq!(wait(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), None);
        assert_eq!(wait(&[]), None);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(percent_encoded("a b/é%.json"), "a%20b%2F%C3%A9%25.json");
    }

    #[test]
    fn a_malformed_list_is_refused() {
        let sha = "0".repeat(40);
        let list = |sibling: &str| parse_listing(&format!(r#"{{"sha": "{sha}", "siblings": [{sibling}]}}"#));
        assert!(list("").is_ok());
        let good = format!(r#"{{"rfilename": "a", "size": 3, "blobId": "{sha}"}}"#);
        assert_eq!(list(&good).unwrap().files[0].checksum, Checksum::GitBlob(sha.clone()));
        for bad in [
            r#"{"rfilename": "a"}"#,
            r#"{"rfilename": "a", "size": 3, "blobId": "../../x"}"#,
            r#"{"rfilename": "a", "size": 3, "lfs": {"sha256": "../x", "size": 3}}"#,
            r#"{"rfilename": "a", "size": -3, "blobId": "0"}"#,
            &good.replace(": 3", ": 18446744073709551615"),
        ] {
            assert!(list(bad).is_err(), "{bad}");
        }
        assert!(parse_listing(r#"{"sha": "../..", "siblings": []}"#).is_err());
        assert!(parse_listing("<html>").is_err());
    }
}
