//! The documentation page of the API, made from its OpenAPI document; it needs nothing from
//! elsewhere.

use std::fmt::Write;

use serde_json::Value;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    code,h3{font-family:ui-monospace,monospace}h3{margin-bottom:0}.m{display:inline-block;min-width:4.5rem;color:#06c}\
    li{margin:.1rem 0}p{margin:.3rem 0}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}.m{color:#6af}}";

/// HTML of a whole document.
pub(super) fn html(document: &Value) -> String {
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Sluice API</title><style>{STYLE}</style>\
         <h1>Sluice API</h1><p>{}</p><p>Every request carries <code>Authorization: Bearer TOKEN</code>. The same as a \
         document for programs: <a href=/api/v1/openapi.json>openapi.json</a> (OpenAPI 3.1).</p>",
        text(&document["info"]["description"])
    );
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            one(&mut page, path, method, operation);
        }
    }
    page.push_str("</html>\n");
    page
}

fn one(page: &mut String, path: &str, method: &str, operation: &Value) {
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<h3><span class=m>{}</span>{}</h3><p><b>{}</b> {}</p><ul>",
        escape(&method.to_uppercase()),
        escape(path),
        text(&operation["summary"]),
        text(&operation["description"])
    );
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
        let _ = write!(page, "<li><code>{name}</code> ({place}) {}</li>", text(&parameter["description"]));
    }
    let schema = |content: &Value| {
        let kinds = content["content"].as_object();
        let named = kinds.and_then(|kinds| kinds.values().find_map(|kind| kind["schema"]["$ref"].as_str()));
        named.and_then(|name| name.rsplit('/').next()).map(escape)
    };
    if let Some(name) = schema(&operation["requestBody"]) {
        let _ = write!(page, "<li>takes <code>{name}</code></li>");
    }
    if let Some(name) = schema(&operation["responses"]["200"]) {
        let _ = write!(page, "<li>answers <code>{name}</code></li>");
    }
    page.push_str("</ul>");
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
