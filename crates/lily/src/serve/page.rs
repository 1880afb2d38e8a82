//! The page at `/`: one embedded file that talks to the same API as every other client. Its Content-Security-Policy
//! names the page's own style and script by their hashes, so nothing that a model says could ever run.

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use ring::digest::{SHA256, digest};

/// Style and script are inside, once each.
const PAGE: &str = include_str!("page.html");

/// The routes of the page.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(async || page()))
}

/// No other host is asked for anything; frames, forms and plug-ins are off; text never becomes markup, because
/// `require-trusted-types-for` refuses the ways in which it would.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        hash(element("style")),
        hash(element("script")),
    )
});

fn page() -> Response {
    const PLAIN: [(HeaderName, &str); 4] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // An update of the program is an update of the page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    ([(header::CONTENT_SECURITY_POLICY, POLICY.as_str())], PLAIN, Html(PAGE)).into_response()
}

/// What stands in the page's only element of this name.
fn element(name: &str) -> &'static str {
    let inside = PAGE.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    inside.map_or("", |(inside, _)| inside)
}

/// SHA-256 in Base64, as a policy writes it.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for bytes in digest(&SHA256, text.as_bytes()).as_ref().chunks(3) {
        let group = (0..3).fold(0, |group, at| group << 8 | usize::from(bytes.get(at).copied().unwrap_or(0)));
        let digit = |at: usize| if at <= bytes.len() { char::from(DIGITS[group >> (18 - 6 * at) & 63]) } else { '=' };
        out.extend((0..4).map(digit));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_as_browsers_write_them() {
        // The empty text and the classic three letters.
        assert_eq!(hash(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(hash("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn the_policy_names_what_the_page_has_and_nothing_else_can_run() {
        for name in ["style", "script"] {
            assert_eq!(PAGE.matches(&format!("<{name}")).count(), 1, "{name}");
            assert!(element(name).len() > 1000, "{name}");
            assert!(POLICY.contains(&format!("{name}-src 'sha256-{}'", hash(element(name)))));
        }
        assert!(POLICY.starts_with("default-src 'none'; ") && !POLICY.contains("unsafe"));
        let reply = page();
        assert_eq!(reply.headers()[header::CONTENT_SECURITY_POLICY], POLICY.as_str());
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
    }

    #[test]
    fn the_page_asks_no_other_host_and_writes_no_markup() {
        let script = element("script");
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
        // The only addresses are names of namespaces, and what a link must begin with.
        let addresses =
            PAGE.match_indices("://").map(|(at, _)| PAGE[at..].chars().skip(3).take(10).collect::<String>());
        let foreign: Vec<_> = addresses.filter(|rest| !rest.starts_with("www.w3.org")).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
        assert!(!PAGE.contains(" src=") && !PAGE.contains("url(") && !PAGE.contains("@import"));
        assert!(!PAGE.contains(" style=\"") && !PAGE.contains(" onclick="), "the policy would refuse them");
    }
}
