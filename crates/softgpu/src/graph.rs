//! Graphs: work recorded once and submitted many times (CUDA Driver API, Graph Management).
//!
//! A launch submits the nodes one after the other, in an order that respects their dependencies, to
//! the stream of the launch: no node runs beside another, as no two kernels of a device do here
//! anyway.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use sluice_cuda::{CUgraph, CUgraphExec, CUgraphNodeType, CUhostFn, CUlaunchAttributeValue};

use crate::conditional::{Branches, Choice, Variable};
use crate::event::{Event, Recorded};
use crate::op::Op;
use crate::status::{Result, Status};
use crate::stream::Target;
use crate::table::Table;

pub(crate) static GRAPHS: Table<Graph> = Table::new(5);
pub(crate) static EXECS: Table<Exec> = Table::new(6);

/// A node's handle; unique in the process and never used again, so a node is known in executable
/// graphs. Copies of a graph have nodes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) usize);

pub(crate) struct Graph {
    pub(crate) handle: usize,
    body: Mutex<Body>,
    /// Whether it lies in a node, and goes with that alone.
    pub(crate) is_inner: AtomicBool,
    /// The executable graph that was made of it last.
    last: Mutex<Weak<Exec>>,
}

/// The nodes of a graph, by id: a captured node comes after those it depends on.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// What the program wants to live as long as the graph, and how many of its references.
    pub(crate) objects: Vec<(Arc<UserObject>, u32)>,
    /// What conditional nodes of this graph, or of those inside it, may decide by.
    pub(crate) variables: Vec<Arc<Variable>>,
    /// Of a copy: its nodes, also those that are gone, by the nodes that they are copies of.
    twins: BTreeMap<NodeId, NodeId>,
    /// Handle of its graph, once it has one.
    home: usize,
}

/// The graphs that nodes are in, by handle. It is locked for a moment at a time, under the lock of
/// a body too.
static HOMES: LazyLock<RwLock<HashMap<NodeId, usize>>> = LazyLock::new(RwLock::default);

impl Drop for Body {
    fn drop(&mut self) {
        if self.home != 0 {
            let mut homes = HOMES.write().unwrap_or_else(PoisonError::into_inner);
            for id in self.nodes.keys() {
                homes.remove(id);
            }
        }
    }
}

pub(crate) struct Node {
    pub(crate) kind: CUgraphNodeType,
    pub(crate) work: Work,
    pub(crate) dependencies: Vec<NodeId>,
    /// Attributes that a program has set, by their numbers: they are kept and have no effect here.
    pub(crate) attributes: BTreeMap<u32, CUlaunchAttributeValue>,
}

/// What a node does.
pub(crate) enum Work {
    One(Op),
    /// A graph within the graph.
    Child(Inner),
    /// Several, of which a variable chooses.
    Conditional(Conditional),
}

pub(crate) struct Conditional {
    pub(crate) variable: Arc<Variable>,
    pub(crate) choice: Choice,
    pub(crate) bodies: Vec<Inner>,
    /// Of the bodies, for the program, which looks here for as long as there is the node.
    pub(crate) handles: Box<[CUgraph]>,
}

/// A graph inside a node: it has a handle, which goes with the node.
pub(crate) struct Inner(pub(crate) Arc<Graph>);

impl Inner {
    fn new(graph: Arc<Graph>) -> Inner {
        graph.is_inner.store(true, Ordering::Relaxed);
        Inner(graph)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        GRAPHS.remove(self.0.handle);
    }
}

/// Something of the program's that graphs keep alive (`cuUserObjectCreate`); its destructor runs
/// with the last reference.
pub(crate) struct UserObject {
    pub(crate) destroy: CUhostFn,
    pub(crate) data: *mut c_void,
}

// SAFETY: the program gave the pointer for its function to be called with it, from any thread.
unsafe impl Send for UserObject {}
// SAFETY: as above; the pointer is never followed here.
unsafe impl Sync for UserObject {}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the program gave function and argument for this one call.
            unsafe { destroy(self.data) }
        }
    }
}

/// What a launch keeps alive, though the executable graph may be destroyed meanwhile.
pub(crate) struct Kept(Mutex<Vec<Arc<UserObject>>>);

impl Kept {
    /// A destructor may be called.
    pub(crate) fn let_go(&self) {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
    }
}

