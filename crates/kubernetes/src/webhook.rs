//! The mutating admission webhook: HTTPS, one path, no state.
//!
//! An answer never depends on the API server or on Sluice's server, so it comes at once. The
//! webhook's configuration says `failurePolicy: Ignore`: while it is down pods are made as they
//! are written.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tower::ServiceExt;

use crate::ask::ask_of;
use crate::inject::{Settings, injected, is_injected};
use crate::readiness::Readiness;

/// Bytes of a request: more than any pod has (etcd takes 1.5 MiB).
const REQUEST_SIZE_MAX: usize = 4 << 20;
/// A client that does not finish a handshake or a header in this time is disconnected.
const STEP_TIME_MAX: Duration = Duration::from_secs(10);

/// Serves until the process ends.
pub(crate) async fn serve(
    listen: SocketAddr,
    tls: ServerConfig,
    settings: Settings,
    readiness: Readiness,
) -> Result<Infallible> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
    println!("listening on {}", listener.local_addr()?);
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let app = Router::new()
        .route("/mutate", post(mutate))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .layer(DefaultBodyLimit::max(REQUEST_SIZE_MAX))
        .with_state(Arc::new(Served { settings, readiness }));
    loop {
        match listener.accept().await {
            Ok((socket, _)) => drop(tokio::spawn(live(socket, acceptor.clone(), app.clone()))),
            // Out of descriptors, or the connection was lost: the next one may do better.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn live(socket: TcpStream, acceptor: TlsAcceptor, app: Router) {
    let Ok(Ok(stream)) = tokio::time::timeout(STEP_TIME_MAX, acceptor.accept(socket)).await else { return };
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let app = app.clone();
        let request: Request = request.map(Body::new);
        async move { app.oneshot(request).await }
    });
    // A connection that breaks off has no other end to report to.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(STEP_TIME_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
        .await;
}

/// What requests are answered with.
struct Served {
    settings: Settings,
    readiness: Readiness,
}

async fn ready(State(served): State<Arc<Served>>) -> Response {
    if served.readiness.is_ready() {
        return "ok".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the API server has not asked the webhook yet").into_response()
}

async fn mutate(State(served): State<Arc<Served>>, body: Bytes) -> Response {
    let review: Value = match serde_json::from_slice(&body) {
        Ok(review) => review,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    served.readiness.see(&review["request"]["object"]);
    axum::Json(reviewed(&review, &served.settings)).into_response()
}

/// Answers an AdmissionReview (admission.k8s.io/v1).
fn reviewed(review: &Value, settings: &Settings) -> Value {
    let request = &review["request"];
    let mut response = json!({ "uid": request["uid"], "allowed": true });
    let pod = &request["object"];
    match ask_of(pod, &settings.aliases) {
        Err(bad) => {
            let message = format!("{bad}; correct the pod, or its template");
            response["allowed"] = false.into();
            response["status"] = json!({ "code": 422, "reason": "Invalid", "message": message });
        }
        Ok(Some(ask)) if !is_injected(pod) => {
            // The request's id is unique, and the pod's own is not made yet.
            let secret = format!("sluice-lease-{}", request["uid"].as_str().unwrap_or_default());
            response["patchType"] = "JSONPatch".into();
            response["patch"] = patch(pod, &injected(pod, &ask, settings, &secret)).into();
        }
        Ok(_) => {}
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

/// The JSON patch (RFC 6902) from one pod to the other: whole parts, since both are known.
fn patch(before: &Value, after: &Value) -> String {
    let mut operations = Vec::new();
    for pointer in ["/metadata/labels", "/metadata/annotations", "/spec"] {
        let value = after.pointer(pointer).unwrap_or(&Value::Null);
        if before.pointer(pointer) != Some(value) {
            operations.push(json!({ "op": "add", "path": pointer, "value": value }));
        }
    }
    BASE64.encode(Value::Array(operations).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(pod: Value) -> Value {
        let settings = Settings { image: "sluice:1".into(), ..Settings::default() };
        let review = json!({ "request": { "uid": "u", "object": pod } });
        reviewed(&review, &settings)["response"].clone()
    }

    #[test]
    fn a_pod_that_asks_for_nothing_is_not_touched() {
        let response = review(json!({ "metadata": {}, "spec": { "containers": [{ "name": "a" }] } }));
        assert_eq!(response, json!({ "uid": "u", "allowed": true }));
    }

    #[test]
    fn a_pod_that_asks_gets_a_patch_once() {
        let pod = json!({
            "metadata": { "annotations": { "sluice.dev/share": "0.25" } },
            "spec": { "containers": [{ "name": "a", "image": "b" }] },
        });
        let response = review(pod.clone());
        let patch = BASE64.decode(response["patch"].as_str().unwrap()).unwrap();
        let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
        let paths: Vec<&str> = patch.iter().filter_map(|operation| operation["path"].as_str()).collect();
        assert_eq!(paths, ["/metadata/labels", "/metadata/annotations", "/spec"]);
        let mut changed = pod;
        changed["metadata"]["labels"] = patch[0]["value"].clone();
        assert!(review(changed)["patch"].is_null(), "reinvocation changes nothing");
    }

    #[test]
    fn nonsense_is_refused_with_its_field() {
        let response = review(json!({ "metadata": { "annotations": { "sluice.dev/share": "2" } } }));
        assert_eq!(response["allowed"], false);
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.contains("sluice.dev/share") && message.contains("0.25"), "{message}");
    }
}
