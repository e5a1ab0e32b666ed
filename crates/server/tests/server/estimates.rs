use sluice_api::lease::{Lease, LeaseEstimate, LeaseState, NewLease};
use sluice_api::problem::Kind;
use sluice_api::token::Role;

use crate::{ScriptedNode, Server, ask, problem, request, wait_for_state};

fn estimate(client: &sluice_api::client::Client, ask: &NewLease) -> LeaseEstimate {
    client.post("/leases?dry_run=true", ask).unwrap()
}

#[test]
fn a_dry_run_says_where_when_and_for_how_much_and_asks_for_nothing() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme/research", Role::Member);
    let mut node = ScriptedNode::join(&server, "one", 2);
    let quarter = NewLease { gpus: 2, ..ask(250_000) };
    let now = estimate(&member, &quarter);
    assert!(now.start.at_ms.is_some() && now.reason.is_none() && now.preempts == 0, "{now:?}");
    let place = &now.places[0];
    assert_eq!((place.node.as_str(), &place.gpus, place.share_ppm), ("one", &vec![0, 1], 250_000));
    assert_eq!(
        (place.model.as_str(), place.pool.as_str(), place.memory),
        ("scripted GPU", "default", 4 << 30)
    );
    // Two quarters at 2 a GPU-hour; what nobody else wants may be used, up to two whole GPUs at
    // 0.5.
    assert_eq!((now.micro_per_hour, now.used_micro_per_hour_max), (Some(1_000_000), Some(1_000_000)));
    let capped = estimate(&member, &NewLease { hard_cap: true, ..quarter.clone() });
    assert_eq!(capped.used_micro_per_hour_max, Some(250_000));
    let offer = &now.offers[0];
    assert_eq!((offer.gpus, offer.gpus_free, offer.micro_per_hour), (2, 2, 1_000_000));
    let leases: Vec<Lease> = server.admin.list("/leases").unwrap();
    assert!(leases.is_empty(), "{leases:?}");

    // What runs says how long it takes; what would come next starts then.
    let whole = NewLease { gpus: 2, duration_ms: Some(600_000), ..ask(1_000_000) };
    let lease = request(&member, &whole);
    node.claim(&wait_for_state(&member, lease.id, LeaseState::Granted));
    let running = wait_for_state(&member, lease.id, LeaseState::Running);
    let later = estimate(&member, &quarter);
    assert_eq!(later.start.at_ms, Some(running.granted_at_ms.unwrap() + 600_000), "{later:?}");
    assert!(later.reason.is_some() && later.places.len() == 1, "{later:?}");
    assert_eq!(later.offers[0].gpus_free, 0);
    let queue: Vec<Lease> = server.admin.list("/queue").unwrap();
    assert!(queue.is_empty(), "{queue:?}");
}

#[test]
fn a_dry_run_is_refused_as_the_request_would_be() {
    let (_folder, server) = Server::with_tenants();
    let _node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme/sales", Role::Member);
    let refused = |ask: &NewLease| problem(member.post::<LeaseEstimate>("/leases?dry_run=true", ask));
    assert!(refused(&ask(1_000_000)).is(Kind::NeverFits), "sales may hold half a GPU");
    assert!(refused(&NewLease { gpus: 0, ..ask(1) }).is(Kind::Invalid));
    let foreign = NewLease { tenant: Some("globex".parse().unwrap()), ..ask(250_000) };
    assert!(refused(&foreign).is(Kind::Forbidden));
    let viewer = server.token("acme/sales", Role::Viewer);
    assert!(problem(viewer.post::<LeaseEstimate>("/leases?dry_run=true", &ask(1))).is(Kind::Forbidden));
}