/// An executable graph: its nodes' work in an order in which they can be submitted.
pub(crate) struct Exec {
    pub(crate) handle: usize,
    /// Handle of the context that it was instantiated in.
    context: usize,
    pub(crate) flags: u64,
    steps: Mutex<Steps>,
}

/// What a launch does.
#[derive(Default)]
pub(crate) struct Steps {
    steps: Vec<Step>,
    /// What the conditional nodes among them decide by.
    variables: Vec<Arc<Variable>>,
    /// What has to live as long: the graph's objects and those of the graphs inside it.
    objects: Vec<Arc<UserObject>>,
}

struct Step {
    node: NodeId,
    op: Op,
    /// A node that is switched off does nothing (`cuGraphNodeSetEnabled`).
    is_enabled: bool,
    /// The child nodes that it is inside of, outermost first.
    inside: Vec<NodeId>,
}

impl Node {
    pub(crate) fn new(op: Op, dependencies: Vec<NodeId>) -> Self {
        let kind = match &op {
            Op::Launch(_) => CUgraphNodeType::KERNEL,
            Op::Copy(_) => CUgraphNodeType::MEMCPY,
            Op::Fill(_) => CUgraphNodeType::MEMSET,
            Op::HostCall(_) | Op::Callback(_) => CUgraphNodeType::HOST,
            Op::Record(_) | Op::RecordEvent(_) => CUgraphNodeType::EVENT_RECORD,
            Op::Await(_) | Op::AwaitEvent(_) => CUgraphNodeType::WAIT_EVENT,
            Op::Free(_) => CUgraphNodeType::MEM_FREE,
            Op::WriteValue(_) | Op::AwaitValue(..) => CUgraphNodeType::BATCH_MEM_OP,
            Op::Branch(_) => CUgraphNodeType::CONDITIONAL,
            // No capture takes the last.
            Op::Empty | Op::Assign(_) | Op::MapTiles(_) | Op::LetGo(_) => CUgraphNodeType::EMPTY,
        };
        Self::with(kind, Work::One(op), dependencies)
    }

    pub(crate) fn child(graph: &Graph, dependencies: Vec<NodeId>) -> Result<Self> {
        let work = Work::Child(Inner::new(graph.duplicate()?));
        Ok(Self::with(CUgraphNodeType::GRAPH, work, dependencies))
    }

    /// With so many empty graphs inside.
    pub(crate) fn conditional(
        variable: Arc<Variable>,
        choice: Choice,
        bodies: u32,
        dependencies: Vec<NodeId>,
    ) -> Self {
        let bodies: Vec<Inner> = (0..bodies).map(|_| Inner::new(Graph::create())).collect();
        let handles = bodies.iter().map(|body| CUgraph(body.0.handle)).collect();
        let work = Work::Conditional(Conditional { variable, choice, bodies, handles });
        Self::with(CUgraphNodeType::CONDITIONAL, work, dependencies)
    }

    fn with(kind: CUgraphNodeType, work: Work, dependencies: Vec<NodeId>) -> Self {
        Self { kind, work, dependencies, attributes: BTreeMap::new() }
    }
}

impl Body {
    /// Adds a node, behind those of its dependencies that are still here: a capture may have seen
    /// one that was destroyed since.
    pub(crate) fn add(&mut self, mut node: Node) -> NodeId {
        node.dependencies.retain(|before| self.nodes.contains_key(before));
        static MINTED: AtomicUsize = AtomicUsize::new(1);
        // Handles of their own kind, beside those of the tables.
        let id = NodeId(7 << 32 | MINTED.fetch_add(1, Ordering::Relaxed) << 4);
        self.nodes.insert(id, node);
        if self.home != 0 {
            HOMES.write().unwrap_or_else(PoisonError::into_inner).insert(id, self.home);
        }
        id
    }

    /// Makes it known that the nodes are in this graph.
    fn move_in(&mut self, graph: usize) {
        self.home = graph;
        let mut homes = HOMES.write().unwrap_or_else(PoisonError::into_inner);
        homes.extend(self.nodes.keys().map(|&id| (id, graph)));
    }

