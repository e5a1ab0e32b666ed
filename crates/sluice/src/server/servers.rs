//! `sluice servers`: the servers of a control plane, and which of them leads.

use std::process::ExitCode;

use anyhow::Result;
use sluice_api::replica::{ServerState, ServerStatus, Servers};

use super::client;
use super::lists::{show, since};
use crate::cli::ListArgs;
use crate::moment::Moment;
use crate::table::Align::Left;

pub(crate) fn list(arguments: &ListArgs) -> Result<ExitCode> {
    let servers: Servers = client(&arguments.at)?.get("/servers")?;
    let columns =
        &[("SERVER", Left), ("STATE", Left), ("SINCE", Left), ("RELEASE", Left), ("HAS READ", Left)];
    let cells = |server: &ServerStatus| {
        let since_ms = server.leads_since_ms.unwrap_or(server.started_ms);
        vec![
            server.url.clone(),
            state(server),
            Moment::from_ms(since_ms).to_string(),
            server.release.clone(),
            lag(server),
        ]
    };
    show(&servers.items, arguments.output, "no server has said that it is there", columns, cells)?;
    Ok(ExitCode::SUCCESS)
}

/// `leads`; `follows, answers here`; `silent for 40 s`
fn state(server: &ServerStatus) -> String {
    let state = match server.state {
        ServerState::Leads => "leads".to_owned(),
        ServerState::Follows => "follows".to_owned(),
        ServerState::Silent => format!("silent for {}", since(server.seen_ms)),
    };
    if server.answers { format!("{state}, answers here") } else { state }
}

/// What it has read of what the leader writes.
fn lag(server: &ServerStatus) -> String {
    match (server.behind, server.settings_behind) {
        (0, false) => "everything".into(),
        (0, true) => "not the latest settings".into(),
        (behind, _) => format!("not the latest {behind} changes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_follower_has_not_read_is_said() {
        let server = |behind, settings_behind| ServerStatus {
            url: "http://h:1".into(),
            release: "1.0.0".into(),
            state: ServerState::Follows,
            started_ms: 0,
            seen_ms: 0,
            leads_since_ms: None,
            behind,
            settings_behind,
            answers: true,
        };
        assert_eq!(lag(&server(0, false)), "everything");
        assert_eq!(lag(&server(0, true)), "not the latest settings");
        assert_eq!(lag(&server(3, true)), "not the latest 3 changes");
        assert_eq!(state(&server(0, false)), "follows, answers here");
    }
}
