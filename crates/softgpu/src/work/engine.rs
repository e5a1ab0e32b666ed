//! The queues of all streams, and the threads that empty them.
//!
//! One thread of each device takes the next piece of work that is ready and runs it: kernels,
//! copies, fills and events, one at a time per device. (A kernel itself runs on all threads of the
//! executor.) That is slower than hardware only where a copy could run beside a kernel, and it
//! keeps every order that CUDA promises. Kernels that wait for another stream's kernel do not get
//! that far on it.
//!
//! A function of the program runs as long as it likes, and may wait for what other streams do.
//! Meanwhile a second thread does the device's work, once there is any. Functions of one device run
//! one after the other.
//!
//! All work has a number in the order of acceptance. The head of a queue is ready when
//! - it is in the legacy stream, and no blocking stream of the context has earlier work left;
//! - it is in a blocking stream, and the legacy stream of the context has no earlier work left;
//! - it waits for an event or a value, and that has come about.
//!
//! Besides, no work is ready that was accepted after a barrier of its context which still stands.
//!
//! Work that runs is still the head of its queue, so it holds back what has to wait for it. Where
//! no other queue has any, several short pieces are taken together: for one that is over at once
//! the lock would be most of what it costs.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::base::status::{Result, Status};
use crate::base::ticket::Ticket;
use crate::context::Context;
use crate::context::stream::{Order, Stream};
use crate::work::event::{Event, Recorded};
use crate::work::op::{Effort, Op};

/// How often a waiting caller looks whether another process has got there.
const SHARED_POLL: Duration = Duration::from_micros(50);
/// How often the value that a stream waits for is looked at.
const VALUE_POLL: Duration = Duration::from_micros(50);
/// A device's thread looks for more work for this time before it sleeps. To wake a thread whose
/// core has nothing else to do takes longer than most work that comes in a row.
const LOOK: Duration = Duration::from_micros(30);
/// Work that comes within this time after the last is probably one piece of many in a row.
const SOON: Duration = Duration::from_micros(2);
/// The thread waits at most this long for more pieces in a row: the thread that submits them needs
/// the lock as well.
const GATHER: Duration = Duration::from_micros(6);
/// Most pieces of work that are taken at a time.
const TAKEN_MAX: usize = 64;
/// After this time no more of the taken pieces is begun: a thread may wait for those that are done,
/// or more urgent work may have come.
const TAKEN_FOR: Duration = Duration::from_micros(20);

struct Engine {
    state: Mutex<State>,
    /// [`State::sequence`], for threads that do not hold the lock.
    sequence: AtomicU64,
    /// What the work in all queues holds, in bytes; it changes only with the lock held.
    queued_bytes: AtomicUsize,
    /// Something may have become ready.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    /// Some device's work was left to a thread that waits for it.
    left: Condvar,
}

struct State {
    /// The queues that are not empty, by stream id.
    queues: BTreeMap<u64, Queue>,
    sequence: u64,
    /// The threads of each device that was given work, by its ordinal.
    crews: BTreeMap<usize, Crew>,
    /// Threads of devices that have nothing to do. A wake-up costs as much if no thread sleeps as
    /// if one does, and most work is submitted while a device is busy.
    sleeping: u32,
    /// Callers that look again after each piece of work, and the numbers up to which others wait
    /// for all of a queue.
    looking: u32,
    goals: Vec<u64>,
    /// What later work of a context waits for, by the context's handle.
    barriers: BTreeMap<usize, Vec<Barrier>>,
}

/// The threads of a device: one does the device's work, each other one runs a function, or is
/// spare.
#[derive(Default)]
struct Crew {
    has_worker: bool,
    /// Functions that run: those of different streams may wait for each other, and what a copy to
    /// the host leaves behind is one, too.
    functions: u32,
    /// Threads that wait until the work is left to them.
    spares: u32,
    /// The work was left to one of the waiting threads, whichever wakes first: also to one that
    /// begins to wait only now.
    is_left_to_spare: bool,
}

/// Most functions of a device that run at a time; more of them take turns.
const FUNCTIONS_MAX: u32 = 64;

/// Holds back what was accepted after it until its ticket is done (`cuCtxWaitEvent`).
struct Barrier {
    sequence: u64,
    ticket: Arc<Ticket>,
}