    /// A copy with nodes of its own; conditional ones cannot be copied.
    fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::default();
        copy.objects.clone_from(&self.objects);
        for (&id, node) in &self.nodes {
            let work = match &node.work {
                Work::One(op) => Work::One(op.clone()),
                Work::Child(inner) => Work::Child(Inner::new(inner.0.duplicate()?)),
                Work::Conditional(_) => return Err(Status::NOT_SUPPORTED),
            };
            let attributes = node.attributes.clone();
            let twin = copy.add(Node { kind: node.kind, work, dependencies: Vec::new(), attributes });
            copy.twins.insert(id, twin);
        }
        for (id, node) in &self.nodes {
            if let Some(twin) = copy.nodes.get_mut(&copy.twins[id]) {
                twin.dependencies = node.dependencies.iter().map(|before| copy.twins[before]).collect();
            }
        }
        Ok(copy)
    }

    /// The copy of a node that is here.
    pub(crate) fn twin(&self, original: NodeId) -> Option<NodeId> {
        self.twins.get(&original).copied().filter(|twin| self.nodes.contains_key(twin))
    }

    /// Takes dependencies away.
    pub(crate) fn disconnect(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        let node = self.nodes.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
        let at = node.dependencies.iter().position(|before| *before == from).ok_or(Status::INVALID_VALUE)?;
        node.dependencies.remove(at);
        Ok(())
    }

    /// Takes a node away, and the edges to and from it.
    pub(crate) fn remove(&mut self, id: NodeId) -> Result<Node> {
        let node = self.nodes.remove(&id).ok_or(Status::INVALID_VALUE)?;
        HOMES.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        for other in self.nodes.values_mut() {
            other.dependencies.retain(|before| *before != id);
        }
        Ok(node)
    }

    /// All edges, by the node that they come from.
    pub(crate) fn edges(&self) -> Vec<(NodeId, NodeId)> {
        let into = |(&to, node): (&NodeId, &Node)| {
            node.dependencies.iter().map(move |&from| (from, to)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(into).collect()
    }

    /// `last` and everything before it.
    pub(crate) fn ancestors(&self, last: &[NodeId]) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut open = last.to_vec();
        while let Some(id) = open.pop() {
            if found.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(&node.dependencies);
            }
        }
        found
    }

    /// Adds dependencies between nodes that exist; a pair that closes a circle is found at
    /// instantiation.
    pub(crate) fn connect(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        if from == to || !self.nodes.contains_key(&from) {
            return Err(Status::INVALID_VALUE);
        }
        let node = self.nodes.get_mut(&to).ok_or(Status::INVALID_VALUE)?;
        if node.dependencies.contains(&from) {
            return Err(Status::INVALID_VALUE);
        }
        node.dependencies.push(from);
        Ok(())
    }

    /// Appends the work of all nodes to `to`, dependencies first. A circle has no such order.
    /// `inside`: the child nodes around this graph.
    fn flatten(&self, inside: &[NodeId], to: &mut Steps) -> Result<()> {
        to.objects.extend(self.objects.iter().map(|(object, _)| Arc::clone(object)));
        to.variables.extend(self.variables.iter().cloned());
        let mut waits: BTreeMap<NodeId, usize> =
            self.nodes.iter().map(|(&id, n)| (id, n.dependencies.len())).collect();
        let mut ready: BTreeSet<NodeId> =
            waits.iter().filter(|&(_, &count)| count == 0).map(|(&id, _)| id).collect();
        let mut followers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (&id, node) in &self.nodes {
            for &dependency in &node.dependencies {
                followers.entry(dependency).or_default().push(id);
            }
        }
        let mut done = 0;
        while let Some(id) = ready.pop_first() {
            done += 1;
            match &self.nodes[&id].work {
                Work::One(op) => {
                    let inside = inside.to_vec();
                    to.steps.push(Step { node: id, op: op.clone(), is_enabled: true, inside });
                }
                Work::Child(inner) => inner.0.body().flatten(&[inside, &[id]].concat(), to)?,
                Work::Conditional(conditional) => {
                    let op = Op::Branch(Arc::new(conditional.flatten(to)?));
                    to.steps.push(Step { node: id, op, is_enabled: true, inside: inside.to_vec() });
                }
            }
            for follower in followers.remove(&id).into_iter().flatten() {
                let count = waits.get_mut(&follower).ok_or(Status::INVALID_VALUE)?;
                *count -= 1;
                if *count == 0 {
                    ready.insert(follower);
                }
            }
        }
        if done == self.nodes.len() { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }
}

