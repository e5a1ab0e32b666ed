//! `sluice resize` of a lease of a server.
//!
//! The server decides and signs; its nodes receive it with their next report. The client that asks
//! is here anyway, and hands them what was signed at once.

use anyhow::{Result, bail};
use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseState, Place, ResizeLease, ResizeState};
use sluice_control::Connection;
use sluice_wire::control::LeaseRegrant;

use crate::resize::size_text;

/// Sees the lease change, to its end, and prints how far it is.
pub(crate) fn resize(client: &Client, id: u64, resize: &ResizeLease) -> Result<()> {
    let done = changed(client, id, resize, &mut |waits| eprintln!("sluice: {waits}"))?;
    eprintln!("sluice: {done}");
    Ok(())
}

/// Sees the lease change, to its end. The answer says what it has then; `say` gets each reason for
/// which it waits.
pub(crate) fn changed(
    client: &Client,
    id: u64,
    resize: &ResizeLease,
    say: &mut dyn FnMut(String),
) -> Result<String> {
    let mut lease: Lease = client.patch(&format!("/leases/{id}"), resize)?;
    for place in &lease.places {
        hand_over(place);
    }
    let mut said = None;
    while let Some(resizing) = &lease.resizing {
        match resizing.state {
            ResizeState::Refused => bail!("{}", resizing.reason.as_deref().unwrap_or("its node refused it")),
            ResizeState::Waiting if said != resizing.reason => {
                said.clone_from(&resizing.reason);
                say(format!("lease {id} waits for room: {}", said.as_deref().unwrap_or("there is none")));
            }
            ResizeState::Waiting | ResizeState::Sent => {}
        }
        if lease.state == LeaseState::Ended {
            bail!("lease {id} has ended");
        }
        lease = client.get(&format!("/leases/{id}?revision={}", lease.revision))?;
    }
    let size = size_text(lease.share_ppm, lease.limit_ppm, lease.memory);
    let suspended = if lease.suspended { ", and is suspended" } else { "" };
    Ok(format!("lease {id} has {size}{suspended}"))
}

/// Where the node cannot be reached from here, or is slow, its server tells it.
fn hand_over(place: &Place) {
    let Some((grant, node)) = place.resize.clone().zip(place.address.parse().ok()) else { return };
    if let Ok(mut connection) = Connection::open(&node) {
        let _ = connection.ask(LeaseRegrant { grant });
    }
}
