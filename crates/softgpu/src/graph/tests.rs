//! Graphs that are launched, changed and destroyed.

use super::*;
use crate::work::steps::Steps;

#[test]
fn nodes_come_after_those_they_depend_on() {
    let mut body = Body::default();
    let a = body.add(Node::new(Op::Empty, vec![]));
    let b = body.add(Node::new(Op::Empty, vec![]));
    let c = body.add(Node::new(Op::Empty, vec![a]));
    body.connect(c, b).expect("both exist");
    let mut steps = Steps::default();
    body.flatten(&[], &mut steps).expect("no circle");
    assert_eq!(steps.steps.iter().map(|step| step.node).collect::<Vec<_>>(), [a, c, b]);
}

#[test]
fn a_copy_has_nodes_of_its_own() {
    let graph = Graph::create();
    let a = graph.body().add(Node::new(Op::Empty, vec![]));
    let b = graph.body().add(Node::new(Op::Empty, vec![a]));
    let copy = graph.duplicate().expect("no conditional nodes");
    let a2 = copy.body().twin(a).expect("copied");
    let b2 = copy.body().twin(b).expect("copied");
    assert!(a2 != a && b2 != b);
    assert_eq!(copy.body().edges(), [(a2, b2)]);
    copy.body().remove(a2).expect("is there");
    assert_eq!((copy.body().edges().len(), graph.body().edges().len()), (0, 1));
}

#[test]
fn a_node_leads_to_its_graph_while_both_are_there() {
    let graph = Graph::create();
    let (a, b) = (Node::new(Op::Empty, vec![]), Node::new(Op::Empty, vec![]));
    let a = graph.body().add(a);
    let b = graph.body().add(b);
    let copy = graph.duplicate().expect("no conditional nodes");
    let twin = copy.body().twin(a).expect("copied");
    assert_eq!(graph_of(a).map(|found| found.handle), Ok(graph.handle));
    assert_eq!(graph_of(twin).map(|found| found.handle), Ok(copy.handle));
    drop(graph.body().remove(a).expect("is there"));
    assert!(graph_of(a).is_err() && graph_of(b).is_ok());
    GRAPHS.remove(copy.handle);
    assert!(graph_of(twin).is_err());
    drop(copy);
    assert!(!HOMES.read().expect("no panic").contains_key(&twin));
}

#[test]
fn a_circle_is_refused() {
    let mut body = Body::default();
    let a = body.add(Node::new(Op::Empty, vec![]));
    let b = body.add(Node::new(Op::Empty, vec![a]));
    body.connect(b, a).expect("both exist");
    assert_eq!(body.flatten(&[], &mut Steps::default()), Err(Status::INVALID_VALUE));
}
