//! Moves to other nodes that the server of this node orders. They are made one after the other, so
//! that each program stands still for as short a time as possible.
//!
//! ```text
//! answer to a report -- waiting -- present -- result -- next report -- its answer: forgotten
//! ```

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sluice_api::moving::{MoveOrder, MoveResult};
use sluice_api::node::Attempt;
use sluice_wire::address::Endpoint;
use sluice_wire::control::Migrated;

use crate::registry::{Registry, one_line};

/// The server's orders, and their results.
#[derive(Debug, Default)]
pub(in crate::registry) struct Orders {
    state: Mutex<SavedOrders>,
    added: Condvar,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::registry) struct SavedOrders {
    waiting: VecDeque<MoveOrder>,
    present: Option<(Attempt, u32)>,
    /// The server has not confirmed these.
    results: Vec<MoveResult>,
}

impl Orders {
    /// Takes the orders that the server repeats until it has their results. One that is no longer
    /// among them is not wanted any more, unless it has begun.
    fn take(&self, orders: Vec<MoveOrder>) {
        let mut state = self.lock();
        let known: Vec<(Attempt, u32)> =
            state.results.iter().map(|result| (result.attempt, result.number)).collect();
        let is_new = |order: &MoveOrder| {
            let order = (order.attempt, order.number);
            state.present != Some(order) && !known.contains(&order)
        };
        let waiting = orders.into_iter().filter(is_new).collect();
        state.waiting = waiting;
        drop(state);
        self.added.notify_one();
    }

    /// Waits for the next order.
    fn next(&self) -> MoveOrder {
        let mut state = self.lock();
        loop {
            if let Some(order) = state.waiting.pop_front() {
                state.present = Some((order.attempt, order.number));
                return order;
            }
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The lease is the other node's.
    pub(super) fn succeed(&self, order: &MoveOrder, moved: &Migrated) {
        let &Migrated { bytes, stall_us, .. } = moved;
        self.finish(MoveResult { refused: None, bytes, stall_us, ..result_of(order) });
    }

    /// The lease stays.
    fn fail(&self, order: &MoveOrder, reason: &str) {
        self.finish(MoveResult { refused: Some(one_line(reason)), ..result_of(order) });
    }

    fn finish(&self, result: MoveResult) {
        let mut state = self.lock();
        state.present = None;
        state.results.push(result);
    }

    /// The results that the server has not confirmed.
    pub(in crate::registry) fn results(&self) -> Vec<MoveResult> {
        self.lock().results.clone()
    }

    /// Refuses all that has not begun.
    fn refuse_all(&self, reason: &str) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.iter().for_each(|order| self.fail(order, reason));
    }

    fn confirm(&self, sent: &[MoveResult]) {
        self.lock().results.retain(|result| !sent.contains(result));
    }

    /// For the next program. What is about to begin is ordered again.
    pub(in crate::registry) fn saved(&self) -> SavedOrders {
        SavedOrders { present: None, ..self.lock().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, SavedOrders> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<SavedOrders> for Orders {
    fn from(saved: SavedOrders) -> Orders {
        Orders { state: Mutex::new(saved), added: Condvar::new() }
    }
}

impl Registry {
    /// Takes what the server wants moved. What is not here, as after a restart of this node, is not
    /// answered: the server asks the other node then.
    pub(crate) fn order_moves(&self, orders: Vec<MoveOrder>) {
        let here = self.attempts();
        let is_here = |order: &MoveOrder| here.iter().any(|(attempt, _)| *attempt == order.attempt);
        self.orders.take(orders.into_iter().filter(is_here).collect());
    }

    /// The server has these results.
    pub(crate) fn results_confirmed(&self, sent: &[MoveResult]) {
        self.orders.confirm(sent);
    }

    /// Makes none of the moves that the server has ordered.
    pub(crate) fn refuse_moves(&self, reason: &str) {
        self.orders.refuse_all(reason);
    }

    /// Makes the moves that the server orders, for ever. `own` is where this node is reached.
    pub(crate) fn carry_out_moves(&self, own: &str) {
        loop {
            let order = self.orders.next();
            let _step = self.gates.steps.enter("a move to another node");
            if let Err(reason) = self.carry_out(&order, own) {
                self.orders.fail(&order, &reason);
                self.tell_server();
            }
        }
    }

    fn carry_out(&self, order: &MoveOrder, own: &str) -> Result<(), String> {
        if let (Ok(Endpoint::Tls { .. }), Ok(Endpoint::Tcp(address))) = (own.parse(), order.address.parse()) {
            return Err(format!("this node is reached by TLS, and {address} would be by plain text"));
        }
        let lease = self.lease_of_attempt(order.attempt).ok_or("its program has ended")?;
        let moved = self.move_away(lease, &order.address, None, Some(order.clone()));
        moved.map(drop).map_err(|refusal| refusal.to_string())
    }
}

fn result_of(order: &MoveOrder) -> MoveResult {
    let (attempt, number) = (order.attempt, order.number);
    MoveResult { attempt, number, refused: None, bytes: 0, stall_us: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(lease: u64, number: u32) -> MoveOrder {
        let attempt = Attempt { lease, attempt: 1, task: 0 };
        MoveOrder { attempt, number, address: String::new(), grant: String::new() }
    }

    #[test]
    fn a_repeated_order_is_carried_out_once() {
        let orders = Orders::default();
        orders.take(vec![order(1, 1), order(2, 1)]);
        let first = orders.next();
        assert_eq!(first, order(1, 1));
        // The server has not heard of a result.
        orders.take(vec![order(1, 1), order(2, 1)]);
        assert_eq!(orders.lock().waiting, [order(2, 1)]);
        orders.finish(result_of(&first));
        orders.take(vec![order(1, 1), order(2, 1)]);
        assert_eq!(orders.lock().waiting, [order(2, 1)]);
        // It has heard of it, and wants it moved again.
        orders.confirm(&orders.results());
        assert!(orders.results().is_empty());
        orders.take(vec![order(1, 2)]);
        assert_eq!(orders.next(), order(1, 2), "what is not repeated is not wanted any more");
    }
}
