//! Who may talk to the server: this machine's own programs and pages. A web page elsewhere must not drive a
//! local model, neither directly (Origin) nor by pointing a name of its own at 127.0.0.1 (Host).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use super::error::ApiError;

/// The hosts that requests may name.
#[derive(Debug, Clone)]
pub struct Hosts {
    names: Vec<String>,
    any_address: bool,
}

impl Hosts {
    /// The loopback names, the host that was bound and those the user added. When all interfaces are bound,
    /// every bare IP address counts as bound: rebinding needs a name.
    pub fn new(bound: &str, added: &[String]) -> Self {
        let bound = bound.trim_matches(['[', ']']);
        let any_address = bound.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        let names = ["localhost", "127.0.0.1", "::1", bound].into_iter().map(str::to_ascii_lowercase);
        let added = added.iter().map(|name| name.to_ascii_lowercase());
        Self { names: names.chain(added).collect(), any_address }
    }

    /// Whether `host[:port]` is one of them.
    fn allow(&self, authority: &str) -> bool {
        let Some(host) = host_of(authority) else { return false };
        self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
            || self.any_address && host.parse::<IpAddr>().is_ok()
    }

    fn check(&self, request: &Request) -> Result<Option<HeaderValue>, ApiError> {
        let forbidden = |what| Err(ApiError::new(StatusCode::FORBIDDEN, what).code("forbidden_host"));
        let is_twice = |name| request.headers().get_all(name).iter().nth(1).is_some();
        if is_twice(header::HOST) || is_twice(header::ORIGIN) {
            return forbidden("the Host or Origin header is there twice");
        }
        let by_header = header_text(request.headers(), &header::HOST);
        let by_uri = request.uri().authority().map(|authority| authority.as_str());
        if !by_header.or(by_uri).is_some_and(|host| self.allow(host)) || by_uri.is_some_and(|host| !self.allow(host)) {
            return forbidden("the Host header does not name this machine (see --allow-host)");
        }
        let Some(origin) = request.headers().get(header::ORIGIN) else { return Ok(None) };
        let text = origin.to_str().unwrap_or("");
        let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        if !authority.is_some_and(|host| self.allow(host)) {
            return forbidden("pages of this Origin may not use this server (see --allow-host)");
        }
        Ok(Some(origin.clone()))
    }
}

/// Who may ask, and what.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The names that requests may use.
    pub hosts: Hosts,
    /// One of these must come with a request; none: no key is needed.
    pub keys: Vec<String>,
}

impl Guard {
    /// Looks for a key where OpenAI's clients put it, and Anthropic's.
    fn check_key(&self, request: &Request) -> Result<(), ApiError> {
        if self.keys.is_empty() || OPEN.contains(&request.uri().path()) {
            return Ok(());
        }
        let headers = request.headers();
        let bearer = header_text(headers, &header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let x_api_key = header_text(headers, &HeaderName::from_static("x-api-key"));
        let given = [bearer, x_api_key];
        // Every key is compared whole, so that the time tells nothing.
        let matches = given
            .into_iter()
            .flatten()
            .flat_map(|given| self.keys.iter().map(move |key| given.as_bytes().ct_eq(key.as_bytes())));
        if bool::from(matches.fold(Choice::from(0), |any, one| any | one)) {
            return Ok(());
        }
        let message = "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY";
        Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
    }
}

/// What monitors and browsers ask for before they have a key; none of it tells anything about the model's work.
const OPEN: [&str; 6] = ["/health", "/health/live", "/health/ready", "/", "/docs", "/openapi.json"];

/// Refuses foreign hosts and origins with 403 and strangers with 401; answers preflights of local pages and lets them
/// read replies, errors included.
pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let origin = match guard.hosts.check(&request) {
        Ok(origin) => origin,
        Err(error) => return error.into_response(),
    };
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match guard.check_key(&request) {
        // Browsers send preflights without keys.
        _ if is_preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
        if is_preflight {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
        }
    }
    response
}

fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// `host` of `host`, `host:port`, `[v6]` or `[v6]:port`; none of anything else, such as `host:x@elsewhere`.
fn host_of(authority: &str) -> Option<&str> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(v6) => v6.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_bound_and_added_hosts_are_local() {
        let hosts = Hosts::new("192.168.1.5", &["my-mac.local".into()]);
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "192.168.1.5", "my-mac.local:80"] {
            assert!(hosts.allow(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]"] {
            assert!(!hosts.allow(host), "{host}");
        }
        for host in ["localhost:x@evil.example", "localhost:80:evil.example", "[::1]evil.example", "[::1", "[::1]:x"] {
            assert!(!hosts.allow(host), "{host}");
        }
    }

    #[test]
    fn a_wildcard_bind_takes_addresses_but_no_foreign_names() {
        for bound in ["0.0.0.0", "::", "[::]"] {
            let hosts = Hosts::new(bound, &[]);
            assert!(hosts.allow("10.0.0.1:8080") && hosts.allow("[fe80::1]:8080"));
            assert!(!hosts.allow("evil.example"));
        }
    }
}
