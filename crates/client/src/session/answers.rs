//! Questions that are asked once: their answers follow from their arguments, and are kept here for
//! the next time.
//!
//! An answer about a function holds until the function is changed ([`Answers::change`]) and is kept
//! with it, so that it goes when its module does. Any other holds as long as the session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUfunction, CUresult};
use sluice_wire::Command;

use crate::context;

/// Answers kept at a time. Programs ask a handful of questions about a function; one that asks more
/// starts anew.
const ANSWERS_MAX: usize = 1024;

/// On what an answer depends, beside the arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    Function(CUfunction),
    /// On nothing that changes.
    Nothing,
}

/// The answers that are known, encoded as they came.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<KnownAnswers>);

#[derive(Debug, Default)]
struct KnownAnswers {
    /// How often what the answers are about has changed.
    changes: u64,
    answers: HashMap<Question, Arc<[u8]>>,
}

/// The device, the operation and its arguments, encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question(Vec<u8>);

impl Question {
    fn of<C: Command>(command: &C) -> Question {
        let mut text = vec![context::device() as u8];
        text.extend_from_slice(&C::OP.0.to_le_bytes());
        command.encode(&mut text);
        Question(text)
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, KnownAnswers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the answers are about has changed, by a command that has its place in the session: what
    /// is asked after this gets another answer, and what was asked before is not kept.
    pub(crate) fn change(&self) {
        let mut known = self.lock();
        known.changes += 1;
        known.answers.clear();
    }

    /// The answer to a question that `ask` sends if it is not known.
    pub(crate) fn to<C: Command>(
        &self,
        command: &C,
        ask: impl FnOnce() -> Result<Vec<u8>, CUresult>,
    ) -> Result<Arc<[u8]>, CUresult> {
        let question = Question::of(command);
        let changes = {
            let known = self.lock();
            if let Some(answer) = known.answers.get(&question) {
                return Ok(Arc::clone(answer));
            }
            known.changes
        };
        let answer: Arc<[u8]> = ask()?.into();
        let mut known = self.lock();
        if known.changes == changes {
            if known.answers.len() >= ANSWERS_MAX {
                known.answers.clear();
            }
            known.answers.insert(question, Arc::clone(&answer));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use sluice_wire::{FunctionId, commands};

    use super::*;

    fn question(block_size: i32) -> commands::cuOccupancyMaxActiveBlocksPerMultiprocessor {
        commands::cuOccupancyMaxActiveBlocksPerMultiprocessor {
            func: FunctionId(16),
            blockSize: block_size,
            dynamicSMemSize: 0,
        }
    }

    /// Answers with how often it was asked.
    struct Node(Cell<u8>);

    impl Node {
        fn answer(&self) -> Result<Vec<u8>, CUresult> {
            self.0.set(self.0.get() + 1);
            Ok(vec![self.0.get()])
        }
    }

    #[test]
    fn a_question_is_asked_once_until_a_change() {
        let (answers, node) = (Answers::default(), Node(Cell::new(0)));
        let ask = |size| answers.to(&question(size), || node.answer()).unwrap()[0];
        assert_eq!((ask(128), ask(128), ask(256), ask(128), ask(256)), (1, 1, 2, 1, 2));
        answers.change();
        assert_eq!((ask(128), ask(128)), (3, 3));
    }

    #[test]
    fn a_question_of_another_kind_is_another() {
        let (answers, node) = (Answers::default(), Node(Cell::new(0)));
        let other = commands::cuOccupancyAvailableDynamicSMemPerBlock {
            func: FunctionId(16),
            numBlocks: 128,
            blockSize: 0,
        };
        answers.to(&question(128), || node.answer()).unwrap();
        assert_eq!(*answers.to(&other, || node.answer()).unwrap(), [2]);
    }

    #[test]
    fn an_answer_that_a_change_overtakes_is_not_kept() {
        let (answers, node) = (Answers::default(), Node(Cell::new(0)));
        let overtaken = answers.to(&question(128), || {
            answers.change();
            node.answer()
        });
        assert_eq!(*overtaken.unwrap(), [1]);
        assert_eq!(*answers.to(&question(128), || node.answer()).unwrap(), [2]);
    }

    #[test]
    fn errors_are_not_kept() {
        let (answers, node) = (Answers::default(), Node(Cell::new(0)));
        let refused = answers.to(&question(128), || Err(CUresult::INVALID_VALUE));
        assert_eq!(refused.unwrap_err(), CUresult::INVALID_VALUE);
        assert_eq!(*answers.to(&question(128), || node.answer()).unwrap(), [1]);
    }

    #[test]
    fn answers_are_bounded() {
        let (answers, node) = (Answers::default(), Node(Cell::new(0)));
        for size in 0..2 * ANSWERS_MAX as i32 + 1 {
            answers.to(&question(size), || Ok(vec![0])).unwrap();
            assert!(answers.lock().answers.len() <= ANSWERS_MAX);
        }
        assert_eq!(*answers.to(&question(0), || node.answer()).unwrap(), [1]);
    }
}