struct Queue {
    stream: Arc<Stream>,
    context: Arc<Context>,
    /// Work that no thread has taken, with its sequence number, oldest first.
    work: VecDeque<(u64, Op)>,
    /// The number of the oldest piece that was taken and is not known to have finished.
    running: Option<u64>,
}

static ENGINE: Engine = Engine {
    state: Mutex::new(State {
        queues: BTreeMap::new(),
        sequence: 0,
        crews: BTreeMap::new(),
        sleeping: 0,
        looking: 0,
        goals: Vec::new(),
        barriers: BTreeMap::new(),
    }),
    sequence: AtomicU64::new(0),
    queued_bytes: AtomicUsize::new(0),
    work: Condvar::new(),
    done: Condvar::new(),
    left: Condvar::new(),
};

/// Appends work to a stream.
pub(crate) fn submit(stream: &Arc<Stream>, context: &Arc<Context>, op: Op) {
    let mut state = ENGINE.lock();
    state.sequence += 1;
    let sequence = state.sequence;
    ENGINE.sequence.store(sequence, Ordering::Relaxed);
    if let Op::Record(ticket) = &op {
        ticket.work.get_or_init(|| sequence);
    }
    stream.submitted.store(sequence, Ordering::Relaxed);
    let queue = state.queues.entry(stream.id).or_insert_with(|| Queue {
        stream: Arc::clone(stream),
        context: Arc::clone(context),
        work: VecDeque::new(),
        running: None,
    });
    ENGINE.queued_bytes.fetch_add(op.bytes(), Ordering::Relaxed);
    queue.work.push_back((sequence, op));
    state.find_worker(stream.device);
    let wake = state.sleeping > 0;
    drop(state);
    if wake {
        ENGINE.work.notify_all();
    }
}

/// Makes what is submitted in the context from now on, in any of its streams, wait for the ticket.
pub(crate) fn hold_back(context: usize, ticket: Arc<Ticket>) {
    let mut state = ENGINE.lock();
    let sequence = state.sequence;
    let barriers = state.barriers.entry(context).or_default();
    barriers.retain(|barrier| !barrier.ticket.is_done());
    barriers.push(Barrier { sequence, ticket });
}

/// Forgets the barriers of a context that has ended.
pub(crate) fn forget_barriers(context: usize) {
    ENGINE.lock().barriers.remove(&context);
}

/// The streams of a context that have work left.
pub(crate) fn busy_streams(context: usize) -> Vec<Arc<Stream>> {
    let state = ENGINE.lock();
    let queues = state.queues.values().filter(|queue| queue.context.is_of(context));
    queues.map(|queue| Arc::clone(&queue.stream)).collect()
}

/// Waits until everything submitted to the stream so far is done.
pub(crate) fn wait_stream(stream: &Stream) {
    let state = ENGINE.lock();
    let goal = stream.submitted.load(Ordering::Relaxed);
    ENGINE.wait_up_to(goal, state, |_| stream.completed.load(Ordering::Relaxed) >= goal);
}

/// Waits until the ticket is done.
pub(crate) fn wait_ticket(ticket: &Ticket) {
    let state = ENGINE.lock();
    match ticket.work.get() {
        Some(&goal) => ENGINE.wait_up_to(goal, state, |_| ticket.is_done()),
        // Its event is about to be recorded.
        None => drop(ENGINE.wait(state, |_| ticket.is_done())),
    }
}

/// Waits for what an event stands for.
pub(crate) fn wait_event(event: &Event) -> Result<()> {
    match event.recorded() {
        Recorded::Never => {}
        Recorded::Ticket(ticket) if ticket.is_shared() => {
            while !ticket.is_done() {
                std::thread::sleep(SHARED_POLL);
            }
        }
        Recorded::Ticket(ticket) => wait_ticket(&ticket),
        Recorded::Captured(..) => return Err(Status::CAPTURED_EVENT),
    }
    Ok(())
}

/// Waits until everything submitted in the context so far is done.
pub(crate) fn wait_context(context: usize) {
    let state = ENGINE.lock();
    let goal = state.sequence;
    let older =
        move |queue: &Queue| queue.context.is_of(context) && queue.head().is_some_and(|head| head <= goal);
    ENGINE.wait_up_to(goal, state, |state| !state.queues.values().any(older));
}