impl Graph {
    /// A new empty graph with a handle.
    pub(crate) fn create() -> Arc<Self> {
        Self::with_body(Body::default())
    }

    pub(crate) fn with_body(mut body: Body) -> Arc<Self> {
        GRAPHS.insert(|handle| {
            body.move_in(handle);
            Self { handle, body: Mutex::new(body), is_inner: AtomicBool::new(false), last: Mutex::default() }
        })
    }

    /// A copy with nodes of its own.
    pub(crate) fn duplicate(&self) -> Result<Arc<Self>> {
        let copy = self.body().duplicate()?;
        Ok(Self::with_body(copy))
    }

    pub(crate) fn get(handle: CUgraph) -> Result<Arc<Self>> {
        GRAPHS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    pub(crate) fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The graph that has this node.
pub(crate) fn graph_of(node: NodeId) -> Result<Arc<Graph>> {
    let home = HOMES.read().unwrap_or_else(PoisonError::into_inner).get(&node).copied();
    home.and_then(|home| GRAPHS.get(home)).ok_or(Status::INVALID_VALUE)
}

impl Exec {
    pub(crate) fn instantiate(graph: &Graph, context: usize, flags: u64) -> Result<Arc<Self>> {
        let mut steps = Steps::default();
        graph.body().flatten(&[], &mut steps)?;
        let mut last = graph.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = last.upgrade().is_some_and(|exec| EXECS.get(exec.handle).is_some());
        if steps.has_branches() && is_there {
            return Err(Status::NOT_SUPPORTED);
        }
        let exec = EXECS.insert(|handle| Self { handle, context, flags, steps: Mutex::new(steps) });
        *last = Arc::downgrade(&exec);
        Ok(exec)
    }

    pub(crate) fn get(handle: CUgraphExec) -> Result<Arc<Self>> {
        EXECS.get(handle.0).ok_or(Status::INVALID_VALUE)
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the work of one node, for launches from now on; it must stay of the same kind.
    pub(crate) fn replace(&self, node: NodeId, op: Op) -> Result<()> {
        let replaced = self.steps().with(node, &mut |step| {
            if std::mem::discriminant(&step.op) != std::mem::discriminant(&op) {
                return Err(Status::INVALID_VALUE);
            }
            step.op = op.clone();
            Ok(())
        });
        replaced.unwrap_or(Err(Status::INVALID_VALUE))
    }

    /// Replaces what a child node does by a graph of the same shape.
    pub(crate) fn replace_child(&self, node: NodeId, graph: &Graph) -> Result<()> {
        let mut new = Steps::default();
        graph.body().flatten(&[], &mut new)?;
        let mut steps = self.steps();
        let inside: Vec<usize> =
            (0..steps.steps.len()).filter(|&at| steps.steps[at].inside.contains(&node)).collect();
        if inside.is_empty() || inside.len() != new.steps.len() {
            return Err(Status::INVALID_VALUE);
        }
        let same = |(&at, new): (&usize, &Step)| same_kind(&steps.steps[at].op, &new.op);
        if !inside.iter().zip(&new.steps).all(same) {
            return Err(Status::INVALID_VALUE);
        }
        for (at, new) in inside.into_iter().zip(new.steps) {
            steps.steps[at].op = new.op;
        }
        steps.objects.extend(new.objects);
        Ok(())
    }

    /// Switches a node on or off, for launches from now on.
    pub(crate) fn enable(&self, node: NodeId, is_enabled: bool) -> Result<()> {
        self.steps().with(node, &mut |step| step.is_enabled = is_enabled).ok_or(Status::INVALID_VALUE)
    }

    pub(crate) fn is_enabled(&self, node: NodeId) -> Result<bool> {
        self.steps().with(node, &mut |step| step.is_enabled).ok_or(Status::INVALID_VALUE)
    }

    /// Takes over the work of a graph with the same nodes in the same order (`cuGraphExecUpdate`),
    /// and what that one keeps alive.
    pub(crate) fn update(&self, graph: &Graph) -> Result<()> {
        let mut new = Steps::default();
        graph.body().flatten(&[], &mut new)?;
        let mut steps = self.steps();
        if !steps.is_like(&new) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        for (old, new) in steps.steps.iter_mut().zip(new.steps) {
            old.op = new.op;
        }
        steps.variables = new.variables;
        let before = std::mem::replace(&mut steps.objects, new.objects);
        drop(steps);
        drop(before);
        Ok(())
    }

    /// Submits all nodes. A stream that captures gets them as they are: what they do at a launch
    /// they do at that of the graph that comes of it.
    pub(crate) fn launch(&self, target: &Target) -> Result<()> {
        let is_captured = target.stream.capture().is_some();
        let steps = self.steps();
        if is_captured && steps.has_branches() {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        for variable in &steps.variables {
            target.submit(Op::Assign(Arc::clone(variable)))?;
        }
        for op in steps.enabled() {
            target.submit(if is_captured { op.clone() } else { at_launch(op)? })?;
        }
        if !is_captured && !steps.objects.is_empty() {
            target.submit(Op::LetGo(Arc::new(Kept(Mutex::new(steps.objects.clone())))))?;
        }
        Ok(())
    }
}

impl Conditional {
    /// As it is in an executable graph, whose `around` gets what it has to keep.
    fn flatten(&self, around: &mut Steps) -> Result<Branches> {
        let mut bodies = Vec::with_capacity(self.bodies.len());
        for body in &self.bodies {
            let mut steps = Steps::default();
            body.0.body().flatten(&[], &mut steps)?;
            if !steps.steps.iter().all(|step| may_be_conditional(&step.op)) {
                return Err(Status::NOT_SUPPORTED);
            }
            around.objects.append(&mut steps.objects);
            around.variables.append(&mut steps.variables);
            bodies.push(steps);
        }
        Ok(Branches::new(Arc::clone(&self.variable), self.choice, bodies))
    }
}

/// Kernels, copies, fills, empty nodes and conditional ones (CUDA Driver API,
/// `CUDA_CONDITIONAL_NODE_PARAMS`).
fn may_be_conditional(op: &Op) -> bool {
    matches!(op, Op::Empty | Op::Launch(_) | Op::Copy(_) | Op::Fill(_) | Op::Branch(_))
}

impl Steps {
    /// What is not switched off, in its order.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = &Op> {
        self.steps.iter().filter(|step| step.is_enabled).map(|step| &step.op)
    }

    fn has_branches(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.op, Op::Branch(_)))
    }

    /// Whether other work could take its place.
    pub(crate) fn is_like(&self, other: &Steps) -> bool {
        let alike = |old: &Step, new: &Step| match (&old.op, &new.op) {
            (Op::Branch(old), Op::Branch(new)) => old.is_like(new),
            (old, new) => same_kind(old, new),
        };
        self.steps.len() == other.steps.len()
            && self.steps.iter().zip(&other.steps).all(|(old, new)| alike(old, new))
    }

    /// Has `look` see the step of a node, also inside conditional ones; `None` where there is none.
    fn with<R>(&mut self, node: NodeId, look: &mut dyn FnMut(&mut Step) -> R) -> Option<R> {
        if let Some(step) = self.steps.iter_mut().find(|step| step.node == node) {
            return Some(look(step));
        }
        self.steps.iter().find_map(|step| match &step.op {
            Op::Branch(branches) => branches.bodies().find_map(|mut body| body.with(node, look)),
            _ => None,
        })
    }
}

fn same_kind(old: &Op, new: &Op) -> bool {
    std::mem::discriminant(old) == std::mem::discriminant(new)
}

/// What a node's work is in one launch of its graph.
fn at_launch(op: &Op) -> Result<Op> {
    Ok(match op {
        Op::RecordEvent(event) => Op::Record(event.issue_ticket()),
        Op::AwaitEvent(event) => await_event(event)?,
        op => op.clone(),
    })
}

/// The wait for what an event stands for now.
pub(crate) fn await_event(event: &Event) -> Result<Op> {
    match event.recorded() {
        Recorded::Never => Ok(Op::Empty),
        Recorded::Ticket(ticket) => Ok(Op::Await(ticket)),
        Recorded::Captured(..) => Err(Status::STREAM_CAPTURE_ISOLATION),
    }
}

/// Forgets the executable graphs of a context that is gone.
pub(crate) fn context_destroyed(context: usize) {
    EXECS.remove_all(|exec| exec.context == context);
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
