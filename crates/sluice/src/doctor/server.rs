//! What the control plane says of this user's token and of its GPUs, and whether their nodes can be
//! reached from here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluice_api::client::{Client, Failure};
use sluice_api::health::FenceState;
use sluice_api::node::GpuStatus;
use sluice_api::token::{Role, Token};
use sluice_control::Connection;
use sluice_wire::address::Endpoint;

use super::Finding;
use crate::quantity::Period;
use crate::server::lists::now_ms;

/// Nodes that are tried: one that does not answer takes its time.
const NODES_MAX: usize = 16;
/// A token that ends sooner is worth a word.
const SOON: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn findings(client: &Client) -> Vec<Finding> {
    let begin = Instant::now();
    let token: Token = match client.get("/whoami") {
        Ok(token) => token,
        Err(failure) => return vec![Finding::problem(failure.to_string(), remedy(&failure))],
    };
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let mut findings = vec![Finding::ok(format!("server {}: answers in {took:.1} ms", client.server()))];
    findings.push(of_token(&token, now_ms()));
    match client.list::<GpuStatus>("/gpus") {
        Ok(gpus) => findings.extend(of_gpus(&gpus)),
        Err(failure) => findings.push(Finding::problem(failure.to_string(), remedy(&failure))),
    }
    findings
}

fn remedy(failure: &Failure) -> &'static str {
    match failure {
        Failure::Refused(_) => {
            "`sluice login URL`, or SLUICE_TOKEN: an administrator makes tokens with `sluice token create`"
        }
        Failure::Unreachable { .. } => "look at the name, the port and firewalls in between",
        Failure::Untrusted { .. } => {
            "compare the fingerprint behind the URL with what the server prints where it starts"
        }
        Failure::Answer { .. } => "look at what else listens there, and update both sides",
    }
}

fn of_token(token: &Token, now_ms: u64) -> Finding {
    let left = Duration::from_millis(token.expires_at_ms.saturating_sub(now_ms));
    let text = format!("token {}: role {} for {}", token.id, token.role.name(), token.tenant);
    match token.role {
        Role::Viewer | Role::Auditor | Role::Node => Finding::note(
            text,
            "it may not run programs: ask for one of role member (`sluice token create --tenant TENANT`)",
        ),
        _ if left < SOON => Finding::note(
            format!("{text}, valid for {} more", Period::from_duration(left)),
            "`sluice login URL` again, or have another made with `sluice token create`",
        ),
        _ if token.tenant.is_root() => Finding::note(
            text,
            "it is for the whole installation: `sluice run --tenant` says for whom a program runs",
        ),
        _ => Finding::ok(text),
    }
}

fn of_gpus(gpus: &[GpuStatus]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let nodes: BTreeMap<&str, &GpuStatus> = gpus.iter().map(|gpu| (gpu.node.as_str(), gpu)).collect();
    let is_lent = |gpu: &&GpuStatus| {
        gpu.online && gpu.fence.as_ref().is_none_or(|fence| fence.state != FenceState::Fenced)
    };
    let lent = gpus.iter().filter(is_lent).count();
    let text = format!("GPUs that can be leased: {lent} of {}, nodes: {}", gpus.len(), nodes.len());
    findings.push(match lent {
        0 if gpus.is_empty() => {
            Finding::problem("no node has joined", "`sluice node --join` lends a machine's GPUs")
        }
        0 => Finding::problem(text, "`sluice gpus` says why"),
        _ if lent < gpus.len() => Finding::note(text, "`sluice gpus` says which, and why"),
        _ => Finding::ok(text),
    });
    let online = nodes.iter().filter(|(_, gpu)| gpu.online).take(NODES_MAX);
    findings.extend(online.map(|(name, gpu)| of_node(name, &gpu.address)));
    findings
}

/// Programs connect to nodes by themselves.
fn of_node(name: &str, address: &str) -> Finding {
    let opened = match address.parse::<Endpoint>() {
        Ok(endpoint) => Connection::open(&endpoint).map(drop).map_err(|failure| failure.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match opened {
        Ok(()) => Finding::ok(format!("node {name} can be reached from here")),
        Err(error) => Finding::problem(
            format!("node {name}: {error}"),
            "programs connect to it from here: look at firewalls in between, and at the name of its --listen",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn what_a_token_may_not_do_is_said() {
        let hour_ms = 3_600_000;
        let token = |role, tenant: &str, expires_at_ms| Token {
            id: "id".into(),
            tenant: tenant.parse().unwrap(),
            role,
            name: String::new(),
            created_at_ms: 0,
            expires_at_ms,
            node: None,
            revoked: false,
            last_used_at_ms: None,
        };
        let verdict = |token| of_token(&token, hour_ms).verdict;
        assert_eq!(verdict(token(Role::Member, "acme", 100 * hour_ms)), Verdict::Ok);
        assert_eq!(verdict(token(Role::Viewer, "acme", 100 * hour_ms)), Verdict::Note);
        assert_eq!(verdict(token(Role::Platform, "/", 100 * hour_ms)), Verdict::Note);
        let soon = of_token(&token(Role::Member, "acme", 3 * hour_ms), hour_ms);
        assert!(soon.verdict == Verdict::Note && soon.text.ends_with("valid for 2 h 0 min more"), "{soon:?}");
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_a_problem() {
        let finding = of_node("gpu1", "127.0.0.1:1");
        assert!(finding.verdict == Verdict::Problem && finding.text.contains("refused"), "{finding:?}");
    }

    #[test]
    fn a_control_plane_without_nodes_is_a_problem() {
        let findings = of_gpus(&[]);
        assert!(findings.len() == 1 && findings[0].verdict == Verdict::Problem, "{findings:?}");
    }
}