/// Does something while no work runs and none begins, on any device; queued work stays queued.
pub(crate) fn at_rest<T>(action: impl FnOnce() -> T) -> T {
    let _inline = INLINE.write().unwrap_or_else(PoisonError::into_inner);
    let _state =
        ENGINE.wait(ENGINE.lock(), |state| !state.queues.values().any(|queue| queue.running.is_some()));
    action()
}

/// Held for reading by callers that do work in their own thread.
static INLINE: RwLock<()> = RwLock::new(());

/// Does the work in the calling thread if nothing of the context is queued.
pub(crate) fn run_if_idle(context: &Context, op: &Op) -> Option<Result<()>> {
    let _running = INLINE.read().unwrap_or_else(PoisonError::into_inner);
    is_idle(context).then(|| op.run(context))
}

/// Waits while the work in all queues holds more than this number of bytes of the host's memory.
/// Not for a thread that does queued work.
pub fn wait_for_room(bytes_max: usize) {
    if !has_room(bytes_max) {
        drop(ENGINE.wait(ENGINE.lock(), |_| has_room(bytes_max)));
    }
}

/// Whether [`wait_for_room`] would return at once.
pub fn has_room(bytes_max: usize) -> bool {
    ENGINE.queued_bytes.load(Ordering::Relaxed) <= bytes_max
}

/// Waits until `condition` holds; it is looked at after each piece of work.
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    drop(ENGINE.wait(ENGINE.lock(), |_| condition()));
}

/// Whether the stream has done everything submitted so far.
pub(crate) fn is_done(stream: &Stream) -> bool {
    let _state = ENGINE.lock();
    stream.completed.load(Ordering::Relaxed) >= stream.submitted.load(Ordering::Relaxed)
}

/// Whether no stream of the context has work left.
fn is_idle(context: &Context) -> bool {
    let state = ENGINE.lock();
    state.may_pass(context, u64::MAX)
        && !state.queues.values().any(|queue| queue.context.is_of(context.handle))
}

impl Engine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when something was submitted, or soon; other threads go first. Where one piece
    /// follows the other, and no thread waits for any, it returns when there are several.
    fn look_for_work<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (known, is_awaited) = (state.sequence, state.looking > 0 || !state.goals.is_empty());
        drop(state);
        let begin = Instant::now();
        let look = |enough: u64, limit: Duration| {
            while self.sequence.load(Ordering::Relaxed) < enough && begin.elapsed() < limit {
                std::thread::yield_now();
            }
            begin.elapsed()
        };
        if look(known + 1, LOOK) < SOON && !is_awaited {
            look(known + TAKEN_MAX as u64, GATHER);
        }
        self.lock()
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while !until(&state) {
            state.looking += 1;
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.looking -= 1;
        }
        state
    }

    /// As [`Engine::wait`] for what can come about only when a queue has nothing left up to a
    /// number.
    fn wait_up_to(&self, goal: u64, mut state: MutexGuard<'_, State>, until: impl Fn(&State) -> bool) {
        while !until(&state) {
            state.goals.push(goal);
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            let own = state.goals.iter().position(|&other| other == goal);
            own.map(|own| state.goals.swap_remove(own));
        }
    }
}

/// The life of a thread of a device, which begins with the device's work left to it.
fn run_device(device: usize) -> ! {
    let mut state = ENGINE.lock();
    let mut may_look = false;
    loop {
        let Some(mut taken) = state.take_ready(device) else {
            state = if may_look { ENGINE.look_for_work(state) } else { state.sleep(device) };
            may_look = false;
            continue;
        };
        may_look = true;
        let is_function = taken.is_function();
        if is_function {
            let crew = state.crew(device);
            crew.has_worker = false;
            crew.functions += 1;
            state.find_worker(device);
        }
        drop(state);
        taken.run();
        state = ENGINE.lock();
        if state.finish(taken) {
            ENGINE.done.notify_all();
        }
        let mut is_worker = true;
        if is_function {
            let crew = state.crew(device);
            crew.functions -= 1;
            is_worker = !std::mem::replace(&mut crew.has_worker, true);
        }
        // An event may have made work of other devices ready.
        state.find_workers();
        if state.sleeping > 0 {
            ENGINE.work.notify_all();
        }
        if !is_worker {
            state = state.wait_until_left(device);
        }
    }
}

/// Work taken for running.
struct TakenWork {
    stream: Arc<Stream>,
    context: Arc<Context>,
    /// What has not run yet, with its numbers, oldest first.
    work: VecDeque<(u64, Op)>,
    /// Number of the first piece, of the last one that has run, and bytes of all that have.
    first: u64,
    last: u64,
    bytes: usize,
}

