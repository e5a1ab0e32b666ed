//! The OpenAPI document: the declarations of the handlers, and what holds for all of them.

use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use sluice_api::lease::StateFilter;
use sluice_api::problem::Problem;
use sluice_api::report::ReportKind;
use sluice_api::watch::Change;

/// What the handlers' declarations are added to.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sluice",
        description = "Shares of pooled GPUs: tenants, quotas, leases, usage and bills. Every refusal is a problem as of RFC 9457.",
        license(name = "Apache-2.0")
    ),
    components(schemas(Problem, StateFilter, Change, ReportKind)),
    modifiers(&Bearer),
    security(("token" = []))
)]
pub(super) struct Declared;

struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The declared document, and what the declarations leave out.
pub(super) fn complete(declared: &utoipa::openapi::OpenApi) -> Value {
    let mut document = json!(declared);
    document["components"]["responses"] = json!({ "Refusal": refusal() });
    let paths = document["paths"].as_object_mut();
    for (method, operation) in paths.into_iter().flat_map(Map::values_mut).flat_map(operations) {
        if method == "post"
            && !["report", "sign_in", "sign_in_link"].iter().any(|id| operation["operationId"] == *id)
        {
            let key = "The same request under the same key is done once, and answered as it was the first time; another one under it is refused. \
                       Visible characters; kept for a week";
            let schema = json!({ "type": "string", "minLength": 1, "maxLength": 255 });
            add_header(operation, "Idempotency-Key", schema, key);
        }
        if method == "delete"
            && !["sign_out", "remove_run_default"].iter().any(|id| operation["operationId"] == *id)
        {
            let tag = "Only if it is as it was when a GET at this path gave this tag";
            add_header(operation, "If-Match", json!({ "type": "string" }), tag);
        }
        // What continues has no tag.
        let is_tagged = method == "get" && operation["operationId"] != "watch";
        let responses = &mut operation["responses"];
        for range in ["4XX", "5XX"] {
            responses[range] = json!({ "$ref": "#/components/responses/Refusal" });
        }
        if is_tagged {
            let tag =
                "Names this content; If-None-Match with it is answered with 304 while nothing has changed";
            responses["200"]["headers"]["ETag"] =
                json!({ "schema": { "type": "string" }, "description": tag });
            responses["304"] = json!({ "description": "Nothing has changed since the tag in If-None-Match" });
        }
    }
    open_parts(&mut document);
    state(&mut document);
    document
}

fn operations(path: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    path.as_object_mut().into_iter().flatten().filter(|(_, operation)| operation.get("responses").is_some())
}

fn add_header(operation: &mut Value, name: &str, schema: Value, about: &str) {
    let header =
        json!({ "name": name, "in": "header", "required": false, "schema": schema, "description": about });
    match operation["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(header),
        None => operation["parameters"] = json!([header]),
    }
}

/// Any refusal, by this server or on the way to its leader.
fn refusal() -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    let header = |schema: &str, about: &str| json!({ "schema": { "type": schema }, "description": about });
    json!({
        "description": "Why it was refused, and the way out",
        "content": { "application/problem+json": { "schema": schema } },
        "headers": {
            "Retry-After": header("integer", "With 429 and 503: in how many seconds to ask again"),
            "WWW-Authenticate": header("string", "With 401: the scheme, which is Bearer"),
        },
    })
}

/// What has members of its own beside those of a closed type is declared with that type's members:
/// as a whole it would forbid them.
fn open_parts(document: &mut Value) {
    let schemas = document["components"]["schemas"].clone();
    let parts = document["components"]["schemas"].as_object_mut().into_iter().flat_map(Map::values_mut);
    for part in parts.filter_map(|schema| schema.get_mut("allOf")?.as_array_mut()).flatten() {
        let name = part["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/"));
        let Some(Value::Object(mut named)) = name.map(|name| schemas[name].clone()) else { continue };
        if named.remove("additionalProperties") == Some(json!(false)) {
            *part = Value::Object(named);
        }
    }
}

/// States what the types of Rust say and their declarations do not.
fn state(value: &mut Value) {
    bound(value);
    close(value);
    match value {
        Value::Object(members) => members.values_mut().for_each(state),
        Value::Array(items) => items.iter_mut().for_each(state),
        _ => {}
    }
}

/// Numbers without a sign are declared as what they are; `int64` would end at the half of their
/// range.
fn bound(value: &mut Value) {
    if value["minimum"] == 0 && value["type"] != Value::Null {
        let (format, maximum) = match value["format"].as_str() {
            Some("int32") => ("uint32", u64::from(u32::MAX)),
            Some("int64") => ("uint64", u64::MAX),
            _ => return,
        };
        value["format"] = json!(format);
        if value["maximum"].is_null() {
            value["maximum"] = json!(maximum);
        }
    }
}

/// A variant with content is written as an object of one member, its name; neither takes other
/// members than it declares.
fn close(value: &mut Value) {
    let variants = value.get_mut("oneOf").and_then(Value::as_array_mut);
    for variant in variants.into_iter().flatten().filter(|variant| variant["type"] == "object") {
        variant["additionalProperties"] = json!(false);
        let contents = variant.get_mut("properties").and_then(Value::as_object_mut);
        for content in
            contents.into_iter().flat_map(Map::values_mut).filter(|content| content["type"] == "object")
        {
            content["additionalProperties"] = json!(false);
        }
    }
}
