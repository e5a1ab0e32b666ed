//! Gangs that grow and give back tasks.

use sluice_api::lease::{Lease, LeaseState, NewLease, Refused};
use sluice_api::node::Attempt;
use sluice_api::problem::Kind;
use sluice_api::token::Role;

use crate::{ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

/// Tasks of a running lease come and go; the server is started anew in between.
#[test]
fn a_gang_grows_and_gives_back_task_by_task() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 2);
    let member = server.token("acme", Role::Member);
    let single = request(&member, &ask(1_000_000));
    node.claim(&wait_for_state(&member, single.id, LeaseState::Granted));
    let gang = NewLease { tasks: 1, tasks_max: Some(2), ..ask(1_000_000) };
    let gang = request(&member, &gang).id;
    node.claim(&wait_for_state(&member, gang, LeaseState::Granted));
    let _: Lease = member.delete(&format!("/leases/{}", single.id)).unwrap();
    node.report.leases.retain(|attempt| attempt.lease == gang);
    node.say();
    let tasks = |lease: &Lease| lease.places.iter().map(|place| place.task).collect::<Vec<_>>();
    let grown = wait_for(&member, gang, |lease| lease.places.len() == 2);
    assert_eq!((grown.state, tasks(&grown)), (LeaseState::Running, vec![0, 1]));
    let grants: Vec<bool> = grown.places.iter().map(|place| place.grant.is_some()).collect();
    assert_eq!(grants, [false, true]);

    // The word of another attempt, or about a task that runs, changes nothing.
    let path = format!("/leases/{gang}/refusals");
    for (attempt, task) in [(2, 1), (1, 0), (1, 9)] {
        let refused = Refused { attempt, task: Some(task), reason: "no".into() };
        let same: Lease = member.post(&path, &refused).unwrap();
        assert_eq!((same.state, same.places.len()), (LeaseState::Running, 2), "{refused:?}");
    }
    node.claim(&grown);
    drop(server);

    let server = Server::start(folder.path());
    let member = server.token("acme", Role::Member);
    node.client = server.admin.with_token(&node.joined.token);
    node.report.leases.retain(|attempt| attempt.task != 0);
    node.say();
    let fewer = wait_for(&member, gang, |lease| lease.places.len() == 1);
    assert_eq!((fewer.state, tasks(&fewer), fewer.tasks), (LeaseState::Running, vec![1], 1));
    let next = request(&member, &ask(1_000_000));
    wait_for_state(&member, next.id, LeaseState::Granted);
    node.report.leases.clear();
    node.say();
    let ended = wait_for_state(&member, gang, LeaseState::Ended);
    assert_eq!((ended.reason.as_deref(), tasks(&ended)), (Some("its program ended"), vec![0, 1]));
}

#[test]
fn one_task_of_an_elastic_gang_is_preempted_by_hand() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 2);
    let member = server.token("acme", Role::Member);
    let gang = NewLease { tasks: 1, tasks_max: Some(2), ..ask(1_000_000) };
    let gang = request(&member, &gang).id;
    node.claim(&wait_for(&member, gang, |lease| lease.places.len() == 2));
    wait_for_state(&member, gang, LeaseState::Running);
    let preempt = |task: u32| {
        server.admin.post::<Lease>(&format!("/leases/{gang}/preemptions?task={task}"), &serde_json::json!({}))
    };
    assert!(problem(preempt(7)).is(Kind::Conflict), "there is no such task");
    let told = preempt(1).unwrap();
    assert_eq!((told.state, told.attempt), (LeaseState::Running, 1));
    let leaves: Vec<bool> = told.places.iter().map(|place| place.leave_at_ms.is_some()).collect();
    assert_eq!(leaves, [false, true]);
    // The other one is all that the gang has left.
    assert!(problem(preempt(0)).is(Kind::Conflict) && problem(preempt(1)).is(Kind::Conflict));
    let leaving = Attempt { lease: gang, attempt: 1, task: 1 };
    assert_eq!(node.say().end, [leaving], "the grace time of this server is nothing");
    node.report.leases.retain(|attempt| *attempt != leaving);
    node.say();
    // Nobody else wants the place: another task gets it.
    let grown = wait_for(&member, gang, |lease| lease.places.iter().any(|place| place.task == 2));
    assert_eq!((grown.state, grown.attempt), (LeaseState::Running, 1));
}
