//! `/openapi.json`: every route, field and status, and `/docs`, a page that shows them. The bodies of requests are
//! described in `bodies`; a test compares them, field by field, with what the parsers take.

mod bodies;
mod bodies_agents;
#[cfg(test)]
mod tests;

use axum::Json;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::wire::ChatCompletionChunk;
pub use bodies::*;
pub use bodies_agents::*;

/// The description of the server.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lily",
        description = "Local inference over the APIs of OpenAI and Anthropic. A field is honoured or refused by name; \
            null is the same as absent."
    ),
    paths(
        super::routes::chat_completions,
        super::routes::completions,
        super::routes::responses,
        super::routes::messages,
        super::tokens::count_tokens,
        super::tokens::tokenize,
        super::tokens::detokenize,
        super::routes::models,
        super::routes::model,
        super::routes::health,
        super::routes::live,
        super::routes::ready,
        super::routes::metrics,
        openapi,
        docs,
    ),
    components(schemas(ChatCompletionChunk, AnthropicErrorBody)),
    modifiers(&Keys),
    security(("bearer" = []), ("x-api-key" = []), ()),
)]
struct Description;

/// The two ways in which a key may come.
struct Keys;

impl utoipa::Modify for Keys {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let key = ApiKey::Header(ApiKeyValue::new("x-api-key"));
        components.add_security_scheme("x-api-key", SecurityScheme::ApiKey(key));
    }
}

/// The description as an object.
pub fn description() -> Document {
    Description::openapi()
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "About", responses((status = 200, body = serde_json::Value)))]
pub async fn openapi() -> Json<Document> {
    Json(description())
}

/// This document as a page
#[utoipa::path(get, path = "/docs", tag = "About", responses((status = 200, content_type = "text/html", body = String)))]
pub async fn docs() -> Response {
    // Nothing but what this server sends.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(include_str!("docs.html"))).into_response()
}
