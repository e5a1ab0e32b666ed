//! Conditional nodes: graphs inside a node of which the value of a variable chooses one, or which
//! run again and again (CUDA Driver API, `CUDA_CONDITIONAL_NODE_PARAMS`).
//!
//! The variable is a word of memory that device code can write: its address is the handle that
//! kernels are given, and `cudaGraphSetConditional` is a store to it ([`SET_CONDITIONAL`]). The
//! device's thread looks at the word when the node's turn has come, and runs the graph that it
//! chooses before it takes anything else.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::status::{Result, Status};
use crate::device::address_space::CHUNK;
use crate::device::heap::map_hidden_chunks;
use crate::device::sanitizer;

/// The device runtime's function, which modules declare and leave to the linker (CUDA C++
/// Programming Guide, Conditional Graph Nodes).
pub(crate) const SET_CONDITIONAL: &[u8] = b"
.weak .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.b64 %rd1, [handle];
    ld.param.b32 %r1, [value];
    st.volatile.global.u32 [%rd1], %r1;
    ret;
}
";
/// Its name.
pub(crate) const SET_CONDITIONAL_NAME: &[u8] = b"cudaGraphSetConditional";

/// Bytes from one variable to the next.
const STRIDE: u64 = 16;

/// Places for variables that are not in use.
static VACANT: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// What nodes decide by.
#[derive(Debug)]
pub(crate) struct Variable {
    /// Also the program's handle.
    pub(crate) address: u64,
    /// What it is at the beginning of each launch, if anything is said about that.
    default: Option<u32>,
}

impl Variable {
    pub(crate) fn new(value: u32, is_default: bool) -> Result<Arc<Variable>> {
        let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
        if vacant.is_empty() {
            let start = map_hidden_chunks(CHUNK)?;
            sanitizer::has_own_memory(start, CHUNK, "the conditions of graphs");
            vacant.extend((0..CHUNK / STRIDE).rev().map(|index| start + index * STRIDE));
        }
        let address = vacant.pop().ok_or(Status::OUT_OF_MEMORY)?;
        drop(vacant);
        let variable = Variable { address, default: is_default.then_some(value) };
        variable.word().store(0, Ordering::Release);
        Ok(Arc::new(variable))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a word of a page that stays mapped for good; device code may change it at the
        // same time: atomic.
        unsafe { AtomicU32::from_ptr(self.address as *mut u32) }
    }

    /// A launch begins.
    pub(crate) fn assign(&self) {
        if let Some(value) = self.default {
            self.word().store(value, Ordering::Release);
        }
    }

    pub(crate) fn value(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }
}

impl Drop for Variable {
    fn drop(&mut self) {
        VACANT.lock().unwrap_or_else(PoisonError::into_inner).push(self.address);
    }
}

/// How the value chooses (`CUgraphConditionalNodeType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    If,
    While,
    Switch,
}

impl Choice {
    /// The kind of a node with this number of bodies.
    pub(crate) fn new(kind: u32, bodies: u32) -> Result<Choice> {
        match (kind, bodies) {
            (0, 1 | 2) => Ok(Choice::If),
            (1, 1) => Ok(Choice::While),
            (2, 1..) => Ok(Choice::Switch),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// The body that runs next, if there is one.
    pub(crate) fn body(self, value: u32) -> Option<usize> {
        match self {
            Choice::If => Some(usize::from(value == 0)),
            Choice::While => (value != 0).then_some(0),
            Choice::Switch => Some(value as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_as_many_bodies_as_they_may() {
        for (kind, bodies) in [(0, 0), (0, 3), (1, 0), (1, 2), (2, 0), (3, 1)] {
            assert_eq!(Choice::new(kind, bodies), Err(Status::INVALID_VALUE), "{kind} with {bodies}");
        }
        assert_eq!(
            [(0, 2), (1, 1), (2, 9)].map(|(kind, bodies)| Choice::new(kind, bodies)),
            [Ok(Choice::If), Ok(Choice::While), Ok(Choice::Switch)]
        );
    }

    #[test]
    fn values_choose() {
        assert_eq!((Choice::If.body(7), Choice::If.body(0)), (Some(0), Some(1)));
        assert_eq!((Choice::While.body(7), Choice::While.body(0)), (Some(0), None));
        assert_eq!((Choice::Switch.body(7), Choice::Switch.body(0)), (Some(7), Some(0)));
    }
}