impl TakenWork {
    fn is_function(&self) -> bool {
        self.work.front().is_some_and(|(_, op)| op.is_function())
    }

    /// Does one piece after the other, until that has taken a while.
    fn run(&mut self) {
        // Around all that the device does in a row, since asking a thread's clock twice takes
        // longer than a small kernel.
        let mut working = None;
        let begin = (self.work.len() > 1).then(Instant::now);
        while let Some((sequence, op)) = self.work.pop_front() {
            match op.effort() {
                Effort::Device => _ = working.get_or_insert_with(|| self.context.device.control.work()),
                Effort::Host => working = None,
                Effort::None => {}
            }
            self.run_one(&op);
            self.last = sequence;
            self.bytes += op.bytes();
            if !self.work.is_empty() && begin.is_some_and(|begin| begin.elapsed() >= TAKEN_FOR) {
                break;
            }
        }
    }

    fn run_one(&self, op: &Op) {
        // After a failure nothing runs any more, but a thread that waits for an event must not wait
        // for ever.
        if let Err(status) = self.context.check() {
            return op.skip(status);
        }
        // A panic is a bug of this driver; the program sees it as a failed context, and all other
        // programs continue.
        let body = AssertUnwindSafe(|| op.run(&self.context));
        if let Err(status) = catch_unwind(body).unwrap_or(Err(Status::UNKNOWN)) {
            self.context.fail(status);
        }
    }
}

impl Queue {
    /// Number of the oldest work.
    fn head(&self) -> Option<u64> {
        self.running.or_else(|| self.work.front().map(|&(sequence, _)| sequence))
    }
}

impl State {
    fn crew(&mut self, device: usize) -> &mut Crew {
        self.crews.entry(device).or_default()
    }

    /// Leaves a device's work to a thread, if there is any that no thread does.
    fn find_worker(&mut self, device: usize) {
        let &mut Crew { has_worker, functions, spares, .. } = self.crew(device);
        if has_worker || (functions > 0 && !self.has_work(device)) {
            return;
        }
        self.crew(device).has_worker = true;
        if spares > 0 {
            self.crew(device).is_left_to_spare = true;
            ENGINE.left.notify_all();
            return;
        }
        let named = std::thread::Builder::new().name(format!("sluice-gpu{device}"));
        // Without a thread nothing submitted would ever be done; the system is then beyond help.
        named.spawn(move || run_device(device)).expect("start a device's thread");
    }

    /// As [`State::find_worker`], for every device.
    fn find_workers(&mut self) {
        let devices: Vec<usize> =
            self.crews.iter().filter(|(_, crew)| !crew.has_worker).map(|(&device, _)| device).collect();
        devices.into_iter().for_each(|device| self.find_worker(device));
    }

    /// Whether a device has something to do, or to look at now and then.
    fn has_work(&self, device: usize) -> bool {
        let mut queues = self.queues.values().filter(|queue| queue.stream.device == device);
        queues.any(|queue| self.is_ready(queue) || self.is_polled(queue))
    }

    /// Whether no thread will say that the head of the queue has become ready.
    fn is_polled(&self, queue: &Queue) -> bool {
        let is_next = queue.running.is_none();
        is_next && queue.work.front().is_some_and(|(_, op)| op.waits_for_memory())
            || self.barriers_of(&queue.context).any(|barrier| barrier.ticket.is_shared())
    }

    /// Takes the ready work with the highest priority, then the lowest number, and what can run
    /// right after it.
    fn take_ready(&mut self, device: usize) -> Option<TakenWork> {
        let ready =
            self.queues.values().filter(|queue| queue.stream.device == device && self.is_ready(queue));
        let queue = ready.min_by_key(|queue| (queue.stream.priority(), queue.head()))?;
        let (id, first, count) = (queue.stream.id, queue.head()?, self.count_of_ready(queue));
        let queue = self.queues.get_mut(&id)?;
        let (stream, context) = (Arc::clone(&queue.stream), Arc::clone(&queue.context));
        queue.running = Some(first);
        Some(TakenWork {
            stream,
            context,
            work: queue.work.drain(..count).collect(),
            first,
            last: first,
            bytes: 0,
        })
    }

    /// How many pieces can run one after the other, of a queue whose first is ready. The order of
    /// streams is no question where there is one.
    fn count_of_ready(&self, queue: &Queue) -> usize {
        if self.queues.len() > 1 || queue.work.front().is_some_and(|(_, op)| op.is_function()) {
            return 1;
        }
        let can_follow = |(sequence, op): &&(u64, Op)| {
            // What is right in memory now may not be once the work before has run.
            let stays_ready = op.is_ready() && !op.waits_for_memory();
            !op.is_function() && stays_ready && self.may_pass(&queue.context, *sequence)
        };
        // A thread may wait for an event.
        let records = queue.work.iter().take(TAKEN_MAX).position(|(_, op)| matches!(op, Op::Record(_)));
        let most = records.map_or(TAKEN_MAX, |record| record + 1);
        1 + queue.work.iter().take(most).skip(1).take_while(can_follow).count()
    }

    /// Whether no barrier of the context, or of that which it is a green one of, holds back work
    /// with this number.
    fn may_pass(&self, context: &Context, sequence: u64) -> bool {
        self.barriers_of(context).all(|it| sequence <= it.sequence || it.ticket.is_done())
    }

    fn barriers_of(&self, context: &Context) -> impl Iterator<Item = &Barrier> {
        let owner = (context.owner() != context.handle).then(|| context.owner());
        let contexts = std::iter::once(context.handle).chain(owner);
        contexts.filter_map(|handle| self.barriers.get(&handle)).flatten()
    }

    fn is_ready(&self, queue: &Queue) -> bool {
        let Some((sequence, op)) = queue.work.front() else { return false };
        let too_many =
            || self.crews.get(&queue.stream.device).is_some_and(|crew| crew.functions >= FUNCTIONS_MAX);
        if queue.running.is_some() || (op.is_function() && too_many()) {
            return false;
        }
        let may_start = match queue.stream.order {
            Order::NonBlocking => true,
            Order::Blocking => {
                let legacy = self.queues.get(&queue.context.legacy.id);
                legacy.and_then(Queue::head).is_none_or(|head| head > *sequence)
            }
            Order::Legacy => !self.queues.values().any(|other| {
                other.context.handle == queue.context.handle
                    && other.stream.order == Order::Blocking
                    && other.head().is_some_and(|head| head < *sequence)
            }),
        };
        let is_free = op.is_ready() && self.may_pass(&queue.context, *sequence);
        may_start && (is_free || queue.context.check().is_err())
    }

    /// The answer is whether that may be what a thread waits for.
    fn finish(&mut self, taken: TakenWork) -> bool {
        taken.stream.completed.store(taken.last, Ordering::Relaxed);
        ENGINE.queued_bytes.fetch_sub(taken.bytes, Ordering::Relaxed);
        let mut next = None;
        if let Some(queue) = self.queues.get_mut(&taken.stream.id) {
            queue.running = None;
            taken.work.into_iter().rev().for_each(|left| queue.work.push_front(left));
            next = queue.head();
            if next.is_none() {
                self.queues.remove(&taken.stream.id);
            }
        }
        let reached = taken.first..next.unwrap_or(u64::MAX);
        self.looking > 0 || self.goals.iter().any(|goal| reached.contains(goal))
    }
}

trait Sleep {
    fn sleep(self, device: usize) -> Self;
    fn wait_until_left(self, device: usize) -> Self;
}

impl Sleep for MutexGuard<'_, State> {
    /// Sleeps until something may have become ready on the device.
    fn sleep(mut self, device: usize) -> Self {
        let polls = |queue: &Queue| queue.stream.device == device && self.is_polled(queue);
        let limit = if self.queues.values().any(polls) { VALUE_POLL } else { Duration::MAX };
        self.sleeping += 1;
        let woken = ENGINE.work.wait_timeout(self, limit);
        let (mut state, _) = woken.unwrap_or_else(PoisonError::into_inner);
        state.sleeping -= 1;
        state
    }

    /// Sleeps until the other thread of the device leaves the work to this one.
    fn wait_until_left(mut self, device: usize) -> Self {
        self.crew(device).spares += 1;
        while !std::mem::take(&mut self.crew(device).is_left_to_spare) {
            self = ENGINE.left.wait(self).unwrap_or_else(PoisonError::into_inner);
        }
        self.crew(device).spares -= 1;
        self
    }
}
